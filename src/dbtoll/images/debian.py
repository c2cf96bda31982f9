"""Debian as system image: mmdebstrap with a pinned list of packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dbtoll.errors import ProgramFailed, Unavailable, UsageError
from dbtoll.images.cache import Cache, Entry
from dbtoll.images.inspect import image_facts
from dbtoll.images.oci import unpack_tar
from dbtoll.model import Json, Lack

RECIPE_VERSION = 1
"""Raise it when the hooks or options below change: the image then gets another address."""

SUITES = {
    "bookworm": ("postgresql-15", "procps", "iproute2"),
    "trixie": ("postgresql-17", "procps", "iproute2"),
}
"""Suite -> packages, each without its Recommends. The resolved versions are in the entry's facts."""

ESTIMATE_BYTES = 800 << 20
"""Measured: 361 MiB (bookworm) and 389 MiB (trixie) when done, about 120 MiB of packages and lists on the way."""

DEADLINE_S = 1800.0
"""mmdebstrap takes 24 s with a near mirror; a mirror that stalls longer than this is broken."""

_UNWANTED = ("doc", "man", "info", "locale", "i18n", "lintian", "bash-completion", "zoneinfo/right")
"""Below /usr/share; never opened by a server. i18n would only serve to make locales, and the image has C and C.UTF-8
alone."""

_HOST_APT = (
    "http",
    "https",
    "ftp",
    "socks5",
    "tor",
    "Proxy",
    "Retries",
    "ForceIPv4",
    "ForceIPv6",
    "Check-Valid-Until",
    "Check-Date",
)
"""What of the host's ``Acquire`` configuration tells how to reach a mirror; the rest is about the host itself."""

_BEFORE_PACKAGES = """
set -e
mkdir -p "$1/etc/postgresql-common"
echo 'create_main_cluster = false' > "$1/etc/postgresql-common/createcluster.conf"
"""

# 99mmdebstrap may hold the host's proxy and its password, resolv.conf and hostname are the host's: an image that is
# copied elsewhere must not carry them.
_AFTER_PACKAGES = """
set -e
mkdir -p "$1/dbtoll/data" "$1/dbtoll/run"
: > "$1/dbtoll/agent"
rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/apt/sources.list" "$1/etc/resolv.conf"
echo dbtoll > "$1/etc/hostname"
"""


def lacks() -> list[Lack]:
    """What this host lacks to build a Debian image."""
    found: list[Lack] = []
    if not shutil.which("mmdebstrap"):
        found.append(Lack("mmdebstrap", "it makes the system image from Debian packages", "apt-get install mmdebstrap"))
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        found.append(
            Lack(
                "debian-archive-keyring", "it proves where packages come from", "apt-get install debian-archive-keyring"
            )
        )
    if os.geteuid() != 0 and not shutil.which("newuidmap"):
        found.append(
            Lack(
                "uidmap",
                "without root the image is made in a user namespace; native arms need root in any case",
                "apt-get install uidmap",
            )
        )
    return found


def debian_image(
    cache: Cache,
    suite: str = "bookworm",
    mirror: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Entry:
    """Debian's ``suite`` with ``SUITES[suite]``; built at the first use (24 s with a near mirror), then taken from
    the cache.

    Without root the files belong to the caller instead of the image's users (fact ``ownership`` is ``flat``): such an
    image serves environments that map users themselves, a chroot needs root anyway.
    """
    if suite not in SUITES:
        raise UsageError(f"no image is defined for Debian {suite!r}", f"choose one of: {', '.join(SUITES)}")
    ownership = "image" if os.geteuid() == 0 else "flat"
    recipe: Json = {"version": RECIPE_VERSION, "suite": suite, "packages": list(SUITES[suite]), "ownership": ownership}

    def build(root: Path) -> Json:
        if lacking := lacks():
            raise Unavailable(f"{lacking[0].what} is missing: {lacking[0].why}", lacking[0].mend)
        progress(f"making the system image: Debian {suite} with {', '.join(SUITES[suite])}")
        if ownership == "image":
            _mmdebstrap(suite, mirror, "root", root, progress)
        else:
            with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
                archive = Path(scratch) / "root.tar"
                _mmdebstrap(suite, mirror, "unshare", archive, progress)
                with tarfile.open(archive) as tar:
                    unpack_tar(tar, root, set_owner=False)
        return {"source": f"debian {suite}", "ownership": ownership, **image_facts(root)}

    return cache.obtain("image", recipe, build, estimate_bytes=ESTIMATE_BYTES, progress=progress)


def _mmdebstrap(suite: str, mirror: str | None, mode: str, target: Path, progress: Callable[[str], None]) -> None:
    """Runs mmdebstrap into ``target`` (a directory, or a file named ….tar)."""
    with tempfile.TemporaryDirectory() as scratch:
        configuration = Path(scratch) / "host-apt.conf"
        configuration.write_text(host_apt_configuration(), encoding="utf-8")
        # Where the cache lies in a home that others may not enter, apt's own user could not write its downloads.
        options = [f"--aptopt={configuration}", '--aptopt=APT::Sandbox::User "root"']
        options += [f"--dpkgopt=path-exclude=/usr/share/{unwanted}/*" for unwanted in _UNWANTED]
        # The file of terms stays: what is passed on with the image must be passed on with its licences.
        options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
        options += [f"--essential-hook={_BEFORE_PACKAGES}", f"--customize-hook={_AFTER_PACKAGES}"]
        options += [f"--include={','.join(SUITES[suite])}", "--variant=minbase", f"--mode={mode}"]
        sources = [mirror] if mirror else host_sources(suite)
        _run_build(["mmdebstrap", *options, suite, str(target), *sources], progress)


def _run_build(argv: list[str], progress: Callable[[str], None]) -> None:
    """Runs a long build program; its ``I: …`` lines are progress, its last lines go into the error.

    The kernel ends it with us (``setpriv``). It inherits the cache's lock (``close_fds=False``; the lock is
    inheritable), so that nobody removes the half-built image before its last process has ended.
    """
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(Path.home()), **proxies}
    last: deque[str] = deque(maxlen=12)
    with (
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *argv],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            close_fds=False,
        ) as process,
        _ended(process),
        _deadline(process),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            if line.startswith("I: ") and "hook" not in line:
                progress(line[3:].rstrip())
        if process.wait() != 0:
            raise ProgramFailed(
                f"{argv[0]} ended with {process.returncode}: " + " | ".join(last),
                "the last lines say why; a proxy is set in the apt configuration, a mirror by the option mirror",
            )


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens inside, the program and all that it started are gone afterwards; first asked, so that it
    tidies up."""
    try:
        yield
    finally:
        for wanted in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is not None:
                break
            os.killpg(process.pid, wanted)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30.0)
        assert process.stdout is not None
        process.stdout.read()  # its end is the end of the last process that could write to it


@contextmanager
def _deadline(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the program when DEADLINE_S have passed, so that reading its output cannot block for ever."""
    timer = threading.Timer(DEADLINE_S, process.terminate)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def host_apt_configuration() -> str:
    """How this host's apt reaches its mirrors: proxies, certificates, credentials' files, date checks; as apt.conf
    text.

    mmdebstrap runs the host's apt with its own configuration directory, so without this a host behind a proxy finds
    nothing.
    """
    if not shutil.which("apt-config"):
        return ""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=30).stdout
    wanted = tuple(f"Acquire::{name}{end}" for name in _HOST_APT for end in (" ", "::"))
    lines = [line for line in dump.splitlines() if line.startswith(wanted)]
    # Both are read by the apt that runs on this host; relative, they would be looked for in the image.
    lines += ['Dir::Etc::netrc "/etc/apt/auth.conf";', 'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";']
    return "\n".join(lines) + "\n"


def host_sources(suite: str) -> list[str]:
    """``deb`` lines for ``suite`` from the mirrors that this host uses; [] (mmdebstrap's default) if it has none of
    Debian's.

    Only archives that sign themselves as Debian count: a third party's packages would make another image on another
    host.
    """
    if not shutil.which("apt-get"):
        return []
    listing = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(CODENAME)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,  # without lists of packages there is nothing to tell
    )
    sources: list[str] = []
    for line in listing.stdout.splitlines():
        origin, url, release, component, codename = line.split("|")
        if origin != "Debian" or component != "main":
            continue
        # The archive's own codename carries the part of the release ("bookworm-security"); a host may name it "stable".
        _, _, part = codename.partition("-")
        if part not in ("", "updates", "security") or release.endswith("-backports"):
            continue
        sources.append(f"deb {url} {suite}{'-' + part if part else ''} main")
    return sorted(set(sources))
