"""Debian's kernel for guests: taken out of its package, nothing of it installed on the host.

What is kept: ``vmlinuz``, ``config``, ``modules/NAME.ko`` (unpacked) for the modules below and all that they need, and
``modules.json`` (see ``dbtoll.kernel_modules``).
"""

from __future__ import annotations

import json
import lzma
import platform
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dbtoll.errors import ImageError, UsageError
from dbtoll.images.cache import Cache
from dbtoll.images.debian import SUITE, SUITES, take_package
from dbtoll.images.within import Root
from dbtoll.model.json import Json
from dbtoll.model.machine import Artifact

RECIPE_VERSION = 1
"""Raise it when something else comes to be kept of the same package."""

PACKAGES = {"x86_64": "linux-image-cloud-amd64", "aarch64": "linux-image-cloud-arm64"}
"""Processor -> the package that depends on the suite's newest cloud kernel: small, and made for virtual machines."""

ESTIMATE_BYTES = 500 << 20

FILE_MAX_BYTES = 256 << 20
"""Of a package's files, unpacked. Kernels have about 10 MB, the largest modules 5."""

MODULES = (
    *("virtio_pci", "virtio_mmio", "virtio_blk", "virtio_scsi", "sd_mod", "virtio_console", "virtio_net", "virtio_rng"),
    *("ext4", "crc32c_generic", "overlay", "loop", "fuse", "tun"),
    # Containers in a guest: what a Docker daemon asks of the kernel (contrib/check-config.sh in moby), by iptables-nft.
    *("veth", "bridge", "br_netfilter", "ip_tables", "iptable_filter", "iptable_nat", "ip6_tables", "ip6table_filter"),
    *("ip6table_nat", "nf_tables", "nft_compat", "nft_chain_nat", "nf_nat", "nf_conntrack", "nf_conntrack_netlink"),
    *("xt_conntrack", "xt_MASQUERADE", "xt_addrtype", "xt_nat", "xt_mark", "xt_tcpudp", "xt_comment", "xfrm_user"),
)
"""What guests may be asked to load. Each is in the kernel, one way or the other, or the kernel is refused."""

OPTIONAL = (
    *("kvm_intel", "kvm_amd", "crc32c_intel"),  # not on arm64
    *("9pnet_virtio", "9p", "virtiofs"),
    *("xt_set", "ip_set", "ip_set_hash_net"),  # Docker since 28
)
"""What some of Debian's cloud kernels lack."""

_NAME = "$(apt-cache depends {package} | sed -n 's/^ *Depends: \\(linux-image-[0-9].*\\)$/\\1/p')"
"""What the shell makes the name of the kernel's own package of."""

Progress = Callable[[str], None]


def debian_kernel(
    cache: Cache, suite: str = SUITE, mirror: str | None = None, progress: Progress = lambda line: None
) -> tuple[Artifact, Json]:
    """The cloud kernel of Debian's ``suite``; fetched at the first use, then taken from the cache.

    Facts: ``package``, ``version``, ``sha256`` of the package, ``release`` of the kernel (uname -r), ``built_in`` (which of the
    modules asked for), ``missing`` (which of the optional ones). Raises Unavailable, UsageError, ProgramFailed,
    ImageError.
    """
    if suite not in SUITES:
        raise UsageError(f"no kernel is defined for Debian {suite!r}", f"choose one of: {', '.join(SUITES)}")
    package = PACKAGES.get(platform.machine())
    if package is None:
        raise UsageError(
            f"Debian has no cloud kernel for {platform.machine()}", "name a kernel of your own: kernel=PATH"
        )
    recipe: Json = {
        "version": RECIPE_VERSION,
        "suite": suite,
        "package": package,
        "modules": MODULES,
        "optional": OPTIONAL,
    }

    def build(content: Path) -> Json:
        progress(f"taking the kernel out of Debian {suite}'s {package}")
        with tempfile.TemporaryDirectory(dir=content.parent) as scratch:
            root = Path(scratch) / "root"
            taken = take_package(suite, mirror, _NAME.format(package=package), root, progress)
            return {**taken, **keep(root, content, MODULES, OPTIONAL)}

    entry = cache.obtain("kernel", recipe, build, estimate_bytes=ESTIMATE_BYTES, progress=progress)
    return entry.artifact(), entry.facts


def keep(root: Path, content: Path, modules: Iterable[str], optional: Iterable[str]) -> Json:
    """Copies what guests need from a kernel package that was unpacked in ``root`` to ``content``; returns facts.

    Raises ImageError if there is not exactly one kernel, or one of ``modules`` is neither in it nor beside it.
    """
    kernel = Kernel.found(root)
    (content / "vmlinuz").write_bytes(kernel.read(root / "boot" / f"vmlinuz-{kernel.release}"))
    (content / "config").write_bytes(kernel.read(root / "boot" / f"config-{kernel.release}"))
    asked = [*modules, *optional]
    absent = [name for name in asked if name not in kernel.built_in and name not in kernel.files]
    if lacking := [name for name in modules if name in absent]:
        raise ImageError(f"kernel {kernel.release} has no module {', '.join(lacking)}", "give another kernel")
    chosen = closed(kernel, [name for name in asked if name in kernel.files])
    (content / "modules").mkdir()
    for module in chosen.values():
        (content / "modules" / f"{module.name}.ko").write_bytes(module.content)
    built_in = sorted(name for name in asked if name in kernel.built_in)
    table: dict[str, list[str] | None] = dict.fromkeys(built_in)
    table |= {module.name: needs_of(module, chosen) for module in chosen.values()}
    (content / "modules.json").write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return {"release": kernel.release, "built_in": built_in, "missing": sorted(absent)}


@dataclass(frozen=True)
class Module:
    """A kernel module: its name as the kernel has it (never with a hyphen) and its file, unpacked."""

    name: str
    content: bytes

    @cached_property
    def information(self) -> list[tuple[str, str]]:
        """(tag, value) of its section .modinfo, in order; a tag may come more than once."""
        fields = section(self.content, b".modinfo", self.name).split(b"\0")
        pairs = (field.decode("utf-8", "replace").partition("=") for field in fields)
        return [(tag, value) for tag, _, value in pairs if tag]

    def values(self, tag: str) -> list[str]:
        return [value for each, value in self.information if each == tag]

    @property
    def depends(self) -> list[str]:
        """The modules whose symbols it uses."""
        return [plain(name) for value in self.values("depends") for name in value.split(",") if name]

    @property
    def soft(self) -> list[str]:
        """What it wants loaded before it, if there is such a thing: modules, or aliases (modprobe.d(5), softdep)."""
        found, wanted = [], False
        for word in " ".join(self.values("softdep")).split():
            if word in ("pre:", "post:"):
                wanted = word == "pre:"
            elif wanted:
                found.append(plain(word))
        return found

    @property
    def aliases(self) -> set[str]:
        return {plain(value) for value in self.values("alias")}


def plain(name: str) -> str:
    """A module's name as the kernel has it: files and ``depends`` also write hyphens."""
    return name.replace("-", "_")


def closed(kernel: Kernel, names: Iterable[str]) -> dict[str, Module]:
    """``names`` and all that they need and what they want, by name; without what is built in."""
    found: dict[str, Module] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name in kernel.built_in:
            continue
        module = found[name] = kernel.module(name)
        waiting += [*module.depends, *(wanted for wanted in module.soft if wanted in kernel.files)]
    return found


def needs_of(module: Module, modules: dict[str, Module]) -> list[str]:
    """What must be loaded before ``module``, of ``modules``: what it depends on, what it wants by name or by alias.

    ext4 wants ``crc32c``, an alias of all modules that can compute it; the kernel takes the fastest that is loaded.
    """
    wanted = set(module.soft)
    soft = (other.name for other in modules.values() if other.name in wanted or other.aliases & wanted)
    return sorted({*module.depends, *soft} & modules.keys() - {module.name})


@dataclass(frozen=True)
class Kernel:
    """A kernel in a package that was unpacked in ``root``: its modules' files and what is built in, by plain names."""

    root: Path
    release: str
    files: dict[str, Path]
    built_in: set[str]

    @classmethod
    def found(cls, root: Path) -> Kernel:
        releases = [path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")]
        places = [root / place / release for release in releases for place in ("usr/lib/modules", "lib/modules")]
        places = [place for place in places if place.is_dir()]
        if len(releases) != 1 or not places:
            raise ImageError(
                f"{len(releases)} kernels and {len(places)} sets of modules in a package", "give another suite"
            )
        files = {plain(path.name.partition(".ko")[0]): path for path in places[0].rglob("*.ko*")}
        listed = _read(root, places[0] / "modules.builtin").decode("utf-8", "replace").split()
        return cls(root, releases[0], files, {plain(Path(line).name.partition(".ko")[0]) for line in listed})

    def read(self, path: Path) -> bytes:
        """A file of the package. Raises ImageError if there is none."""
        return _read(self.root, path)

    def module(self, name: str) -> Module:
        """A module, unpacked. Raises ImageError if it is no file."""
        path = self.files.get(name)
        if path is None:
            raise ImageError(f"kernel {self.release} has no module {name}", "give another kernel")
        if path.suffix == ".xz":
            return Module(name, _decompressed(self.read(path), name))
        if path.suffix == ".ko":
            return Module(name, self.read(path))
        raise ImageError(f"{path.name} is packed in a way that is not known", "give another kernel")


def _read(root: Path, path: Path) -> bytes:
    """Links are followed within the package alone."""
    with Root(root) as package:
        content = package.read(str(path.relative_to(root)), FILE_MAX_BYTES)
    if content is None:
        raise ImageError(f"{path.name} is no file of the package", "give another kernel")
    return content


def _decompressed(packed: bytes, name: str) -> bytes:
    unpacking = lzma.LZMADecompressor()
    try:
        content = unpacking.decompress(packed, FILE_MAX_BYTES)
    except lzma.LZMAError as error:
        raise ImageError(f"module {name} is damaged: {error}", "give another kernel") from error
    if not unpacking.eof:
        raise ImageError(f"module {name} is cut off, or has more than {FILE_MAX_BYTES} bytes", "give another kernel")
    return content


def section(elf: bytes, wanted: bytes, name: str) -> bytes:
    """The section ``wanted`` of a 64-bit little-endian ELF file (elf(5)). Raises ImageError if there is none."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ImageError(f"module {name} is not a 64-bit ELF file", "give another kernel")
    table, size, count, names_index = (_number(elf, at, bytes_) for at, bytes_ in ((40, 8), (58, 2), (60, 2), (62, 2)))
    headers = [elf[table + index * size : table + (index + 1) * size] for index in range(count)]
    contents = [(_number(header, 0, 4), _number(header, 24, 8), _number(header, 32, 8)) for header in headers]
    if names_index < count:
        _, names_at, names_size = contents[names_index]
        names = elf[names_at : names_at + names_size]
        for name_at, at, length in contents:
            if names[name_at:].partition(b"\0")[0] == wanted:
                return elf[at : at + length]
    raise ImageError(f"module {name} has no section {wanted.decode()}", "give another kernel")


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
