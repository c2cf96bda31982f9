"""Datasets: a workload loaded once into an engine, kept as a stopped data directory, copied into every arm (DESIGN §4).

The *master* lies in the cache and is never started; for guests there is a second one, the same as a disk (``disk``).
Every start of an arm gets a *copy*: the same pages in another place on the disk.
"""

from __future__ import annotations

import hashlib
import posixpath
import random
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib import resources as packaged
from pathlib import Path

from dbtoll.errors import AgentFailure, DbtollError, ProgramFailed
from dbtoll.images.cache import SPARE_BYTES, Cache, CacheEntry, can_go_on, let_go_on, no_room
from dbtoll.interfaces.engine import DatabasesEngine, Engine, SchemasEngine
from dbtoll.interfaces.machine import Machine, Server
from dbtoll.interfaces.workload import ResumableWorkload, Workload
from dbtoll.machines.page_cache import COPY_DEADLINE_S, write_back_and_drop
from dbtoll.model.experiment import Resources
from dbtoll.model.json import Json
from dbtoll.model.layout import ONE_UNIT, Layout, Unit
from dbtoll.model.machine import DATA, Address, Artifact, Provision, ServerPlace

RECIPE_VERSION = 1
"""Raise it when the same engine and workload come to be loaded into other pages."""

SERVER_BYTES = 256 << 20
"""A server's own files and its log while it loads."""

PLACES = 256
"""For the copies of a run: so many that the last minutes' are seldom met again (docs/CALIBRATION.md, "A fresh machine")."""

MachineOpener = Callable[[tuple[Provision, ...]], Machine]
"""Opens an arm of the image with these provisions. Whoever calls ``build`` says in which environment the loading is
done."""


def build(
    cache: Cache,
    open_machine: MachineOpener,
    engine: Engine,
    workload: Workload,
    *,
    image: Artifact,
    resources: Resources,
    layout: Layout = ONE_UNIT,
    estimate_bytes: int = 1 << 30,
    progress: Callable[[str], None] = lambda line: None,
) -> CacheEntry:
    """The master of ``workload`` in ``engine`` as ``image`` has it; loaded at the first use, then taken from the cache.

    ``resources``: what the loading server gets (its settings are part of the recipe, as they decide how rows are laid
    out). ``layout``: what the server shall hold (`Layout.in_server`): each database (`DatabasesEngine`) and each schema in it
    (`SchemasEngine`) is loaded by itself, with the same rows; the ``workload`` is of all tenants that share its tables.
    ``estimate_bytes``: `Workload.estimate_bytes`. The entry's facts: ``load`` (the workload's), ``engine``
    (the engine's, taken when the load was done), ``data_bytes``.
    """
    settings = engine.load_settings(resources)
    with open_machine(()) as machine:
        engine_key = engine.key(machine)
    recipe: Json = {
        "version": RECIPE_VERSION,
        "engine": engine.name,
        "engine_key": engine_key,
        "load_settings": settings,
        "workload": workload.key(),
        "image": image.key,
    }
    # Of tenants that share tables the workload's key tells.
    recipe |= {
        name: many for name, many in {"databases": layout.databases, "schemas": layout.schemas}.items() if many > 1
    }
    if engine.sql.scripts is not None:
        recipe["scripts"] = _scripts_of(engine.sql.scripts)

    def load(content: Path) -> Json:
        place = Artifact(key=f"dataset-{content.parent.name}", path=str(content))
        goes_on = can_go_on(content.parent)
        progress(
            f"{'going on with' if goes_on else 'loading'} {workload.name} {'in' if goes_on else 'into'} {engine.name}"
        )
        with open_machine((Provision(place, DATA, writable=True),)) as machine:
            if not goes_on:
                engine.create(machine, DATA)
            if isinstance(workload, ResumableWorkload):
                let_go_on(content)
            server = engine.start(machine, ServerPlace(), settings)
            for unit in layout.units:
                if unit.key:
                    continue  # its rows are there
                each = _made_for(unit, machine, engine, server)
                load_facts = workload.load(machine, engine.sql, each, progress)
                if unit.schema + 1 < layout.schemas:
                    continue  # what follows is of the whole database
                with closing(machine.serial(each.address, connection="persistent")) as session:
                    progress("statistics, frozen rows, checkpoint")
                    engine.finish_load(session)
                    engine_facts = engine.facts(session)
            engine.stop(machine, server)
            data_bytes = tree_bytes(machine, DATA)
        return {"load": load_facts, "engine": engine_facts, "data_bytes": data_bytes}

    needed_bytes = SERVER_BYTES + layout.sets_of_tables * estimate_bytes
    return cache.obtain("dataset", recipe, load, estimate_bytes=needed_bytes, progress=progress)


@dataclass(slots=True)
class _Place:
    """A server (interfaces.Server) as one that has this database and schema only."""

    address: Address
    pid: int | None
    network: Address | None


def _made_for(unit: Unit, machine: Machine, engine: Engine, server: Server) -> Server:
    """Its database and schema, made here unless they are the first ones, which are there."""
    its = server.address.of(unit)
    if unit.database and not unit.schema:
        assert isinstance(engine, DatabasesEngine)
        with closing(machine.serial(server.address, connection="persistent")) as session:
            engine.create_database(session, its.database)
    if its.schema is not None:
        assert isinstance(engine, SchemasEngine)
        with closing(machine.serial(replace(its, schema=None), connection="persistent")) as session:
            engine.create_schema(session, its.schema)
    return _Place(its, server.pid, None)


def _scripts_of(package: str) -> str:
    """A digest of the scripts that an engine brings along."""
    digest = hashlib.sha256()
    for folder in sorted(packaged.files(package).iterdir(), key=lambda each: each.name):
        for file in sorted(folder.iterdir(), key=lambda each: each.name) if folder.is_dir() else ():
            if file.name.endswith(".sql"):
                digest.update(f"{folder.name}/{file.name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def places(machine: Machine, directory: str) -> list[str]:
    """Makes directories in ``directory`` (made here) for the copies of a run, each in a part of the disk of its own; in
    random order, to be used in turn. They stay when a copy is removed.

    Without a journal ext4 does not give out an inode again that was freed in the last minutes, and looks at each of them
    for each new file (fs/ext4/ialloc.c, recently_deleted). Side by side, or where the copy before was, a copy took three
    times as long, and by chance ten times. So ext4 is told that these directories have nothing to do with one another
    (chattr(1), T). It makes each in the block group that holds the fewest (find_group_orlov): made one by one, and removed
    with their copies, they would be in the same few again.
    """
    machine.run(["mkdir", "-p", directory])
    with suppress(DbtollError):  # no such program
        machine.run(["chattr", "+T", directory], check=False)  # refused where it is no ext4
    made = [f"{directory}/{number}" for number in range(PLACES)]
    machine.run(["mkdir", "-p", *made])
    random.shuffle(made)
    return made


def fresh_copy(machine: Machine, master: Artifact, target: str) -> None:
    """Copies the master, a directory or a file, to ``target`` (made here) on the machine that holds both. When it
    returns, the copy is on the disk and no page of its larger files is in the page cache; ``read_in`` brings those of a
    directory back. Raises Unavailable if the disk lacks room.

    Blocks are shared where the file system can (reflink); elsewhere they are really allocated (``sparse=never``), so
    that no arm allocates in measured time.
    """
    source = machine.provide(master)
    parent = posixpath.dirname(target)
    machine.run(["mkdir", "-p", parent])
    need_bytes = tree_bytes(machine, source) + SPARE_BYTES
    left_bytes = free_bytes(machine, parent)
    if left_bytes < need_bytes and not _shares_blocks(machine, source, parent):
        raise no_room(parent, "a copy of the dataset", need_bytes, left_bytes)
    try:
        machine.run(
            ["cp", "--archive", "--reflink=auto", "--sparse=never", "--no-target-directory", "--", source, target],
            timeout_s=COPY_DEADLINE_S,
        )
    except BaseException as error:
        # Its failure would hide why the copying ended; the caller's journal knows of the copy.
        with suppress(DbtollError):
            remove_copy(machine, target)
        if isinstance(error, ProgramFailed) and any(words in error.message for words in _FULL):
            raise no_room(parent, "a copy of the dataset", need_bytes, left_bytes) from error
        raise
    write_back_and_drop(machine, target)


def read_in(machine: Machine, directory: str = DATA) -> None:
    """Reads all files below ``directory`` into the page cache, in the order of the directory.

    BIAS: a page of the cache is charged to the control group that reads it first. So this is asked of the arm itself,
    not of the machine around it: else the arm would get its page cache on top of its memory limit.

    ``wc -l`` reads all of a file at some GB/s and prints one line for it; ``cat`` would send the data to us.
    """
    machine.run(["find", directory, "-xdev", "-type", "f", "-exec", "wc", "-l", "{}", "+"], timeout_s=COPY_DEADLINE_S)


def remove_copy(machine: Machine, target: str) -> None:
    """Removes a copy, or what there is of it, across no mount; nothing there is no error."""
    try:
        machine.remove(target, recursive=True)
    except AgentFailure as failure:
        if failure.code != "not_found":
            raise


def tree_bytes(machine: Machine, directory: str) -> int:
    """Disk space that a directory or a file takes, in bytes."""
    return int(machine.run(["du", "--summarize", "--block-size=1", directory]).output.split()[0])


_FULL = ("No space left", "Disk quota exceeded")


def free_bytes(machine: Machine, directory: str) -> int:
    """Of the file system that holds it."""
    blocks, block_bytes = machine.run(["stat", "--file-system", "--format=%a %S", directory]).output.split()
    return int(blocks) * int(block_bytes)


def _shares_blocks(machine: Machine, source: str, directory: str) -> bool:
    """Whether a copy from ``source`` into ``directory`` shares its blocks: tried with one of its files."""
    first = machine.run(["find", source, "-type", "f", "-size", "+0", "-print", "-quit"]).output.decode().rstrip("\n")
    probe = f"{directory}/.reflink-probe"
    shared = machine.run(["cp", "--reflink=always", "--", first, probe], check=False).exit_code == 0
    machine.run(["rm", "-f", "--", probe])
    return shared
