"""What is kept from run to run, in the cache and as images by environments: how much it is, and what of it may go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from dbtoll import registry
from dbtoll.errors import DbtollError, Unavailable
from dbtoll.images.cache import Cache
from dbtoll.interfaces.environment import KeepingEnvironment, KeptImage
from dbtoll.machines.agent.local import open_local
from dbtoll.runner.cleanup.journal import temporary_journal

DAY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can be made again. ``used_at``: s since 1970. ``remove``: False where somebody uses it, and it stays."""

    what: str
    size_bytes: int
    used_at: float
    remove: Callable[[], bool]


@dataclass(slots=True)
class Shrunk:
    """What became of it, as sentences. ``left_alone``: what others use. ``left_bytes``: of all that is still there."""

    removed: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_bytes: int = 0


def shrink(*, older_days: float = 0.0, keep_bytes: int = 0, dry_run: bool = False) -> Shrunk:
    """Removes what nobody has used for so many days, the longest unused first, until the rest is no larger than ``keep_bytes``.

    ``dry_run``: nothing is removed, and what is in use is not told from the rest.
    """
    shrunk = Shrunk()
    now = time.time()
    with _items(shrunk) as items:
        shrunk.left_bytes = sum(item.size_bytes for item in items)
        for item in sorted(items, key=lambda item: item.used_at):
            unused_days = (now - item.used_at) / DAY_S
            if shrunk.left_bytes <= keep_bytes or unused_days < older_days:
                break
            said = f"{item.what}, {item.size_bytes / (1 << 20):.1f} MiB, unused for {unused_days:.1f} days"
            try:
                is_gone = dry_run or item.remove()
            except DbtollError as error:
                shrunk.failed.append(f"{said}: {error.message}")
                continue
            if is_gone:
                shrunk.removed.append(said)
                shrunk.left_bytes -= item.size_bytes
            else:
                shrunk.left_alone.append(f"{said}: it is in use")
    return shrunk


@contextmanager
def _items(shrunk: Shrunk) -> Iterator[list[Item]]:
    """All of them; those of environments as long as this lasts. What another run works with is left alone."""
    cache = Cache()
    items = [
        Item(f"{kept.kind} {kept.key}", kept.size_bytes, kept.used_at, partial(cache.remove, kept.path))
        for kept in cache.kept()
    ]
    with ExitStack() as stack:
        host = stack.enter_context(open_local())
        journal = stack.enter_context(temporary_journal())
        for title, store in _stores():
            try:
                held = stack.enter_context(store(host, journal))
            except Unavailable as error:
                shrunk.left_alone.append(f"images of {title}: {error.message}")
                continue
            except DbtollError as error:
                shrunk.failed.append(f"images of {title}: {error.message}")
                continue
            for image in held:

                def remove(image: KeptImage = image) -> bool:
                    return not cache.in_use("image", image.key) and image.remove()

                items.append(Item(f"image of {title} {image.key}", image.size_bytes, image.used_at, remove))
        yield items


def _stores() -> Iterator[tuple[str, Callable[..., AbstractContextManager[Sequence[KeptImage]]]]]:
    """What each environment keeps images in, with its title."""
    for kind in registry.members("environments"):
        environment = kind()
        if isinstance(environment, KeepingEnvironment):
            yield from ((kind.description.title, store) for store in environment.stores())
