"""Writes vectors/valid.json and vectors/invalid.json: what both languages' codecs must accept and refuse.

Independent of both implementations on purpose: it imports neither and follows docs/PROTOCOL.md only.
Run it after a change of the protocol: `python3 protocol/make_vectors.py`; README.md here explains the files.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

HELLO, OPEN, DATA, CREDIT, END, ERROR = range(1, 7)
NAMES = {HELLO: "HELLO", OPEN: "OPEN", DATA: "DATA", CREDIT: "CREDIT", END: "END", ERROR: "ERROR"}
MAX_PAYLOAD = 262_144

Json = dict[str, Any]
Frame = tuple[int, int, int, bytes]  # kind, channel, stream, payload


def dump(value: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def raw(
    kind: int,
    channel: int,
    stream: int,
    sequence: int,
    payload: bytes = b"",
    *,
    sync: bytes = b"dbtl",
    version: int = 1,
    length: int | None = None,
    flip: int = 0,
) -> bytes:
    """One frame with a correct checksum over whatever the header says; `flip` is xored into the checksum."""
    head = sync + struct.pack(
        "<BBHIII", version, kind, channel, stream, sequence, len(payload) if length is None else length
    )
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head)) ^ flip) + payload


def encode(frames: list[Frame]) -> bytes:
    """All frames of one direction, numbered from 0."""
    return b"".join(raw(kind, channel, stream, n, payload) for n, (kind, channel, stream, payload) in enumerate(frames))


def hello(role: str, **changes: Any) -> Frame:
    """A HELLO; a key whose change is `...` is left out."""
    body: Json = {"magic": "dbtoll", "role": role, "protocol": 1, "build": "0.1.0", "architecture": "x86_64", "pid": 17}
    if role == "agent":
        body["clock"] = {"source": "CLOCK_MONOTONIC", "resolution_ns": 1}
    body |= {"max_payload_bytes": MAX_PAYLOAD, "max_streams": 256, "window_bytes": 1 << 20}
    body |= changes
    return (HELLO, 0, 0, dump({key: value for key, value in body.items() if value is not ...}))


def open_(stream: int, method: str = "ping", **params: Any) -> Frame:
    """The controller opens a stream."""
    return (OPEN, 0, stream, dump({"method": method, "params": params}))


def data(stream: int, payload: bytes, channel: int = 0) -> Frame:
    """Bytes on a stream."""
    return (DATA, channel, stream, payload)


def credit(stream: int, amount: int) -> Frame:
    """So many more bytes may come."""
    return (CREDIT, 0, stream, struct.pack("<I", amount))


def end(stream: int, **result: Any) -> Frame:
    """End of input, or the result."""
    return (END, 0, stream, dump(result))


def error(stream: int, code: str, message: str = "m") -> Frame:
    """A failure."""
    return (ERROR, 0, stream, dump({"code": code, "message": message, "detail": {}}))


CONTROLLER, AGENT = hello("controller"), hello("agent")


def valid_vectors() -> list[Json]:
    """What must be accepted."""
    vectors: list[Json] = []

    def add(
        name: str, receiver: str, frames: list[Frame], *, before: bytes = b"", about: str = "", **context: Any
    ) -> None:
        described = []
        for sequence, (kind, channel, stream, payload) in enumerate(frames):
            described.append({"kind": NAMES[kind], "channel": channel, "stream": stream, "sequence": sequence})
            if kind in (DATA, CREDIT):
                described[-1]["payload_hex"] = payload.hex()
            else:
                described[-1] |= {"payload_hex": payload.hex(), "json": json.loads(payload)}
        vectors.append(
            {
                "name": name,
                "about": about,
                "context": {"receiver": receiver, **context},
                "skipped_bytes": len(before),
                "hex": (before + encode(frames)).hex(),
                "frames": described,
            }
        )

    add("hello of a controller", "agent", [CONTROLLER])
    add("hello of an agent", "controller", [AGENT])
    add("hello with an unknown key", "agent", [hello("controller", colour="blue")], about="unknown keys are ignored")
    add("nothing at all", "agent", [], about="the other side left before it said a word: a clean end")
    add("ping", "agent", [CONTROLLER, open_(1)])
    add("its answer", "controller", [AGENT, end(1, at_ns=123_456_789)], opened=[1])
    add(
        "a program with input",
        "agent",
        [CONTROLLER, open_(1, "run", argv=["/bin/cat"]), data(1, b"hello\n"), credit(1, 65_536), end(1)],
    )
    add(
        "its output on three channels",
        "controller",
        [
            AGENT,
            data(1, b'{"pid":5,"at_ns":1}', 2),
            data(1, b"hello\n"),
            data(1, bytes(range(256)), 1),
            credit(1, 6),
            end(1, exit_code=0),
        ],
        opened=[1],
    )
    add("many streams", "agent", [CONTROLLER, *(open_(n) for n in range(1, 9))])
    add("text beyond ASCII", "agent", [CONTROLLER, open_(1, "get", path="/tmp/ß€😀")])
    add("cancel", "agent", [CONTROLLER, open_(1, "run", argv=["/bin/sleep", "9"]), error(1, "cancelled")])
    add("failure of a stream", "controller", [AGENT, error(1, "not_found")], opened=[1])
    add("failure of the connection", "controller", [AGENT, error(0, "protocol")], about="valid; the connection ends")
    add(
        "every code",
        "controller",
        [AGENT, *(error(n, code) for n, code in enumerate(CODES, 1))],
        opened=list(range(1, 13)),
    )
    add(
        "frames that crossed on the way",
        "controller",
        [AGENT, end(1), data(1, b"late"), credit(1, 1), end(1), error(1, "io")],
        opened=[1],
        about="for a stream that is closed already: ignored",
    )
    add("largest credit", "agent", [CONTROLLER, open_(1, "run", argv=["/bin/cat"]), credit(1, 2**31 - 1 - 2**20)])
    add("boot messages first", "agent", [CONTROLLER], before=b"[    0.000000] Linux version 6.1\r\ndb dbt \r\n")
    add(
        "boot messages with the sync letters",
        "agent",
        [CONTROLLER, open_(1)],
        before=b"dbtldbtl" + raw(HELLO, 0, 0, 0, b"{}", flip=1) + b"dbtl\x01",
        about="letters that begin no whole, unchanged frame are skipped like any other",
    )
    add("as many bytes skipped as allowed", "agent", [CONTROLLER], before=b"#" * 65_536)
    return vectors


CODES = [
    "protocol",
    "version",
    "bad_request",
    "unknown_method",
    "refused",
    "not_found",
    "io",
    "timeout",
    "cancelled",
    "too_large",
    "server",
    "internal",
]


def invalid_vectors() -> list[Json]:  # noqa: PLR0915 - a list
    """What must be refused."""
    vectors: list[Json] = []

    def add(name: str, about: str, good: list[Frame], bad: bytes, code: str = "protocol", **context: Any) -> None:
        vectors.append(
            {
                "name": name,
                "about": about,
                "error": code,
                "context": context or None,
                "good_frames": len(good),
                "hex": (encode(good) + bad).hex(),
            }
        )

    one = [CONTROLLER]
    # It stays open whatever arrives.
    running = [CONTROLLER, open_(1, "run", argv=["/bin/sleep", "9"])]

    # What the codec alone finds out.
    add("bad sync", "no frame begins after the first", one, raw(OPEN, 0, 1, 1, b"{}", sync=b"DBTL"))
    add("garbage after the handshake", "nothing is skipped any more", one, b"login: " * 8)
    add("garbage of four bytes", "too few bytes for a header, and none of a frame", one, b"oops")
    add("lost byte", "the frame before is one byte short", one, raw(OPEN, 0, 1, 1, dump({"method": "ping"}))[1:])
    add(
        "other version first",
        "before any HELLO",
        [],
        raw(HELLO, 0, 0, 0, dump({"magic": "dbtoll"}), version=2),
        "version",
    )
    add("other version later", "", one, raw(OPEN, 0, 1, 1, b"{}", version=0), "version")
    add(
        "version before length",
        "checked in this order",
        one,
        raw(OPEN, 0, 1, 1, b"", version=9, length=2**32 - 1),
        "version",
    )
    add("length over the maximum", "by one", one, raw(OPEN, 0, 1, 1, b"", length=MAX_PAYLOAD + 1))
    add("length of 4 GiB", "no memory is taken for it", one, raw(OPEN, 0, 1, 1, b"", length=2**32 - 1))
    add("changed payload", "checksum", one, raw(OPEN, 0, 1, 1, dump({"method": "ping", "params": {}}), flip=1))
    add("changed header", "checksum", one, raw(OPEN, 0, 1, 1, b"{}")[:8] + b"\x02" + raw(OPEN, 0, 1, 1, b"{}")[9:])
    add(
        "checksum before sequence",
        "both wrong; same code, the frame is not believed",
        one,
        raw(OPEN, 0, 1, 7, b"{}", flip=1),
    )
    add("lost frame", "sequence 2 where 1 was due", one, raw(OPEN, 0, 1, 2, dump({"method": "ping", "params": {}})))
    add("repeated frame", "sequence 0 twice", one, raw(*CONTROLLER[:3], 0, CONTROLLER[3]))
    add("first sequence not 0", "", [], raw(*CONTROLLER[:3], 1, CONTROLLER[3]))
    add("unknown kind 0", "", one, raw(0, 0, 1, 1, b"{}"))
    add("unknown kind 7", "", one, raw(7, 0, 1, 1, b"{}"))
    add("unknown channel", "only 0, 1 and 2", running, raw(DATA, 3, 1, 2, b"x"))
    add("channel on OPEN", "DATA only", one, raw(OPEN, 1, 1, 1, dump({"method": "ping", "params": {}})))
    add("HELLO on a stream", "", [], raw(HELLO, 0, 1, 0, CONTROLLER[3]))
    add("OPEN on stream 0", "", one, raw(OPEN, 0, 0, 1, dump({"method": "ping", "params": {}})))
    add("DATA on stream 0", "", one, raw(DATA, 0, 0, 1, b"x"))
    add("CREDIT on stream 0", "", one, raw(CREDIT, 0, 0, 1, struct.pack("<I", 1)))
    add("END on stream 0", "", one, raw(END, 0, 0, 1, b"{}"))
    add("empty DATA", "not allowed", running, raw(DATA, 0, 1, 2))
    add("short CREDIT", "not one u32", running, raw(CREDIT, 0, 1, 2, b"\1\0\0"))
    add("long CREDIT", "not one u32", running, raw(CREDIT, 0, 1, 2, b"\1\0\0\0\0"))
    add("ends inside a header", "", one, raw(OPEN, 0, 1, 1, b"{}")[:20])
    add("ends inside a payload", "", one, raw(OPEN, 0, 1, 1, b"{}")[:-1])
    add("never a frame", "more bytes than may be skipped", [], b"#" * 65_537 + raw(*CONTROLLER[:3], 0, CONTROLLER[3]))
    add("ends before the first frame", "", [], b"login: ")

    # What only a receiver with a role, streams and credit finds out.
    to_agent: Json = {"receiver": "agent"}
    to_controller: Json = {"receiver": "controller", "opened": [1]}

    def bad_hello(name: str, body: bytes) -> None:
        add(name, "HELLO", [], raw(HELLO, 0, 0, 0, body), **to_agent)

    bad_hello("HELLO that is no JSON", b"{")
    bad_hello("HELLO that is no object", b"[]")
    bad_hello("HELLO that is not UTF-8", b'{"magic":"\xff"}')
    bad_hello("HELLO without magic", hello("controller", magic=...)[3])
    bad_hello("HELLO with another magic", hello("controller", magic="dbroll")[3])
    bad_hello("HELLO without a window", hello("controller", window_bytes=...)[3])
    bad_hello("HELLO with a mistyped window", hello("controller", window_bytes="1048576")[3])
    bad_hello("HELLO with a negative window", hello("controller", window_bytes=-1)[3])
    bad_hello("HELLO with a window beyond 2^31-1", hello("controller", window_bytes=2**31)[3])
    bad_hello("HELLO with a window below 4096", hello("controller", window_bytes=4095)[3])
    bad_hello("HELLO with a payload beyond the maximum", hello("controller", max_payload_bytes=MAX_PAYLOAD + 1)[3])
    bad_hello("HELLO with a payload below 4096", hello("controller", max_payload_bytes=4095)[3])
    bad_hello("HELLO of protocol 2 in a frame of version 1", hello("controller", protocol=2)[3])
    bad_hello("HELLO with a fractional pid", hello("controller", pid=1.5)[3])
    bad_hello("HELLO of the same role", AGENT[3])
    add("no HELLO first", "a whole frame, but not HELLO", [], encode([open_(1)]), **to_agent)
    add("second HELLO", "", one, raw(*CONTROLLER[:3], 1, CONTROLLER[3]), **to_agent)
    add("agent's HELLO without a clock", "", [], encode([hello("agent", clock=...)]), receiver="controller")

    def to_the_agent(name: str, about: str, frames: list[Frame], **context: Any) -> None:
        add(name, about, frames[:-1], encode(frames)[len(encode(frames[:-1])) :], **to_agent, **context)

    def to_the_controller(name: str, about: str, frames: list[Frame], **context: Any) -> None:
        frames = [AGENT, *frames]
        add(name, about, frames[:-1], encode(frames)[len(encode(frames[:-1])) :], **(to_controller | context))

    to_the_agent("first stream is 2", "streams are numbered 1, 2, 3 …", [CONTROLLER, open_(2)])
    to_the_agent("stream opened twice", "", [CONTROLLER, open_(1), open_(1)])
    to_the_agent("OPEN that is no JSON", "", [CONTROLLER, (OPEN, 0, 1, b"ping")])
    to_the_agent("OPEN without a method", "", [CONTROLLER, (OPEN, 0, 1, dump({"params": {}}))])
    to_the_agent(
        "OPEN with an unknown key", "", [CONTROLLER, (OPEN, 0, 1, dump({"method": "ping", "params": {}, "x": 1}))]
    )
    to_the_agent(
        "OPEN with params that are no object", "", [CONTROLLER, (OPEN, 0, 1, dump({"method": "ping", "params": []}))]
    )
    to_the_agent("OPEN nested too deep", "", [CONTROLLER, (OPEN, 0, 1, b"[" * 2_000)])
    to_the_agent("DATA on a stream never opened", "", [CONTROLLER, data(1, b"x")])
    to_the_agent("CREDIT on a stream never opened", "", [CONTROLLER, credit(1, 1)])
    to_the_agent("END on a stream never opened", "", [CONTROLLER, end(1)])
    to_the_agent("ERROR on a stream never opened", "", [CONTROLLER, error(1, "cancelled")])
    to_the_agent("DATA on channel 1 from a controller", "input has one channel", [*running, data(1, b"x", 1)])
    to_the_agent("DATA after END", "", [*running, end(1), data(1, b"x")])
    to_the_agent("END twice", "", [*running, end(1), end(1)])
    to_the_agent("END that is no JSON", "", [*running, (END, 0, 1, b"")])
    to_the_agent("END that is no object", "", [*running, (END, 0, 1, b"null")])
    to_the_agent("ERROR that is no JSON", "", [*running, (ERROR, 0, 1, b"cancelled")])
    to_the_agent("ERROR with an unknown code", "", [*running, error(1, "tired")])
    to_the_agent("credit beyond 2^31-1", "on top of the window of 1 MiB", [*running, credit(1, 2**31 - 2**20)])
    to_the_agent(
        "DATA beyond the window",
        "the receiver's own window is `window_bytes`",
        [CONTROLLER, open_(1, "put", path="/tmp/dbtoll-vector", size_bytes=9), data(1, b"x" * 4097)],
        window_bytes=4096,
    )
    to_the_controller("OPEN from an agent", "", [open_(2)])
    to_the_controller("DATA on a stream never opened, from an agent", "", [data(2, b"x")])
    to_the_controller("END on a stream never opened, from an agent", "", [end(2)])
    to_the_controller("END that is no object, from an agent", "", [(END, 0, 1, b"7")])
    to_the_controller("ERROR without a message", "", [(ERROR, 0, 1, dump({"code": "io"}))])
    to_the_controller("ERROR with an unknown code, from an agent", "", [error(1, "tired")])
    to_the_controller("second HELLO, from an agent", "", [AGENT])
    to_the_controller("credit beyond 2^31-1, from an agent", "on top of the window", [credit(1, 2**31 - 2**20)])
    to_the_controller(
        "DATA beyond the window, from an agent",
        "all channels count; the receiver's own window is `window_bytes`",
        [data(1, b"x" * 4096), data(1, b"x", 1)],
        window_bytes=4096,
    )
    return vectors


def main() -> None:
    """Writes both files."""
    folder = Path(__file__).parent / "vectors"
    folder.mkdir(exist_ok=True)
    for name, vectors in (("valid", valid_vectors()), ("invalid", invalid_vectors())):
        assert len({vector["name"] for vector in vectors}) == len(vectors), "names must be unique"
        lines = ",\n".join(json.dumps(vector, ensure_ascii=True) for vector in vectors)
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
