"""Machines with a kernel of their own."""
