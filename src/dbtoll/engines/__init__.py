"""Database servers, each seen through a Machine (interfaces.Engine). A module with a class ``Engine`` is one; its
name is the file's.

They know no environment: whatever they start, they start through the machine, and they write only below ``/dbtoll``.
"""
