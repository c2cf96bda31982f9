"""Debian as system image: mmdebstrap with a pinned list of packages."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from dbtoll import namespaces
from dbtoll.errors import ProgramFailed, Unavailable, UsageError
from dbtoll.images import own_programs, wheels
from dbtoll.images.building import run_build
from dbtoll.images.cache import Cache, CacheEntry
from dbtoll.images.inspect import image_facts
from dbtoll.model.json import Json
from dbtoll.model.machine import MissingRequirement
from dbtoll.model.software import NOTHING, Software

RECIPE_VERSION = 2
"""Raise it when the hooks or options below change: the image then gets another address."""

SUITE = "bookworm"
"""Of images and kernels, unless another is asked for."""

SUITES = {
    "bookworm": ("procps", "iproute2"),
    "trixie": ("procps", "iproute2"),
}
"""Suite -> packages of every image, each without its Recommends. The resolved versions are in the entry's facts."""


ESTIMATE_BYTES = 800 << 20
"""Measured: 361 MiB (bookworm) and 389 MiB (trixie) when done, about 120 MiB of packages and lists on the way."""

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

# 99mmdebstrap may hold the host's proxy and its password, resolv.conf and hostname are the host's: an image that is
# copied elsewhere must not carry them.
_AFTER_PACKAGES = """
set -e
mkdir -p "$1/dbtoll/data" "$1/dbtoll/run"
: > "$1/dbtoll/agent"
rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/apt/sources.list" "$1/etc/resolv.conf"
echo dbtoll > "$1/etc/hostname"
"""


def missing_requirements() -> list[MissingRequirement]:
    """What this host lacks to build a Debian image."""
    found: list[MissingRequirement] = []
    if not shutil.which("mmdebstrap"):
        found.append(
            MissingRequirement(
                "mmdebstrap", "it makes the system image from Debian packages", "apt-get install mmdebstrap"
            )
        )
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        found.append(
            MissingRequirement(
                "debian-archive-keyring", "it proves where packages come from", "apt-get install debian-archive-keyring"
            )
        )
    if lack := namespaces.lacking():
        found.append(MissingRequirement(*lack))
    return found


def debian_image(
    cache: Cache,
    suite: str = SUITE,
    mirror: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    software: Software = NOTHING,
) -> CacheEntry:
    """Debian's ``suite`` with ``SUITES[suite]`` and ``software``; built at the first use (24 s with a near mirror),
    then taken from the cache."""
    if suite not in SUITES:
        raise UsageError(f"no image is defined for Debian {suite!r}", f"choose one of: {', '.join(SUITES)}")
    software |= software.of_suite(suite)
    packages = [*SUITES[suite], *software.packages]
    scripts = {"before": software.before, "after": software.after}
    recipe: Json = {"version": RECIPE_VERSION, "suite": suite, "packages": packages, "ownership": "image"} | scripts
    if software.wheels:
        recipe["wheels"] = [wheels.recipe(wheel) for wheel in software.wheels]
    if software.programs:
        recipe["programs"] = {
            name: [own_programs.source_of(name).digest, place] for name, place in software.programs.items()
        }

    def build(root: Path) -> Json:
        taken = [wheels.fetched(cache, wheel, progress) for wheel in software.wheels]
        made = {name: own_programs.made(cache, name, progress) for name in software.programs}
        with_what = [*packages, *(wheel.project for wheel in software.wheels)]
        progress(f"making the system image: Debian {suite} with {', '.join(with_what)}")
        mmdebstrap(suite, mirror, _options(packages, software), root, progress)
        for entry in taken:
            shutil.copytree(entry.content, root, dirs_exist_ok=True)
        for name, place in software.programs.items():
            (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy2(made[name], root / place.lstrip("/") / name)
        facts: Json = {"source": f"debian {suite}", **image_facts(root)}
        return facts | ({"wheels": [entry.facts for entry in taken]} if taken else {})

    return cache.obtain("image", recipe, build, estimate_bytes=ESTIMATE_BYTES, progress=progress)


def _options(packages: list[str], software: Software) -> list[str]:
    options = [f"--dpkgopt=path-exclude=/usr/share/{unwanted}/*" for unwanted in _UNWANTED]
    # The file of terms stays: what is passed on with the image must be passed on with its licences.
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    options += [f"--essential-hook={software.before}"] if software.before else []
    options += [f"--customize-hook={script}" for script in (_AFTER_PACKAGES, software.after) if script]
    return [*options, f"--include={','.join(packages)}", "--variant=minbase"]


def mmdebstrap(suite: str, mirror: str | None, options: list[str], root: Path, progress: Callable[[str], None]) -> None:
    """Runs mmdebstrap with ``options`` into the empty directory ``root``, from ``mirror`` or from this host's mirrors.

    Raises Unavailable, ProgramFailed.
    """
    if lacking := missing_requirements():
        raise Unavailable(f"{lacking[0].what} is missing: {lacking[0].why}", lacking[0].hint)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        configuration = Path(scratch) / "host-apt.conf"
        configuration.write_text(host_apt_configuration(), encoding="utf-8")
        # Where the cache lies in a home that others may not enter, apt's own user could not write its downloads.
        shared = [f"--aptopt={configuration}", '--aptopt=APT::Sandbox::User "root"']
        sources = [mirror] if mirror else host_sources(suite)
        run_build(
            ["mmdebstrap", *shared, *options, "--mode=root", suite, str(root), *sources],
            progress,
            hint="the last lines say why; a proxy is set in the apt configuration, a mirror by the option mirror",
        )


# The package by its name alone, without what it depends on, and unpacked without running anything of it. What apt says of one
# that it cannot fetch, or that is not what the signed list says, is kept: else it would be lost among mmdebstrap's own words.
_TAKE_PACKAGE = """
set -e
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
mkdir "$1/package"
cd "$1/package"
apt-get --quiet=2 download {package} 2> errors || exit 0
dpkg-deb --show --showformat '${{Package}} ${{Version}}' ./*.deb > name
dpkg-deb --extract ./*.deb "$1"
"""


def take_package(
    suite: str, mirror: str | None, package: str, root: Path, progress: Callable[[str], None] = lambda line: None
) -> Json:
    """Unpacks one package of Debian's ``suite`` into the new directory ``root``; nothing is installed.

    ``package``: its name, or what a shell makes its name of. Facts: ``package``, ``version``, and ``sha256`` of the file that
    apt fetched and compared with the signed list. Raises what `mmdebstrap` raises.
    """
    root.mkdir()
    mmdebstrap(
        suite, mirror, ["--variant=extract", f"--extract-hook={_TAKE_PACKAGE.format(package=package)}"], root, progress
    )
    if not (root / "package" / "name").exists():
        errors = (root / "package" / "errors").read_text(encoding="utf-8", errors="replace").splitlines()
        said = next((line for line in errors if line.startswith("E: ")), "E: apt-get download failed")
        raise ProgramFailed(
            f"a package of Debian {suite} was not fetched: {said[3:]}", "try again, or give another mirror"
        )
    name, version = (root / "package" / "name").read_text(encoding="ascii").split()
    (fetched,) = (root / "package").glob("*.deb")
    with fetched.open("rb") as file:
        return {"package": name, "version": version, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


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
