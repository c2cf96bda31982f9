"""Settings of this host's kernel, really changed and put back: also by `clean`, and in whatever order changes end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dbtoll.errors import Unavailable
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.sysctl import changed, read
from dbtoll.runner.cleanup.journal import Journal, leftovers
from dbtoll.runner.cleanup.removers import Cleaned, clean_one

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to write settings")

# How many kernel messages may come in a burst before they are held back: harmless, and nobody else changes it.
SETTING = "/proc/sys/kernel/printk_ratelimit_burst"


@pytest.fixture
def first() -> Iterator[str]:
    """What it was; whatever a test does, it is that again."""
    path = Path(SETTING)
    if not path.exists():
        pytest.skip(f"this kernel has no {SETTING}")
    value = path.read_text().strip()
    yield value
    left, _ = path.read_text().strip(), path.write_text(value)
    assert left == value


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    with Journal(folder) as journal:
        yield journal
    assert leftovers(folder) == []


def present() -> str:
    return Path(SETTING).read_text().strip()


def test_it_holds_for_a_while_and_is_put_back(local: AgentMachine, journal: Journal, first: str) -> None:
    with changed(local, journal, SETTING, "21") as found:
        assert found == present() == "21"
        (noted,) = leftovers(journal.folder)
        assert (noted["kind"], noted["path"], noted["former"]) == ("setting", SETTING, first)
    assert present() == first


def test_it_is_put_back_after_an_error(local: AgentMachine, journal: Journal, first: str) -> None:
    with pytest.raises(RuntimeError), changed(local, journal, SETTING, "21"):
        raise RuntimeError
    assert present() == first


def test_nested_changes_unwind(local: AgentMachine, journal: Journal, first: str) -> None:
    with changed(local, journal, SETTING, "21"):
        with changed(local, journal, SETTING, "22"):
            assert present() == "22"
        assert present() == "21"
    assert present() == first


def test_changes_that_end_in_another_order(local: AgentMachine, journal: Journal, first: str) -> None:
    """As those of two arms: the first one ends while the second needs its own."""
    with ExitStack() as one, ExitStack() as two, ExitStack() as three:
        one.enter_context(changed(local, journal, SETTING, "21"))
        two.enter_context(changed(local, journal, SETTING, "22"))
        three.enter_context(changed(local, journal, SETTING, "23"))
        one.close()
        assert present() == "23"
        assert [noted["former"] for noted in leftovers(journal.folder)] == [first, "22"]
        three.close()
        assert present() == "22"
        two.close()
        assert present() == first


def test_what_somebody_else_changed_meanwhile_is_put_back_with_a_sentence(
    local: AgentMachine, journal: Journal, first: str
) -> None:
    said: list[str] = []
    with changed(local, journal, SETTING, "21", said.append):
        Path(SETTING).write_text("99")
    assert present() == first
    assert len(said) == 1
    assert "99" in said[0]
    assert "somebody else" in said[0]


def test_a_value_that_the_kernel_refuses_changes_nothing(local: AgentMachine, journal: Journal, first: str) -> None:
    with pytest.raises(Unavailable, match="many") as caught, changed(local, journal, SETTING, "many"):
        pytest.fail("it was accepted")
    assert caught.value.hint
    assert present() == first
    with pytest.raises(Unavailable, match="no_such_setting"):
        read(local, "/proc/sys/kernel/no_such_setting")


def test_the_chosen_one_of_several(local: AgentMachine, journal: Journal) -> None:
    """A choice in brackets, of a loop device that nobody uses: written back by its name."""
    for scheduler in sorted(Path("/sys/block").glob("loop*/queue/scheduler")):
        choices = scheduler.read_text().split()
        unused = not (scheduler.parents[1] / "loop").exists()
        others = [choice for choice in choices if not choice.startswith("[")]
        if unused and others:
            break
    else:
        pytest.skip("no unused loop device with a choice of schedulers")
    before = scheduler.read_text()
    with changed(local, journal, str(scheduler), others[0]) as found:
        assert found == others[0]
        assert f"[{others[0]}]" in scheduler.read_text()
    assert scheduler.read_text() == before


def clean(folder: Path) -> list[str]:
    """What was removed."""
    cleaned = Cleaned()
    assert clean_one(folder, cleaned)
    assert cleaned.failed == []
    return cleaned.removed


def killed_while_changed(folder: Path, *values: str) -> None:
    """A process that changes the setting to each of the values, one inside the other, and is killed."""
    from dbtoll.machines.agent.local import open_local

    folder.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        with Journal(folder) as journal, open_local() as host, ExitStack() as changes:
            for value in values:
                changes.enter_context(changed(host, journal, SETTING, value))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_clean_puts_back_what_a_killed_run_changed(tmp_path: Path, first: str) -> None:
    killed_while_changed(tmp_path / "run", "21", "22")
    assert present() == "22"
    removed = clean(tmp_path / "run")
    assert len(removed) == 2
    assert not any("as this run had asked for" in line for line in removed)
    assert present() == first
    assert clean(tmp_path / "run") == []


def test_clean_says_what_it_found_instead(tmp_path: Path, first: str) -> None:
    killed_while_changed(tmp_path / "run", "21")
    Path(SETTING).write_text("99")
    (removed,) = clean(tmp_path / "run")
    assert f"it was 99, not 21 as this run had asked for; {first} is restored" in removed
    assert present() == first


def test_clean_leaves_the_settings_of_a_machine_that_has_started_anew(tmp_path: Path, first: str) -> None:
    with Journal(tmp_path) as journal:
        journal.create("setting", path=SETTING, former="77", value=first, boot="another")
    (removed,) = clean(tmp_path)
    assert "started anew" in removed
    assert present() == first
