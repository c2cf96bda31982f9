"""Builds the agent into the wheel, so that who installs the wheel needs no Rust. An editable install leaves it out."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AgentBuildHook(BuildHookInterface[Any]):
    """`cargo static` in agent/, then the binary as dbtoll/_agent/<architecture>/dbtoll-agent, and beside it its hash."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build and add the binary; the wheel then belongs to one platform but to no Python version."""
        if version == "editable":
            return
        root = Path(self.root)
        architecture = platform.machine()
        target = f"{architecture}-unknown-linux-gnu"
        cargo = shutil.which("cargo")
        if cargo is None:
            raise RuntimeError("the wheel carries the agent, which needs cargo to be built: ./dbtoll setup brings it")
        command = [cargo, "static", "--target", target]
        subprocess.run(command, cwd=root / "agent", check=True)
        build_root = Path(os.environ.get("CARGO_TARGET_DIR", root / "agent" / "target"))
        binary = build_root / target / "release" / "dbtoll-agent"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{architecture}"  # static: no libc of the host is needed
        told = (
            build_root / target / "dbtoll-agent.sha256"
        )  # the form of sha256sum(1); not beside what the next build changes
        told.write_text(f"{hashlib.sha256(binary.read_bytes()).hexdigest()}  {binary.name}\n")
        for file in (binary, told):
            build_data["force_include"][str(file)] = f"dbtoll/_agent/{architecture}/{file.name}"
