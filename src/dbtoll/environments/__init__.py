"""Environments: each takes a machine and yields a machine (interfaces.Environment). A module with a class
``Environment`` is one.

They act only through the machine that they are opened on, never on files of the controller, so they nest.
"""
