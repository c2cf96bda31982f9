"""What papers are made of: their tables and claims, what their own data say of these, and what is measured here beside them.

The papers themselves are the members of the family `dbtoll.papers`, a folder each; this package names none of them.
"""

ENVIRONMENT = "environment"
"""The variable of a part's specification that says what is measured in the place of the paper's environment."""
