"""The figures of selfbenches from times that are given."""

from __future__ import annotations

import math
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from dbtoll import selfbench
from dbtoll.analysis.effects import stopping
from dbtoll.analysis.visits.units import VisitTotals, totals
from dbtoll.errors import DbtollError, UsageError
from dbtoll.machines import disk_probe
from dbtoll.machines.disk_models import MODELS
from dbtoll.model.experiment import Arm, Experiment, Step, VisitTiming
from dbtoll.selfbench.costs import disks, driver, growth, null_server, switch
from dbtoll.selfbench.robustness import answers
from dbtoll.selfbench.statistics import aa
from dbtoll.selfbench.support import available, peers, round_trip_counter, switch_agreement
from dbtoll.selfbench.support.certificate import Bound, Certificate
from dbtoll.store.reader import Run, read_run
from dbtoll.store.schema import CheckRecord, Timing, Visit
from tests.support.changed import visit_of_one_unit
from tests.support.make_run import make_run

CERTIFICATE = Certificate(
    "ledger",
    {"unexplained_fraction": 0.256, "planted_error": 0.006, "arms": None},
    {"unexplained_fraction": Bound(max=0.2), "planted_error": Bound(max=0.05), "arms": Bound(min=3)},
)


def test_a_certificate_whose_bounds_do_not_hold_says_so_at_its_head() -> None:
    sentence = (
        "This certificate does not hold: unexplained_fraction is 0.256 and should be at most 0.2; "
        "arms is not known and should be at least 3."
    )
    assert CERTIFICATE.as_text().splitlines()[0] == sentence
    told = CERTIFICATE.as_json()
    assert list(told)[:3] == ["name", "holds", "failure"]
    assert (told["holds"], told["failure"]) == (False, sentence)


def test_a_certificate_that_holds_begins_with_its_figures() -> None:
    held = replace(CERTIFICATE, bounds={"planted_error": Bound(max=0.05)})
    assert held.as_text().splitlines()[0].startswith("unexplained_fraction: 0.256")
    assert (held.as_json()["holds"], held.as_json()["failure"]) == (True, None)


LEVELS = {"cache": "warm", "connection": "persistent", "query_protocol": "simple"}


# --- answers ---


def test_an_answer_is_right_only_if_it_came_and_was_compared() -> None:
    def answered(query: str, outcome: Literal["ok", "wrong_answer", "timeout"]) -> Visit:
        return visit_of_one_unit(
            round=0, arm="docker", levels=LEVELS, block=0, parameter_set=0, query=query, order=0, first_execution=False,
            asleep_ok=True, host_start_ns=0, host_end_ns=9, start_ns=0, end_ns=9,
            executions=(Timing(0, None, None, 9, 1, 1, outcome),),
        )  # fmt: skip

    def gate(passed: bool) -> CheckRecord:
        return CheckRecord(round=0, arm="docker", check="answers_known", passed=passed, finding="", voids=False)

    visits = [answered("Q1", "ok"), answered("Q2", "wrong_answer"), answered("Q3", "timeout")]
    queries = ("Q1", "Q2", "Q3", "Q4")
    found = {("Q1", 0): "ok", ("Q2", 0): "wrong_answer", ("Q3", 0): "unanswered", ("Q4", 0): "unanswered"}
    assert answers.outcomes(queries, 1, [gate(passed=True), *visits], "docker") == found
    assert answers.outcomes(queries, 1, [gate(passed=False), *visits], "docker") == {**found, ("Q1", 0): "unchecked"}
    assert answers.outcomes(queries, 1, visits, "docker")["Q1", 0] == "unchecked"
    assert set(answers.outcomes(queries, 1, [gate(passed=True), *visits], "native").values()) == {"unanswered"}
    assert answers.outcomes(queries, 2, [gate(passed=True), *visits], "docker")["Q1", 1] == "unanswered"


def test_a_profile_is_that_of_the_engines_that_have_it() -> None:
    assert "modern" in available.profiles("mariadb") and available.profiles("duckdb") == ()
    options = {"drawn": 0, "scale": 0.01, "queries": "all", "memory": 3 << 30, "timeout": 10**9, "profile": "modern"}
    for engine, asked in (("mariadb", "modern"), ("duckdb", None)):
        (native, _) = answers._experiment(engine, ["native"], options).arms
        assert native.configuration.engine.options.get("profile") == asked
    with pytest.raises(UsageError, match="no engine here has a profile 'no such'"):
        selfbench.measure("answers", {"engines": "duckdb", "environments": "native", "profile": "no such"}, print)


# --- aa ---


def test_four_alarms_of_twenty_to_twenty_four_are_the_most_and_more_comparisons_may_have_more() -> None:
    assert [aa.most_alarms(count) for count in (20, 24, 60)] == [4, 4, 7]
    assert aa.most_alarms(100) > 8


def test_p_values_spread_evenly_are_uniform_and_such_that_crowd_are_not() -> None:
    even = [(number + 0.5) / 24 for number in range(24)]
    assert (aa.uniformity_p(even) or 0) > 0.99
    assert (aa.uniformity_p([p / 4 for p in even]) or 0) < 0.01
    assert (aa.uniformity_p([1 - p / 4 for p in even]) or 0) < 0.01


def comparisons(chance: np.random.Generator, bias: float = 0.0, count: int = aa.COMPARISONS) -> list[Any]:
    return [chance.normal(bias, 0.01, 5) for _ in range(count)]


def test_an_honest_instrument_has_no_bias_few_alarms_and_the_power_to_say_so() -> None:
    told = aa.figures(comparisons(np.random.default_rng(3)))
    assert told["comparisons"] == 60
    assert told["false_alarms_if_independent"] <= aa.most_alarms(60)
    assert told["false_alarms"] <= told["false_alarms_if_independent"]
    assert told["bias_at_most"] < aa.BIAS_MARGIN
    assert told["bias_power"] > 0.99
    assert told["false_alarms_power"] > 0.8
    assert told["uniformity_power"] > 0.5
    low, high = told["false_alarm_rate_if_independent"][1:]
    assert low < 0.05 < high


def test_few_comparisons_have_less_power_and_a_bias_is_found() -> None:
    few = aa.figures(comparisons(np.random.default_rng(3), count=20))
    many = aa.figures(comparisons(np.random.default_rng(3)))
    assert few["false_alarms_power"] < many["false_alarms_power"]
    assert few["uniformity_power"] < many["uniformity_power"]
    assert aa.figures(comparisons(np.random.default_rng(3), bias=0.005))["bias_at_most"] > aa.BIAS_MARGIN


def test_starts_that_carry_over_are_found_by_p_values_that_crowd() -> None:
    chance = np.random.default_rng(4)
    persistent = [each + chance.normal(0, 0.03) for each in comparisons(chance)]
    told = aa.figures(persistent)
    assert told["uniformity_p"] < 0.01
    assert told["false_alarms_if_independent"] > aa.most_alarms(60)


# --- switch ---


def test_the_cost_of_a_visit_is_what_its_first_executions_took_beyond_the_usual() -> None:
    usual = [1000] * 18
    assert switch.visit_cost_ns(usual, 8) == 0
    assert switch.visit_cost_ns([1300, 1100, *usual[2:]], 8) == 400
    slower_machine = [2 * each for each in [1300, 1100, *usual[2:]]]
    assert switch.visit_cost_ns(slower_machine, 8) == 800
    assert switch.visit_cost_ns([*usual[:-1], 50_000], 8) == 0  # a burst at the end is no cost of the switch


def test_the_cost_is_looked_for_in_as_many_executions_as_begin_in_the_window() -> None:
    assert switch.first_of(1e6) == 12
    assert switch.first_of(1e5) == switch.FIRST_MOST
    assert switch.first_of(3e6) == 4
    assert switch.first_of(40e6) == switch.FIRST_LEAST


def test_the_interval_of_a_median_is_of_order_statistics() -> None:
    cost = switch.median_cost([float(number) for number in range(1, 21)])
    assert (cost.us, cost.low, cost.high) == (10.5, 6.0, 15.0)  # Conover 1999, table: 20 values, ranks 6 and 15
    assert switch.median_cost([3.0]) == switch.Cost(3.0, 3.0, 3.0)


def test_a_clock_that_stops_asleep_is_no_step_and_one_that_jumps_awake_is() -> None:
    seen = switch.Seen()
    seen.asleep(switch.Moment(0, 1_000, 10), switch.Moment(1_000_000, 1_200, 10))
    assert seen.runs_on == [pytest.approx(200 / 1e6)]
    assert seen.backwards == 0
    seen.awake(switch.Moment(0, 0, 100), switch.Moment(1_000_000, 1_000_150, 100))
    assert seen.steps_ns == [0]  # within what the brackets leave open
    seen.awake(switch.Moment(0, 0, 100), switch.Moment(1_000_000, 3_000_000, 100))
    assert seen.steps_ns[-1] == 2_000_000 - 200
    seen.asleep(switch.Moment(0, 1_000, 10), switch.Moment(1_000_000, 900, 10))
    assert seen.backwards == 1


def test_the_measurement_time_is_held_against_the_worst_environment_at_the_far_end_of_its_interval() -> None:
    def seen(cost_ns: int) -> switch.Seen:
        visit = [1000 + cost_ns, *[1000] * (3 + switch.USUAL)]
        found = switch.Seen(first=4, steps_ns=[0.0], runs_on=[1.0])
        for kind in switch.KINDS:
            found.times[kind] = [visit] * 10
        return found

    figures = switch.residual_figures({"quick": seen(10_000), "slow": seen(1_000_000)}, VisitTiming())
    assert figures["residual_us"] == {"quick": 10.0, "slow": 1000.0}
    assert figures["measurement_time_over_residual"] == pytest.approx(50.0)


# --- agreement ---


def experiment() -> Experiment:
    return available.over(["docker"], {"name": "postgres"}, {"name": "tpch", "queries": ["Q6"]})


def test_the_variants_differ_in_neighbours_or_in_the_measurement_time_and_in_nothing_else() -> None:
    made = switch_agreement.variants(experiment(), "docker")
    names = {variant: [arm.name for arm in each.arms] for variant, each in made.items()}
    assert names["one_neighbour"] == names["short_time"] == names["long_time"] == ["native", "docker"]
    assert len(names["four_neighbours"]) == 5
    assert all(arm.stack == (Step("native"),) for arm in made["four_neighbours"].arms if arm.name != "docker")
    times = {variant: each.visit_timing.measurement_time_ns for variant, each in made.items()}
    assert times["one_neighbour"] == times["four_neighbours"] == VisitTiming().measurement_time_ns
    assert times["short_time"] < VisitTiming().measurement_time_ns < times["long_time"]
    assert all(arm.copy_of is None for each in made.values() for arm in each.arms)


def visits(effect: float, rounds: int) -> list[VisitTotals]:
    """Rounds of two blocks of one statement over native, docker (slower by ``effect``, log scale) and a bystander."""
    found = []
    for round_ in range(rounds):
        for block in range(2):
            for arm, level in (("native", 0.0), ("docker", effect + 0.001 * (-1) ** round_), ("native 2", 1.0)):
                took = round(1e6 * math.exp(level))
                found.append(
                    visit_of_one_unit(
                        round=round_, arm=arm, levels=LEVELS, block=block, query="customer", order=0, first_execution=False,
                        asleep_ok=True, host_start_ns=0, host_end_ns=took, start_ns=0, end_ns=took,
                        executions=(Timing(0, None, None, took, 1, 1, "ok"),),
                    )
                )  # fmt: skip
    return [totals(visit) for visit in found]


def test_an_effect_is_the_arms_against_native_whatever_bystanders_there_are() -> None:
    effects = switch_agreement.effects_of(visits(0.05, 6), ("customer",), "docker")
    assert effects == pytest.approx(np.array([0.051, 0.049] * 3), abs=1e-5)
    same = switch_agreement.effects_of(visits(0.05, 8), ("customer",), "docker")
    other = switch_agreement.effects_of(visits(0.08, 8), ("customer",), "docker")
    assert switch_agreement.difference(effects, same)["agree"]
    assert switch_agreement.difference(effects, other)["agree"]  # 3 %, within the margin
    far = switch_agreement.effects_of(visits(0.11, 8), ("customer",), "docker")
    told = switch_agreement.difference(effects, far)
    assert not told["agree"]
    assert told["difference"] == pytest.approx([math.expm1(0.06)] * 3, abs=0.002)
    assert told["power"] == pytest.approx(1)


def test_what_is_too_noisy_to_tell_does_not_agree() -> None:
    """That no difference is found in noise is no agreement."""
    chance = np.random.default_rng(1)
    told = switch_agreement.difference(chance.normal(0, 0.1, 5), chance.normal(0, 0.1, 5))
    low, high = told["difference"][1:]
    assert low < 0 < high
    assert not told["agree"]
    assert told["power"] < 0.2


@pytest.mark.parametrize(("true", "share"), [(0.0, 0.9), (math.log(1.05), 0.05)])
def test_two_one_sided_tests_agree_as_often_as_they_should(true: float, share: float) -> None:
    chance = np.random.default_rng(2)
    told = [switch_agreement.difference(chance.normal(0, 0.04, 12), chance.normal(true, 0.04, 12)) for _ in range(400)]
    agreed = np.mean([each["agree"] for each in told])
    assert agreed == pytest.approx(share, abs=0.06)
    if not true:
        assert np.mean([each["power"] for each in told]) == pytest.approx(agreed, abs=0.08)


def test_an_environment_that_was_named_is_not_left_out() -> None:
    with pytest.raises(DbtollError, match="not to be had here: docker:runtime=no_such"):
        available.present(["docker:runtime=no_such"], lambda text: None)


def test_simulated_environments_are_no_part_of_a_machine() -> None:
    stacks, missing = available.present(["simulated"], lambda text: None)
    assert "simulated" not in stacks
    assert "simulated" not in missing
    assert Arm("native", (Step("native"),)).name == available.BASELINE


# --- disks -----------------------------------------------------------------------------------------------------------


def disk_seen(factor: float, modelled: float = 1.0) -> dict[str, disk_probe.Seen]:
    """Of the disk with 7200 revolutions: as published, but for these factors."""
    found = {}
    for kind in disk_probe.KINDS:
        published = MODELS["hdd7200"].published(kind.request_bytes).get(kind.name, 5.0)
        slower = 1 / factor if kind.rate else factor
        found[kind.name] = disk_probe.Seen(published * slower, published * modelled, 50.0, 100.0, 1)
    return found


def test_a_disk_model_is_held_against_what_was_published() -> None:
    found = disks.figures_of({"hdd7200": disk_seen(1.05)})
    assert found["hdd7200_random_read_ms"]["ratio"] == pytest.approx(1.05)
    assert "published" not in found["hdd7200_random_read_8_ms"]
    assert found["rotating_deviation"] == pytest.approx(0.05)
    assert found["faster_than_model"] == 0
    assert Certificate("disks", found, disks.BOUNDS).holds()
    far = disks.figures_of({"hdd7200": disk_seen(1.3)})
    assert not Certificate("disks", far, disks.BOUNDS).holds()


def test_a_disk_model_that_answers_too_soon_is_found() -> None:
    found = disks.figures_of({"hdd7200": disk_seen(0.98)})
    assert found["faster_than_model"] == len(disk_probe.KINDS)
    assert not Certificate("disks", found, disks.BOUNDS).holds()


def test_requests_become_a_time_for_each_or_a_rate() -> None:
    told = {"requests": 100, "elapsed_ns": 10**9, "least_ns": 7}
    one = disk_probe.of(disk_probe.KINDS[0], told, 9 * 10**8, 10**7, 2 * 10**7)
    assert (one.measured, one.modelled, one.late_us, one.cpu_us) == pytest.approx((10.0, 9.0, 100.0, 200.0))
    assert disk_probe.of(disk_probe.KINDS[4], told, 9 * 10**8, 0, 0).measured == pytest.approx(13.1072)


# --- null-server ---


def window(rate: int, driver_us: float, server_us: float, bare_us: float = 2.0) -> null_server.Window:
    """One second at that rate, each transaction with 1.5 round trips."""
    cpu = [round(each * rate * 1e3) for each in (driver_us, server_us)]
    return null_server.Window(rate, rate * 3 // 2, 10**9, cpu[0], cpu[1], bare_us)


def test_the_driver_is_held_against_the_bare_exchange_beside_it() -> None:
    slow_and_quick = [window(100_000, 6.0, 3.0, bare_us=4.0), window(200_000, 3.0, 2.0), window(200_000, 3.0, 2.0)]
    figures = null_server.figures(slow_and_quick)
    assert figures["transactions_per_s"] == 200_000
    assert figures["transactions_per_s_range"] == [100_000, 200_000]
    assert figures["driver_us_per_round_trip"] == pytest.approx(2.0)
    assert figures["ratio_to_bare"] == pytest.approx(1.0)  # 1, 1, 1: in the slow window both were slow
    assert figures["transactions_per_driver_s"] == pytest.approx(1e6 / 3)


def test_the_busier_side_is_the_limit() -> None:
    assert null_server.figures([window(100_000, 9.0, 5.0)])["limit"] == "driver"
    figures = null_server.figures([window(100_000, 5.0, 9.9)])
    assert (figures["limit"], figures["server_cpu_share"]) == ("server", pytest.approx(0.99))


# --- driver ---


def done(transactions: int, us: float, orders: int | None, round_trips: int | None = None) -> driver.DriverResult:
    """Ten seconds of work."""
    return driver.DriverResult(transactions, transactions / 10, round(us * transactions * 1e3), orders, round_trips)


def test_orders_in_a_minute_are_the_servers_and_round_trips_its_own_where_it_counts_them() -> None:
    told = driver.summary([done(1000, 50, 450, 2500), done(1000, 70, 470, 2500), done(1000, 60, 460, 2500)], 99.0)
    assert told == {
        "client_us_per_transaction": 60,
        "round_trips_per_transaction": 2.5,
        "client_us_per_round_trip": 24,
        "transactions_per_s": 100,
        "tpmC": 60 * 46,
    }
    foreign = driver.summary([done(1000, 60, None)], 7.0)
    assert foreign["round_trips_per_transaction"] == 7.0
    assert "tpmC" not in foreign


OWN = {
    "statement": driver.summary([done(10_000, 300, 4500, 200_000)], 0),
    "pipelined": driver.summary([done(40_000, 50, 18_000, 100_000)], 0),
    "procedure": driver.summary([done(50_000, 20, 22_000, 50_000)], 0),
}


def test_the_cheapest_the_fastest_and_the_best_peer_may_be_three_and_pgbench_is_none_of_them() -> None:
    peers = {
        "benchbase": driver.summary([done(20_000, 400, 9000)], 20.0),
        "go-tpc": driver.summary([done(30_000, 600, 13_000)], 40.0),
        "pgbench": driver.summary([done(90_000, 90, None)], 7.0),
    }
    loaded = {"dbtoll": 1.0, "benchbase": 7.0, "go-tpc": 5.0, "pgbench": 0.1}
    figures, bounds = driver.compared({**OWN, **peers}, 10.0, loaded)
    assert figures["pipelined_over_cheapest"] == pytest.approx(50 / 400)
    assert figures["round_trip_over_cheapest"] == pytest.approx(15 / 15)
    assert figures["load_over_fastest"] == pytest.approx(0.2)
    assert figures["throughput_over_best"] == pytest.approx(4 / 3)
    assert figures["statement_over_bare"] == pytest.approx(1.5)
    assert set(figures["peers"]) == set(peers)
    assert all(bound.holds(figures[name]) for name, bound in bounds.items())


def test_without_peers_the_absolute_bounds_are_left() -> None:
    figures, bounds = driver.compared(OWN, 10.0, {"dbtoll": 2.0})
    assert figures["peers"] == {}
    assert {name for name, bound in bounds.items() if not bound.holds(figures[name])} == {"load_s_per_warehouse"}


def test_peers_that_are_not_there_are_named() -> None:
    options = {name: option.default for name, option in driver.OPTIONS.items()}
    nowhere = {"go_tpc": "/nowhere/go-tpc", "sysbench": "/nowhere/sysbench", "pgbench": "/nowhere/pgbench"}
    peers, missing = driver.found(options | nowhere)
    assert peers == []
    assert set(missing) == {"benchbase", "go-tpc", "sysbench-tpcc", "pgbench"}
    assert "/nowhere/go-tpc" in missing["go-tpc"]


# --- peers ---

BENCHBASE = """
Results(state=EXIT, nanoSeconds=10, measuredRequests=90) = 45.5 requests/sec (throughput), 44.0 requests/sec (goodput)
Completed Transactions:
a.NewOrder/01     [  60] ******
a.Payment/02      [  40] ****

Aborted Transactions:
a.NewOrder/01     [   2] *

Unexpected SQL Errors:
a.NewOrder/01     [   7] *
"""
GO_TPC = """
[Summary] NEW_ORDER - Takes(s): 4.0, Count: 60, TPM: 900.0
[Summary] NEW_ORDER_ERR - Takes(s): 4.0, Count: 3, TPM: 45.0
[Summary] PAYMENT - Takes(s): 4.0, Count: 40, TPM: 600.0
"""
SYSBENCH = "    transactions:                        100   (25.00 per sec.)\n    ignored errors:   1  (0.2 per sec.)"
PGBENCH = "number of transactions actually processed: 100\ntps = 25.000000 (without initial connection time)"


@pytest.mark.parametrize(
    ("peer", "output", "count"),
    [
        (peers.BenchBase("", "java"), BENCHBASE, peers.Count(102, 45.5)),
        (peers.GoTpc("go-tpc"), GO_TPC, peers.Count(100, 25.0)),
        (peers.SysbenchTpcc("sysbench", ""), SYSBENCH, peers.Count(100, 25.0)),
        (peers.Pgbench("pgbench"), PGBENCH, peers.Count(100, 25.0)),
    ],
)
def test_what_a_peer_did_is_read_from_what_it_prints(peer: peers.Peer, output: str, count: peers.Count) -> None:
    assert peer.read(output) == count
    with pytest.raises(DbtollError, match=peer.name):
        peer.read("Exception in thread main")


# --- turns ---


def test_a_round_trip_is_a_turn_of_the_client_however_many_pieces_it_has() -> None:
    def answer(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            while len(client.recv(4, socket.MSG_WAITALL)) == 4:
                client.sendall(b"answer")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        with round_trip_counter.counting(listener.getsockname()) as counted:
            with socket.create_connection(("127.0.0.1", counted.port)) as client:
                for _ in range(3):
                    client.sendall(b"as")
                    client.sendall(b"k?")
                    assert client.recv(6, socket.MSG_WAITALL) == b"answer"
            server.join(10)
            assert not server.is_alive()  # the relay has passed the end on
        assert counted.count == 3


# --- growth ----------------------------------------------------------------------------------------------------------


def test_the_exponent_tells_looks_after_every_round_from_looks_that_are_spaced() -> None:
    """A look costs as much as there are rounds."""
    every = [1.0 * rounds for rounds in range(1, 301)]
    spaced = [rounds * stopping.is_due(rounds) for rounds in range(1, 301)]
    assert growth.exponent(every, 30) == pytest.approx(2, abs=0.03)
    assert growth.exponent(spaced, 30) == pytest.approx(1, abs=0.05)


def test_what_is_timed_looks_where_a_look_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(make_run(tmp_path / "run", rounds=30, blocks=1, executions=1, interrupted=False))
    looked = []
    look = stopping.look

    def noted(so_far: Run, *args: Any, **options: Any) -> stopping.Look:
        looked.append(len(so_far.counted))
        return look(so_far, *args, **options)

    monkeypatch.setattr(stopping, "look", noted)
    costs_s = growth.deciding_s(run)
    assert looked == [rounds for rounds in range(1, 31) if stopping.is_due(rounds)]
    assert all(costs_s[rounds - 1] > 0 for rounds in looked)
    assert len(costs_s) == 30


def test_the_first_rounds_of_a_run_are_a_run(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", rounds=6, blocks=1))
    _, samples = growth._size(run)
    of_round = growth._executions(run.attempts[0].records)
    first = read_run(growth.first_rounds(run, of_round + 1, tmp_path / "first"))
    assert first.complete_rounds == (0, 1)
    assert growth._size(first)[1] == 2 * of_round
    assert first.attempts == run.attempts[:2]
    every = read_run(growth.first_rounds(run, 10**9, tmp_path / "all"))
    assert every.complete_rounds == run.complete_rounds
    assert growth._size(every)[1] == samples


def test_a_child_that_fails_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        growth.child("raise SystemExit(3)", tmp_path)
    small = growth.child("folder.joinpath('seen').touch()", tmp_path)
    assert (tmp_path / "seen").exists()
    of_parent = b"x" * 300_000_000
    assert growth.child("pass", tmp_path).peak_mb < len(of_parent) / 1e6 / 3  # not what its parent holds
    large = growth.child("held = b'x' * 200_000_000", tmp_path)
    assert large.peak_mb - small.peak_mb == pytest.approx(200, rel=0.1)


def test_a_count_below_what_can_be_measured_is_refused_before_anything_is_done() -> None:
    """Fewer than nothing was taken for nothing, or ended in an internal error."""
    counts = [
        (name, key, option)
        for name in selfbench.names()
        for key, option in selfbench.options(name).items()
        if option.kind == "integer"
    ]
    assert len(counts) > 30
    for name, key, option in counts:
        assert option.least is not None and option.least >= 0, (name, key)
        with pytest.raises(UsageError, match=f"option '{key}' of selfbench '{name}': .* is less than {option.least:g}"):
            selfbench.measure(name, {key: str(int(option.least) - 1)}, print)
