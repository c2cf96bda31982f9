"""dbtoll: how much does a database lose in a container, a virtual machine, a sandbox; why; and what to change."""

__version__ = "0.1.0"
