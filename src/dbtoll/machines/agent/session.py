"""The serial load driver of an agent as a session: JSON lines over the method ``serial``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from dbtoll.channel.client import Channel
from dbtoll.channel.json_lines import SLACK_S, BegunLines, HeldAt, JsonLines
from dbtoll.channel.output_buffer import said
from dbtoll.channel.replies import Counters, Queried, Visit
from dbtoll.model.experiment import VisitTiming
from dbtoll.model.json import Json
from dbtoll.model.machine import Address
from dbtoll.model.reply import AnswerReference, Execution, Statement, VisitReply

LEAD_IN_SQL: Final = "SELECT 1"
"""What the untimed lead-in repeats.

BIAS: it wakes timers, connection and processor but brings none of the statement's data back into the caches; that part
of what a switch costs stays in the first timed execution, in every arm.
"""

QUERY_TIMEOUT_S: Final = 300.0
"""Plans, counters, a checkpoint: within seconds where the server lives; a round shall not wait for a dead one for hours."""

_EXECUTION: Final = tuple(field.name for field in fields(Execution))


class SerialSession:
    """Implements interfaces.Session. One command at a time; a lost connection is made again by the next one."""

    def __init__(self, channel: Channel, address: Address, connection: str, *, lead_in_sql: str = LEAD_IN_SQL) -> None:
        self.lead_in_sql = lead_in_sql
        self._lines = JsonLines(channel, "serial", {**address.parameters(), "connection": connection})
        self._told: dict[int, tuple[str, AnswerReference]] = {}
        """By identity, since to compare a thousand rows takes longer than to send them: what it is called, and itself."""

    def visit(
        self,
        statements: Sequence[Statement],
        *,
        query_protocol: str,
        timing: VisitTiming,
        answers: Mapping[str, AnswerReference],
        lead_in: bool = True,
        repeat: bool = True,
        min_executions: int = 1,
        keep_rows: bool = False,
        counters_of: int | None = None,
        hold: bool = False,
    ) -> BegunLines[VisitReply]:
        """Execute ``statements`` in order, each ``min_executions`` times.

        ``repeat``: and on until the measurement time has passed. ``query_protocol``: simple, extended or prepared. ``answers``
        by query name; what has none is not compared.
        ``counters_of``: a server's first process, whose tree's counters are read right before and after. ``hold``: the lead-in is
        done, and the statements wait for ``go``. The result raises EngineError if there is no connection to be had; a statement
        that fails is an outcome, not an error.
        """
        measurement_time_ns = timing.measurement_time_ns if repeat else 0
        named = {each.query: self._tell(answers[each.query]) for each in statements if each.query in answers}
        command: Json = {
            "command": "visit",
            "lead_in": {"sql": self.lead_in_sql, "min_ns": timing.lead_in_ns, "min_executions": 1} if lead_in else None,
            "statements": [
                _request(each, query_protocol, measurement_time_ns, timing.statement_timeout_ns, named.get(each.query))
                | {"keep_rows": keep_rows, "min_executions": min_executions}
                for each in statements
            ],
            "counters": counters_of is not None,
            "server_pid": counters_of,
            "hold": hold,
        }
        # A statement may run into its timeout, and be asked for once more before the measurement time is over.
        longest_ns = sum(
            (1 + min_executions) * timing.statement_timeout_ns + timing.measurement_time_ns for _ in statements
        )
        timeout_s = SLACK_S + (timing.lead_in_ns + longest_ns) / 1e9
        asked = frozenset(each.query for each in statements)
        return self._lines.begin(command, timeout_s, Visit, lambda reply, held: self._visit(reply, asked, held))

    def _tell(self, answer: AnswerReference) -> str:
        """What the driver calls the answer, which is told once and before any visit: in a visit's own command its rows would be
        read between the host's start of the visit and the driver's, in an emulated guest for tens of ms."""
        if id(answer) not in self._told:
            told = {
                "columns": answer.columns,
                "relative_tolerance": answer.relative_tolerance,
                "absolute_tolerance": answer.absolute_tolerance,
                "rows": answer.rows,
            }
            name = str(len(self._told))
            self._lines.ask({"command": "answer", "name": name, "answer": told}, SLACK_S)
            self._told[id(answer)] = (name, answer)
        return self._told[id(answer)][0]

    def _visit(self, reply: Json, asked: frozenset[str], held: HeldAt) -> VisitReply:
        host_start_ns, host_end_ns = self._lines.bracket()
        executions = tuple(Execution(**{key: told.get(key) for key in _EXECUTION}) for told in reply["executions"])
        if any(each.end_ns < each.start_ns for each in executions):
            raise self._lines.strange("an execution that ended before it began")
        if unasked := {each.statement for each in executions} - asked:
            raise self._lines.strange(f"an execution of {said(min(unasked))}, which was not asked for")
        return VisitReply(
            start_ns=reply["start_ns"],
            end_ns=reply["end_ns"],
            executions=executions,
            lead_in=reply["lead_in"],
            counters=reply["counters"],
            host_start_ns=host_start_ns,
            host_end_ns=host_end_ns,
            held_ns=held.held_ns,
            host_held_ns=held.host_held_ns,
            host_asked_ns=held.host_asked_ns,
        )

    def query(self, sql: str, *, timeout_s: float = QUERY_TIMEOUT_S) -> list[list[str | None]]:
        """Rows of text, untimed. Raises EngineError with SQLSTATE and message, ChannelError after ``timeout_s``."""
        rows: list[list[str | None]] = self._lines.ask({"command": "query", "sql": sql}, timeout_s, Queried)["rows"]
        return rows

    def connect(self) -> None:
        """Connect now, so that nothing else does it later."""
        self._lines.ask({"command": "connect"}, SLACK_S)

    def disconnect(self) -> None:
        """Close the connection; the next command makes a new one."""
        self._lines.ask({"command": "disconnect"}, SLACK_S)

    def counters(self, **parameters: Any) -> Json:
        """As Machine.counters, in order with the other commands."""
        return self._lines.ask({"command": "counters", **parameters}, SLACK_S, Counters)

    def close(self) -> None:
        """Disconnect and end the driver. Also after a failure, also twice."""
        self._lines.close()


def _request(
    statement: Statement, query_protocol: str, measurement_time_ns: int, timeout_ns: int, answer: str | None
) -> Json:
    simple = query_protocol == "simple"
    return {
        "id": statement.query,
        "sql": statement.text if simple else statement.template,
        "parameters": [] if simple else list(statement.parameters),
        "query_protocol": query_protocol,
        "measurement_time_ns": measurement_time_ns,
        "timeout_ns": timeout_ns,
        "answer": answer,
    }
