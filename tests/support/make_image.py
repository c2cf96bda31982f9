"""Container images made for tests, member by member, in every form that dbtoll reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Member = tuple[str, bytes | None, dict[str, Any]]
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def deep(place: Path, levels: int) -> None:
    """Directories within directories, deeper than a path can say."""
    handle = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)


def file(name: str, content: bytes = b"x", **more: Any) -> Member:
    return name, content, more


def directory(name: str, **more: Any) -> Member:
    return name, None, {"type": tarfile.DIRTYPE, "mode": 0o755, **more}


def link(name: str, to: str) -> Member:
    return name, None, {"type": tarfile.SYMTYPE, "linkname": to}


def hard_link(name: str, to: str) -> Member:
    return name, None, {"type": tarfile.LNKTYPE, "linkname": to}


def layer(*members: Member) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content, more in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content or b""))
    return packed.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def as_layout(path: Path, layers: list[bytes], *, pack: Callable[[bytes], bytes] = gzip.compress) -> Path:
    """An OCI image layout in a directory."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, Any]:
        (blobs / sha256(data)).write_bytes(data)
        return {"digest": f"sha256:{sha256(data)}", "size": len(data)}

    diff_ids = [f"sha256:{sha256(data)}" for data in layers]
    configuration = {"config": {"Env": ["PATH=/bin"]}, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {"config": blob(json.dumps(configuration).encode()), "layers": [blob(pack(data)) for data in layers]}
    here = {**blob(json.dumps(manifest).encode()), "platform": {"os": "linux", "architecture": ARCHITECTURE}}
    other = {"digest": "sha256:0", "platform": {"os": "plan9", "architecture": "sparc"}}
    inner = blob(json.dumps({"manifests": [other, here]}).encode())
    (path / "index.json").write_text(json.dumps({"manifests": [inner]}))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return path


def as_docker_save(path: Path, layers: list[bytes]) -> Path:
    """What ``docker save`` wrote before version 25."""
    configuration = json.dumps({"rootfs": {"diff_ids": [f"sha256:{sha256(data)}" for data in layers]}}).encode()
    names = [f"{index}/layer.tar" for index in range(len(layers))]
    manifest = json.dumps([{"Config": "configuration.json", "RepoTags": ["x:1"], "Layers": names}]).encode()
    members = [file("manifest.json", manifest), file("configuration.json", configuration)]
    members += [file(name, data) for name, data in zip(names, layers, strict=True)]
    path.write_bytes(layer(*members))
    return path
