"""PostgreSQL's settings as data: profiles, and the files that users have.

A setting's value is text as in postgresql.conf (``"128MB"``, ``"off"``). Nothing here touches a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dbtoll.errors import SpecError
from dbtoll.model.experiment import Resources
from dbtoll.servers.given import Given

PROFILES = ("default", "serial", "modern")

WHERE_IT_LIVES = frozenset(
    {
        "bonjour",
        "bonjour_name",
        "cluster_name",
        "config_file",
        "data_directory",
        "event_source",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "log_destination",
        "log_directory",
        "log_file_mode",
        "log_filename",
        "logging_collector",
        "port",
        "ssl",
        "ssl_ca_file",
        "ssl_cert_file",
        "ssl_crl_dir",
        "ssl_crl_file",
        "ssl_dh_params_file",
        "ssl_key_file",
        "stats_temp_directory",
        "syslog_facility",
        "syslog_ident",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)
"""Where a server finds its files and how it is reached: the arm's to say. Taken from a user's file they would name
files that the arm does not have. They are set aside, and the run's facts name them."""

OF_OTHERS = frozenset(
    {
        "archive_cleanup_command",
        "archive_command",
        "archive_library",
        "archive_mode",
        "primary_conninfo",
        "primary_slot_name",
        "recovery_end_command",
        "restore_command",
        "synchronized_standby_slots",
        "synchronous_standby_names",
    }
)
"""What ties its user's server to an archive or to other servers, which the arm does not have: each commit would wait for a standby
that never comes, and WAL pile up. Set aside too; how much is written to the WAL (``wal_level``) stays the user's to say."""

WHILE_ASLEEP = {"autovacuum": "off", "checkpoint_timeout": "1d", "max_wal_size": "64GB"}
"""No work by timer or by volume: an arm that slept through its time would make up for it awake (DESIGN §1.3). Rows are
frozen and analyzed when the data is loaded, checkpoints come by command between blocks."""

SAME_EVERYWHERE = {
    "log_timezone": "UTC",
    "timezone": "UTC",
    "datestyle": "iso, mdy",
    "lc_messages": "C",
    "default_text_search_config": "pg_catalog.english",
    "dynamic_shared_memory_type": "posix",
    "max_connections": "100",
    "shared_buffers": "128MB",
}
"""What initdb writes into its postgresql.conf after looking at the machine; said here, so that no two arms can
differ."""

PAGE_BYTES = 8192

INCLUDES_MAX = 10
"""As the server has it: CONF_FILE_MAX_DEPTH in src/backend/utils/misc/conffiles.c."""

_INCLUDES = ("include", "include_dir", "include_if_exists")


def profile(name: str, resources: Resources) -> dict[str, str]:
    """Settings of a profile, given what the arm gets.

    ``default``: Debian's own. ``serial``: one process for each query, which is not compiled, and a buffer pool of half
    of the memory, as the page cache needs the other half to load it from. ``modern``: what the manual (§20.4) and
    common tuning guides advise for a server of this size.
    """
    memory_mib = resources.memory_bytes >> 20
    if name == "serial":
        return {
            "shared_buffers": f"{memory_mib // 2}MB",
            "huge_pages": "off",
            "jit": "off",
            "max_parallel_workers_per_gather": "0",
            "max_parallel_maintenance_workers": "0",
        }
    if name == "modern":
        return {
            "shared_buffers": f"{memory_mib // 4}MB",
            "effective_cache_size": f"{memory_mib * 3 // 4}MB",
            "work_mem": f"{max(4, memory_mib // 128)}MB",
            "maintenance_work_mem": f"{max(64, min(2048, memory_mib // 16))}MB",
            "random_page_cost": "1.1",
            "effective_io_concurrency": "200",
            "max_worker_processes": str(max(8, resources.cpus)),
            "max_parallel_workers": str(max(1, resources.cpus)),
        }
    return {}


def buffer_pool(resources: Resources) -> dict[str, str]:
    """Of the size that was asked for, in whole pages."""
    if resources.buffer_pool_bytes is None:
        return {}
    return {"shared_buffers": f"{resources.buffer_pool_bytes // PAGE_BYTES * PAGE_BYTES >> 10}kB"}


def loading(resources: Resources) -> dict[str, str]:
    """For building a data directory: durable only when it is whole (the cache syncs it), so nothing waits for a disk.

    synchronous_commit stays on, it costs nothing without fsync: VACUUM cannot mark pages all-visible whose rows were
    committed asynchronously a moment ago (their hint bits wait for the WAL), and would leave that work to the arms.
    """
    memory_mib = resources.memory_bytes >> 20
    return {
        **SAME_EVERYWHERE,
        **WHILE_ASLEEP,
        "fsync": "off",
        "full_page_writes": "off",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "archive_mode": "off",
        "wal_recycle": "off",  # else gigabytes of spent WAL would be kept for reuse, and copied into every arm
        "shared_buffers": f"{memory_mib // 4}MB",
        "maintenance_work_mem": f"{max(64, memory_mib // 4)}MB",
        "max_parallel_maintenance_workers": str(resources.cpus),
        "jit": "off",
    }


def read(path: Path) -> dict[str, Given]:
    """Settings of a postgresql.conf and the files that it includes; of a name that comes twice the last.

    SpecError names file and line.
    """
    return _read(path, "", 0)


def parse(text: str, file: str, depth: int = 0) -> dict[str, Given]:
    """As ``read``, from text. Grammar: PostgreSQL manual §20.1.2 and src/backend/utils/misc/guc-file.l."""
    settings: dict[str, Given] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{file}:{number}"
        match = _LINE.fullmatch(line)
        if match is None:
            raise SpecError(f"{where}: this is not a setting: {line.strip()[:80]!r}", "write: name = 'value'")
        if match["name"] is None:
            continue
        name = canonical(match["name"])
        value = match["bare"] if match["quoted"] is None else _unquoted(match["quoted"])
        if name in _INCLUDES:
            for path in _included(name, Path(file).parent / value, where):
                settings |= _read(path, f"{where}: ", depth + 1)
        else:
            settings[name] = Given(value, where)
    return settings


def _read(path: Path, asked: str, depth: int) -> dict[str, Given]:
    """``asked``: where it was included, to begin an error with."""
    if depth > INCLUDES_MAX:
        raise SpecError(f"{asked}{path} is included in more than {INCLUDES_MAX} others", "look for a circle")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where = asked or f"{path}:1: "
        raise SpecError(f"{where}the settings cannot be read: {error}", "give a postgresql.conf") from error
    return parse(text, str(path), depth)


def _included(directive: str, path: Path, where: str) -> list[Path]:
    """The files that a directive means. Relative ones begin where the file lies that names them (manual §20.1.5)."""
    if directive == "include_if_exists":
        return [path] if path.exists() else []
    if directive == "include":
        return [path]
    try:
        return sorted(file for file in path.iterdir() if file.suffix == ".conf" and not file.name.startswith("."))
    except OSError as error:
        raise SpecError(f"{where}: the settings cannot be read: {error}", "give the directory of the files") from error


def canonical(name: str) -> str:
    """PostgreSQL's setting names know no case."""
    return name.lower()


def write(settings: Mapping[str, str]) -> bytes:
    """A postgresql.conf with ``settings``, sorted. SpecError for a name that is none or a value that no file can
    hold."""
    lines = []
    for name, value in sorted(settings.items()):
        if not _NAME.fullmatch(name):
            raise SpecError(f"settings: {name!r} is no name of a setting", "use letters, digits, _ and one dot")
        if name in _INCLUDES:
            raise SpecError(f"settings: {name} is no setting", "files are included by the settings file")
        if "\n" in value or "\r" in value or "\0" in value:
            raise SpecError(f"settings: the value of {name} has a line end in it", "write it on one line")
        escaped = value.replace("\\", "\\\\").replace("'", "''")
        lines.append(f"{name} = '{escaped}'\n")
    return "".join(lines).encode()


def ignored_settings(settings: Mapping[str, str], *, asleep: bool) -> tuple[dict[str, str], dict[str, str]]:
    """(what the server gets, what is said otherwise): by the arm, and, as arms are ``asleep``, by ``WHILE_ASLEEP``."""
    kept = dict(settings)
    names = WHERE_IT_LIVES | OF_OTHERS | (WHILE_ASLEEP.keys() if asleep else set())
    return kept, {name: kept.pop(name) for name in settings if name in names}


_NAME = re.compile(r"[A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)?", re.ASCII)
_LINE = re.compile(
    rf"\s*(?:(?P<name>{_NAME.pattern})(?:\s*=\s*|\s+)(?:'(?P<quoted>(?:[^'\\]|\\.|'')*)'|(?P<bare>[\w.:/+-]+)))?\s*(?:\#.*)?",
    re.ASCII,
)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unquoted(text: str) -> str:
    def meaning(match: re.Match[str]) -> str:
        escaped = match[0]
        if escaped == "''":
            return "'"
        if escaped[1] in "01234567":
            return chr(int(escaped[1:], 8) & 0xFF)
        return _ESCAPES.get(escaped[1], escaped[1])

    return re.sub(r"''|\\[0-7]{1,3}|\\.", meaning, text)
