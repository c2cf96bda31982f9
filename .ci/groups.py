"""Prints the packages of the named dependency groups of pyproject.toml, one a line (Debian 12's pip knows no groups)."""

import sys
import tomllib
from pathlib import Path

groups = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["dependency-groups"]
print("\n".join(package for name in sys.argv[1:] for package in groups[name]))
