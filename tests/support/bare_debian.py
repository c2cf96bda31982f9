"""A Debian of its own below a directory, smallest first: what a newcomer's machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dbtoll.contracts.machines import in_own_mounts

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
SETTINGS = ("etc/resolv.conf", "etc/pip.conf", "etc/apt/apt.conf.d", "usr/local/share/ca-certificates")
"""Of this machine: how packages of Debian and of Python are reached."""


@contextmanager
def bare_debian(
    root: Path, suite: str, packages: tuple[str, ...], cache: Path, *, architectures: str = ""
) -> Iterator[Path]:
    """The root, with /proc, /sys and /dev of this machine, and its ``cache`` as root's; skips where none can be made.

    ``architectures``: of its packages, e.g. ``amd64,arm64``; by default this machine's.
    """
    options = [f"--architectures={architectures}"] if architectures else []
    made = subprocess.run(
        ["mmdebstrap", "--variant=minbase", *options, f"--include={','.join(packages)}", suite, root],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no bare Debian could be made: {made.stderr[-300:]}")
    for name in SETTINGS:
        source, place = Path("/", name), root / name
        if source.is_dir():
            shutil.copytree(source, place, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, place)
    mounts: list[Path] = []
    home = root / "root/.cache/dbtoll"
    home.mkdir(parents=True)
    try:
        for words, at in (
            (["-t", "proc", "proc"], root / "proc"),
            (["--rbind", "/sys"], root / "sys"),
            (["--rbind", "/dev"], root / "dev"),
            (["--bind", cache], home),
        ):
            subprocess.run(["mount", *words, at], check=True)
            subprocess.run(["mount", "--make-rslave", at], check=True)
            mounts.append(at)
        subprocess.run(["chroot", root, "update-ca-certificates"], check=True, capture_output=True)
        yield root
    finally:
        for at in reversed(mounts):
            subprocess.run(["umount", "--recursive", "--lazy", at], check=True)


# The kernel makes no user namespace in a chroot, so the root is changed for good, in mounts of its own.
AS_A_USER = """
set -e
root=$1 user=$2
shift 2
mount --rbind "$root" "$root"
cd "$root"
mkdir -p .outside
pivot_root . .outside
cd /
umount --lazy .outside
exec setpriv --reuid="$user" --regid="$user" --init-groups sh -c 'cd && exec "$@"' sh "$@"
"""


def inside(
    root: Path, *words: str, user: str | None = None, timeout_s: float = 900
) -> subprocess.CompletedProcess[str]:
    """A command in it: by chroot(2) as its root, or as that user, who has a home there, with it as the root of all mounts."""
    home = f"/home/{user}" if user not in (None, "root") else "/root"
    environ: Mapping[str, str] = {
        "HOME": home,
        "PATH": f"{home}/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        **dict.fromkeys(("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CARGO_HTTP_CAINFO"), CERTIFICATES),
        **{name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "https_proxy", "http_proxy")},
    }
    entering = in_own_mounts("sh", "-c", AS_A_USER, "sh", str(root), user) if user else ["chroot", str(root)]
    return subprocess.run(
        [*entering, *words], env=environ, capture_output=True, text=True, timeout=timeout_s, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
