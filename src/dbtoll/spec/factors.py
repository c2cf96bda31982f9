"""The probes of an experiment that explains."""

from __future__ import annotations

from dbtoll.model.probes import CACHED, EXECUTOR_PROBES, HUGE_PAGES

LEDGER_PROBES = (
    "system_call", "system_call_cold", "system_call_stat", "system_call_stat_cold", "system_call_seek", "system_call_seek_cold",
    "open_file", "open_file_cold", "read_random_buffered", "read_random_buffered_cold", "write_sequential_buffered",
    "write_sequential_buffered_cold", "write_appended_buffered", "write_appended_buffered_cold", "fsync", "fault_anonymous",
    "fault_anonymous_cold", "fault_file", "fault_file_cold", "fault_shared", "fault_shared_cold", "fault_shared_read",
    "fault_shared_read_cold", "fault_shared_around", "fault_copy", "fault_copy_cold", "fork", "switch_pipe", "switch_pipe_cold",
    "round_trip_unix", "round_trip_unix_cold", "primes",
    *(3 * (*EXECUTOR_PROBES, *(name + form for name in ("descents", "joins") for form in (CACHED, HUGE_PAGES)))),
)  # fmt: skip
"""The probes of an experiment that explains, each as often in a round as it is here: which memory a process gets, by chance, makes
it up to twice as quick as the next one."""

LEDGER_PROBES_COLD = ("read_sequential_uncached", "read_random_uncached")
"""And of one whose statements begin with empty caches."""
