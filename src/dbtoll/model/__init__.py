"""The vocabulary (docs/GLOSSARY.md) as frozen types; imports nothing of the project.

At rest times are integer nanoseconds and sizes integer bytes; a missing value is None with a reason, never 0.
"""
