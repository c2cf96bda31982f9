"""Builds dbtoll's own programs into the wheel, so that who installs it needs no Rust. An editable install leaves them out."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = {"x86_64": ("x86-64", "amd64"), "aarch64": ("aarch64", "arm64")}
"""As `uname -m` says -> what Debian calls it in the name of a cross compiler, and in that of a package's architecture."""


class AgentBuildHook(BuildHookInterface[Any]):
    """`cargo static` in agent/, then the binary as dbtoll/_agent/<architecture>/dbtoll-agent, and beside it its hash; and the
    server of embedded engines (embedded/), which is linked to the C library of the image.

    DBTOLL_WHEEL_ARCHITECTURES: for which, e.g. ``x86_64 aarch64``; by default for this machine's alone. Another one's is built
    with Debian's cross compiler and Rust's library for it.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build and add the binaries. They belong to no Python version; a wheel that has all of them belongs to no platform."""
        if version == "editable":
            return
        wanted = sorted(set(os.environ.get("DBTOLL_WHEEL_ARCHITECTURES", platform.machine()).split()))
        for architecture in wanted:
            binary = self._built(architecture, "agent", "static")
            # Its hash, in the form of sha256sum(1); not beside what the next build changes.
            told = binary.parents[1] / "dbtoll-agent.sha256"
            told.write_text(f"{hashlib.sha256(binary.read_bytes()).hexdigest()}  {binary.name}\n")
            for file in (binary, told, self._built(architecture, "embedded", "build", "--release", "--locked")):
                build_data["force_include"][str(file)] = f"dbtoll/_agent/{architecture}/{file.name}"
        # The agent is static, and the server of embedded engines runs in the image: no libc of the host is needed.
        every = wanted == sorted(ARCHITECTURES)
        build_data["pure_python"] = every
        build_data["tag"] = "py3-none-any" if every else f"py3-none-manylinux_2_17_{wanted[0]}"

    def _built(self, architecture: str, crate: str, *build: str) -> Path:
        folder = Path(self.root) / crate
        target = f"{architecture}-unknown-linux-gnu"
        cargo = shutil.which("cargo")
        if cargo is None:
            raise RuntimeError("the wheel carries programs that need cargo to be built: ./dbtoll setup brings it")
        environ = dict(os.environ)
        if architecture != platform.machine():
            environ[f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER"] = _cross_compiler(architecture, target)
        subprocess.run([cargo, *build, "--target", target], cwd=folder, env=environ, check=True)
        return Path(os.environ.get("CARGO_TARGET_DIR", folder / "target")) / target / "release" / f"dbtoll-{crate}"


def _cross_compiler(architecture: str, target: str) -> str:
    """Its name. RuntimeError, with what brings it, where it or Rust's library for the target is missing."""
    name, debian = ARCHITECTURES[architecture]
    compiler = f"{architecture}-linux-gnu-gcc"
    asked = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parent / "agent",
    )  # fmt: skip
    if shutil.which(compiler) is None or not any(Path(asked.stdout.strip()).glob("libstd-*.rlib")):
        raise RuntimeError(
            f"there is no compiler for {architecture}: dpkg --add-architecture {debian} && apt-get update && apt-get install"
            f" gcc-{name}-linux-gnu libc6-dev-{debian}-cross libstd-rust-dev:{debian} (Debian 12: libstd-rust-web-dev:{debian})"
        )
    return compiler
