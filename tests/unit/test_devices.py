"""What block devices did in measurement windows: by hand-made counters whose figures are known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest

from dbtoll.analysis.result import builder as results
from dbtoll.analysis.result.schema import DeviceResult, Mean
from dbtoll.analysis.transactions import devices as analysis
from dbtoll.interfaces.machine import Machine
from dbtoll.model.experiment import Step
from dbtoll.model.json import Json
from dbtoll.report import export, page
from dbtoll.runner.arm_devices import ArmDevices
from dbtoll.runner.arms import RunningArm
from dbtoll.runner.drivers import devices
from dbtoll.store.reader import read_run
from dbtoll.store.schema import DeviceCounts, Devices
from tests.support.make_run import DOCKER, NATIVE
from tests.support.make_windows import make_windows
from tests.unit.test_report import Page

SECOND_NS = 1_000_000_000
MS = 1_000_000


def counts(**changes: int | None) -> DeviceCounts:
    """Ten seconds of 100 writes and 25 reads a second of 8 KiB, each of which takes 4 ms and keeps the device busy for 2."""
    usual: dict[str, Any] = {
        **{"reads": 250, "read_bytes": 250 * 8192, "read_ns": 1000 * MS},
        **{"writes": 1000, "written_bytes": 1000 * 8192, "write_ns": 4000 * MS},
        **{"io_ns": 2500 * MS, "queue_ns": 5000 * MS, "flushes": 500, "flush_ns": 50 * MS},
    }
    return DeviceCounts(**usual | changes)


def used(kernel: int | None = None, **by_name: DeviceCounts) -> Devices:
    return Devices(kernel=kernel, elapsed_ns=10 * SECOND_NS, devices=by_name)


def visit(number: int, *told: Devices) -> Any:
    return cast(Any, SimpleNamespace(round=number, devices=told))


def only(found: tuple[DeviceResult, ...]) -> DeviceResult:
    (one,) = found
    return one


def test_figures_are_those_of_iostat() -> None:
    found = only(analysis.find([visit(0, used(sda=counts()))], 0.05))
    assert (found.where, found.device) == ("host", "sda")
    assert found.transfers_per_s == Mean(125.0, None, None)
    assert (found.read_bytes_per_s.estimate, found.written_bytes_per_s.estimate) == (25 * 8192, 100 * 8192)
    assert found.service_ns == Mean(2 * MS, None, None) and found.wait_ns == Mean(4 * MS, None, None)
    assert (found.utilisation.estimate, found.queue_length.estimate) == (0.25, 0.5)
    assert found.flushes_per_s == Mean(50.0, None, None)


def test_a_round_is_one_draw_and_an_idle_window_is_part_of_it() -> None:
    rounds = [visit(0, used(sda=counts())), visit(0, used()), visit(1, used(sda=counts(writes=4250)))]
    found = only(analysis.find(rounds, 0.05))
    # 62.5 and 450 transfers a second; t of one degree of freedom at 97.5 % is 12.706.
    assert found.transfers_per_s.estimate == pytest.approx(256.25)
    assert found.transfers_per_s.high == pytest.approx(256.25 + 12.7062 * 193.75, rel=1e-4)
    assert found.transfers_per_s.low == 0  # no device does less than nothing
    # Busy for 2 ms of each transfer, and for 2500 ms of 4500.
    assert found.service_ns is not None and found.service_ns.estimate == pytest.approx((2 + 2500 / 4500) / 2 * MS)


def test_a_device_without_transfers_has_no_service_time() -> None:
    flushed = counts(reads=0, writes=0, read_ns=0, write_ns=0, flushes=3)
    found = only(analysis.find([visit(0, used(sda=flushed))], 0.05))
    assert (found.service_ns, found.wait_ns, found.transfers_per_s.estimate) == (None, None, 0.0)
    old = only(analysis.find([visit(0, used(sda=counts(flushes=None, flush_ns=None)))], 0.05))
    assert old.flushes_per_s is None


def test_of_guests_it_is_the_mean_of_one_beside_the_hosts() -> None:
    guests = [used(0, vda=counts()), used(1, vda=counts(writes=3000)), used(sda=counts(), sdb=counts())]
    inside, *host = analysis.find([visit(0, *guests)], 0.05)
    assert (inside.where, inside.device, inside.transfers_per_s.estimate) == ("inside", "vda", (125 + 325) / 2)
    assert [(each.where, each.device) for each in host] == [("host", "sda"), ("host", "sdb")]


def test_page_and_table_tell_of_them(tmp_path: Path) -> None:
    told = {NATIVE: (used(sda=counts()),), DOCKER: (used(sda=counts()), used(0, vda=counts()))}
    folder = make_windows(tmp_path / "run", rounds=3, devices=told)
    result, run = results.analyze(folder), read_run(folder)
    by_arm = {each.arm: each.devices for each in result.windows}
    assert [len(by_arm[arm]) for arm in (NATIVE, DOCKER)] == [1, 2]
    text = Page(page.render(result, run)).text
    assert "Service time, ms" in text and "25.0 %25.0 … 25.0" in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    export.write(folder, result, run)
    table = f"'{folder}/tables/devices.parquet'"
    rows = duckdb.sql(f"select arm, kernel, device, sum(writes) from {table} where not first_execution group by all")
    assert set(rows.fetchall()) == {
        (NATIVE, None, "sda", 3000),
        (DOCKER, None, "sda", 3000),
        (DOCKER, 0, "vda", 3000),
    }


def test_a_kernel_that_an_arm_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="devices of a kernel"):
        make_windows(tmp_path / "run", rounds=1, devices={NATIVE: (used(1, sda=counts()),)})


# --- what is read ------------------------------------------------------------------------------------------------------


class Counting:
    """A machine whose counters are these, one after the other."""

    def __init__(self, *told: Json | None, parent: Any = None) -> None:
        self._told = [{"at_ns": number * SECOND_NS, "machine": {"disk": disk}} for number, disk in enumerate(told)]
        if parent is not None:
            self.parent = parent

    def counters(self, **_: Any) -> Json:
        return self._told.pop(0)


def disk(**changes: int | None) -> Json:
    return {name: getattr(counts(**changes), name) for name in DeviceCounts.__struct_fields__}


def running(machine: Counting, step: str) -> RunningArm:
    server = SimpleNamespace(counters=lambda brief: machine.counters())
    arm = SimpleNamespace(
        machine=machine,
        servers=(server,),
        servers_by_kernel=lambda: [(server,)],
        arm=SimpleNamespace(stack=(Step(step),)),
        devices=ArmDevices(),
    )
    return cast(RunningArm, arm)


def test_what_rose_is_kept_of_devices_that_did_something() -> None:
    before = {"sda": disk(), "loop0": disk(), "sdb": disk(), "sdc": disk(flushes=None, flush_ns=None)}
    after = {
        "sda": disk(writes=1007, io_ns=2600 * MS),
        "loop0": disk(),
        "sdb": disk(reads=3),  # another device took its name
        "sdc": disk(reads=251, flushes=None, flush_ns=None),
        "sdd": disk(),  # came meanwhile
    }
    host = Counting(before, after)
    _, found, result = devices.around(running(Counting(None, None, parent=host), "native"), lambda: "done")
    (of_host,) = found
    assert (result, of_host.kernel, of_host.elapsed_ns, set(of_host.devices)) == (
        "done",
        None,
        SECOND_NS,
        {"sda", "sdc"},
    )
    assert (of_host.devices["sda"].writes, of_host.devices["sda"].io_ns, of_host.devices["sda"].reads) == (
        7,
        100 * MS,
        0,
    )
    assert of_host.devices["sdc"].flushes is None


def test_a_guest_has_devices_of_its_own() -> None:
    host = Counting({"sda": disk()}, {"sda": disk(writes=1001)})
    guest = Counting({"vda": disk()}, {"vda": disk(reads=252)}, parent=host)
    _, found, _ = devices.around(running(guest, "qemu"), lambda: None)
    assert [(each.kernel, set(each.devices)) for each in found] == [(None, {"sda"}), (0, {"vda"})]


def test_a_kernel_that_shows_none_has_none() -> None:
    machine: Machine = cast(Machine, Counting(None, None))
    _, found, _ = devices.around(running(cast(Counting, Counting(None, None, parent=machine)), "native"), lambda: None)
    assert found == ()
