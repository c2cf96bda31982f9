"""The serial load driver of an agent as a session: JSON lines over the method ``serial``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dbtoll.channel.client import MAIN, Channel
from dbtoll.channel.frames import json_payload
from dbtoll.errors import ChannelError, EngineError
from dbtoll.interfaces import Stamped
from dbtoll.model import Address, AnswerReference, Execution, Json, Pace, Statement, VisitReply

LEAD_IN_SQL: Final = "SELECT 1"
"""What the untimed lead-in repeats.

BIAS: it wakes timers, connection and processor but brings none of the statement's data back into the caches; that part
of what a switch costs stays in the first timed execution, in every arm.
"""

LINE_MAX_BYTES: Final = 64 << 20
QUERY_TIMEOUT_S: Final = 300.0
"""Plans, counters, a checkpoint: within seconds where the server lives; a round shall not wait for a dead one for hours."""

_SLACK_S: Final = 120.0


class SerialSession:
    """Implements interfaces.Session. One command at a time; a lost connection is made again by the next one."""

    def __init__(self, channel: Channel, address: Address, connection: str, *, lead_in_sql: str = LEAD_IN_SQL) -> None:
        self.lead_in_sql = lead_in_sql
        self._channel = channel
        self._buffer = bytearray()
        self._stream = channel.open(
            "serial",
            {
                "wire": address.wire,
                "address": {"unix": address.unix} if address.unix is not None else {"tcp": list(address.tcp or ())},
                "user": address.user,
                "password": address.password,
                "database": address.database,
                "connection": connection,
            },
        )

    def visit(
        self,
        statements: Sequence[Statement],
        *,
        mode: str,
        pace: Pace,
        answers: Mapping[str, AnswerReference],
        lead_in: bool = True,
        dwell: bool = True,
        least: int = 1,
        keep_rows: bool = False,
        counters_of: int | None = None,
    ) -> VisitReply:
        """Execute ``statements`` in order, each ``least`` times and until the pace's dwell has passed (without ``dwell``: no more).

        ``mode``: simple, extended or prepared. ``answers`` by query name; what has none is not compared.
        ``counters_of``: a server's first process, whose tree's counters are read right before and after. Raises
        EngineError if there is no connection to be had; a statement that fails is an outcome, not an error.
        """
        dwell_ns = pace.dwell_ns if dwell else 0
        command: Json = {
            "command": "visit",
            "lead_in": {"sql": self.lead_in_sql, "min_ns": pace.lead_in_ns, "min_executions": 1} if lead_in else None,
            "statements": [
                _request(each, mode, dwell_ns, pace.statement_timeout_ns, answers.get(each.query))
                | {"keep_rows": keep_rows, "min_executions": least}
                for each in statements
            ],
            "counters": counters_of is not None,
            "server_pid": counters_of,
        }
        # A statement may run into its timeout, and be asked for once more before its dwell is over.
        longest_ns = sum((1 + least) * pace.statement_timeout_ns + pace.dwell_ns for _ in statements)
        reply = self._ask(command, _SLACK_S + (pace.lead_in_ns + longest_ns) / 1e9)
        written_count, read_count = self._stream.written_count, self._stream.read_count
        bracket = self._channel.line if isinstance(self._channel.line, Stamped) else None
        try:
            return VisitReply(
                start_ns=reply["start_ns"],
                end_ns=reply["end_ns"],
                executions=tuple(Execution(**execution) for execution in reply["executions"]),
                lead_in=reply["lead_in"],
                counters=reply["counters"],
                host_start_ns=bracket.written_at(written_count) if bracket else None,
                host_end_ns=bracket.read_at(read_count) if bracket else None,
            )
        except (KeyError, TypeError) as error:
            raise self._strange(f"a visit was answered without {error}") from None

    def query(self, sql: str, *, timeout_s: float = QUERY_TIMEOUT_S) -> list[list[str | None]]:
        """Rows of text, untimed. Raises EngineError with SQLSTATE and message, ChannelError after ``timeout_s``."""
        rows = self._ask({"command": "query", "sql": sql}, timeout_s).get("rows")
        if not isinstance(rows, list):
            raise self._strange("a query was answered without rows")
        return rows

    def connect(self) -> None:
        """Connect now, so that nothing else does it later."""
        self._ask({"command": "connect"}, _SLACK_S)

    def disconnect(self) -> None:
        """Close the connection; the next command makes a new one."""
        self._ask({"command": "disconnect"}, _SLACK_S)

    def counters(self, **parameters: Any) -> Json:
        """As Machine.counters, in order with the other commands."""
        return self._ask({"command": "counters", **parameters}, _SLACK_S)

    def close(self) -> None:
        """Disconnect and end the driver. Also after a failure, also twice."""
        try:
            self._stream.end_input()
            if not self._stream.wait(_SLACK_S):
                self._stream.cancel()
        except ChannelError:
            return  # the line broke and took the driver with it

    def _ask(self, command: Json, timeout_s: float) -> Json:
        until = time.monotonic() + timeout_s
        line = json_payload(command) + b"\n"
        if len(line) > LINE_MAX_BYTES:
            raise EngineError(
                f"a command of {len(line)} bytes for {self._channel.name}; at most {LINE_MAX_BYTES} are taken"
            )
        if not self._stream.write(line, until):
            raise self._strange("the load driver has ended")
        reply = self._read_line(until)
        if (error := reply.get("error")) is not None:
            state = error.get("sqlstate") or "no SQLSTATE"
            raise EngineError(f"the server on {self._channel.name} refused: {error.get('message')} ({state})")
        return reply

    def _read_line(self, until: float) -> Json:
        searched = 0
        while (newline := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LINE_MAX_BYTES:
                raise self._strange(f"an answer of more than {LINE_MAX_BYTES} bytes")
            piece = self._stream.receive(until)
            if piece is None:
                raise self._strange("the load driver ended without an answer")
            if piece.channel == MAIN:
                self._buffer += piece.payload
        line = bytes(self._buffer[:newline])
        del self._buffer[: newline + 1]
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._strange("an answer that is not a JSON object")
        return value

    def _strange(self, what: str) -> ChannelError:
        return ChannelError(
            f"the load driver on {self._channel.name}: {what}", "run again; if it repeats, it is a defect"
        )


def _request(statement: Statement, mode: str, dwell_ns: int, timeout_ns: int, answer: AnswerReference | None) -> Json:
    simple = mode == "simple"
    return {
        "id": statement.query,
        "sql": statement.text if simple else statement.template,
        "parameters": [] if simple else list(statement.parameters),
        "mode": mode,
        "dwell_ns": dwell_ns,
        "timeout_ns": timeout_ns,
        "answer": None
        if answer is None
        else {"columns": answer.columns, "relative_tolerance": answer.relative_tolerance, "rows": answer.rows},
    }
