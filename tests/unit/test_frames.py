"""The codec against the golden frames and against everything hypothesis can think of."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbtoll.channel.frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SKIPPED_BYTES,
    Decoder,
    Encoder,
    Frame,
    FrameError,
    Kind,
    credit_payload,
)

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"


def vectors(name: str) -> list[Any]:
    return [pytest.param(each, id=each["name"]) for each in json.loads((VECTORS / name).read_text())]


def decode(data: bytes, piece_bytes: int) -> tuple[list[Frame], FrameError | None, Decoder]:
    """What comes out of one direction of a connection, up to its end, when it is fed in pieces of that size."""
    decoder, frames = Decoder(), []
    try:
        for start in range(0, len(data), piece_bytes):
            decoder.feed(data[start : start + piece_bytes])
            while (frame := decoder.take()) is not None:
                frames.append(frame)
        decoder.finish()
    except FrameError as violation:
        return frames, violation, decoder
    return frames, None, decoder


@pytest.mark.parametrize("vector", vectors("valid.json"))
@pytest.mark.parametrize("piece_bytes", [1 << 20, 977])
def test_valid_vectors(vector: Any, piece_bytes: int) -> None:
    frames, violation, _ = decode(bytes.fromhex(vector["hex"]), piece_bytes)
    assert violation is None
    assert [(f.kind.name, f.channel, f.stream, f.payload.hex()) for f in frames] == [
        (f["kind"], f["channel"], f["stream"], f["payload_hex"]) for f in vector["frames"]
    ]
    for frame, expected in zip(frames, vector["frames"], strict=True):
        if isinstance(expected.get("json"), dict):
            assert frame.json() == expected["json"]


@pytest.mark.parametrize("vector", vectors("valid.json"))
def test_valid_vectors_encode_to_the_same_bytes(vector: Any) -> None:
    encoder = Encoder()
    encoded = b"".join(
        encoder.encode(Kind[f["kind"]], f["stream"], bytes.fromhex(f["payload_hex"]), f["channel"])
        for f in vector["frames"]
    )
    assert encoded == bytes.fromhex(vector["hex"])[vector["skipped_bytes"] :]


@pytest.mark.parametrize("vector", vectors("invalid.json"))
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1])
def test_invalid_vectors(vector: Any, piece_bytes: int) -> None:
    data = bytes.fromhex(vector["hex"])
    if len(data) > 100_000 and piece_bytes == 1:
        pytest.skip("too many single bytes")
    frames, violation, _ = decode(data, piece_bytes)
    if vector["context"] is None:  # the codec alone must find it
        assert violation is not None
        assert violation.code == vector["error"]
        assert vector["error"] in violation.message
        assert len(frames) == vector["good_frames"]
    elif violation is not None:  # or it may, but not earlier than the rules that follow
        assert violation.code == vector["error"]
        assert len(frames) == vector["good_frames"]


payloads = {
    Kind.HELLO: st.binary(max_size=500),
    Kind.OPEN: st.binary(max_size=500),
    Kind.DATA: st.binary(min_size=1, max_size=2000),
    Kind.CREDIT: st.integers(0, (1 << 32) - 1).map(credit_payload),
    Kind.END: st.binary(max_size=500),
    Kind.ERROR: st.binary(max_size=500),
}


@st.composite
def messages(draw: st.DrawFn) -> tuple[Kind, int, bytes, int]:
    kind = draw(st.sampled_from([Kind.OPEN, Kind.DATA, Kind.CREDIT, Kind.END, Kind.ERROR]))
    stream = draw(st.integers(0 if kind is Kind.ERROR else 1, (1 << 32) - 1))
    return kind, stream, draw(payloads[kind]), draw(st.integers(0, 2)) if kind is Kind.DATA else 0


def line_of(sent: list[tuple[Kind, int, bytes, int]]) -> bytes:
    encoder = Encoder()
    return encoder.encode(Kind.HELLO, 0, b"{}") + b"".join(encoder.encode(*each) for each in sent)


@given(st.lists(messages(), max_size=20), st.integers(1, 400), st.binary(max_size=300))
def test_what_is_encoded_is_decoded(sent: list[tuple[Kind, int, bytes, int]], piece_bytes: int, noise: bytes) -> None:
    noise = noise.replace(b"dbtl", b"")
    frames, violation, decoder = decode(noise + line_of(sent), piece_bytes)
    assert violation is None
    assert [(f.kind, f.stream, f.payload, f.channel) for f in frames[1:]] == sent
    assert frames[-1].end_count == len(noise) + len(line_of(sent))
    assert decoder.pending_bytes == 0


@given(st.lists(messages(), min_size=1, max_size=8), st.data())
def test_no_changed_byte_comes_through(sent: list[tuple[Kind, int, bytes, int]], data: st.DataObject) -> None:
    line = bytearray(line_of(sent))
    at = data.draw(st.integers(HEADER_BYTES + 2, len(line) - 1), label="position after HELLO")
    line[at] ^= data.draw(st.integers(1, 255), label="change")
    frames, violation, _ = decode(bytes(line), 4096)
    assert violation is not None
    whole = [(f.kind, f.stream, f.payload, f.channel) for f in frames[1:]]
    assert whole == sent[: len(whole)]
    assert len(whole) < len(sent)


@given(st.lists(messages(), min_size=1, max_size=8), st.data())
def test_no_lost_byte_goes_unnoticed(sent: list[tuple[Kind, int, bytes, int]], data: st.DataObject) -> None:
    line = line_of(sent)
    start = data.draw(st.integers(HEADER_BYTES + 2, len(line) - 1), label="first lost byte")
    lost = data.draw(st.integers(1, len(line) - start), label="lost bytes")
    left = line[:start] + line[start + lost :]
    frames, violation, _ = decode(left, 4096)
    whole = [(f.kind, f.stream, f.payload, f.channel) for f in frames[1:]]
    assert whole == sent[: len(whole)]
    # Only what is as if it had been cut between two frames ends cleanly (equal bytes may have taken the place of the lost ones);
    # that it ended too early is for the layer above to say.
    assert violation is not None or (line.startswith(left) and len(left) == frames[-1].end_count)


@settings(max_examples=300)
@given(st.binary(max_size=3000), st.integers(1, 700))
def test_garbage_is_refused_or_waited_for(garbage: bytes, piece_bytes: int) -> None:
    frames, violation, decoder = decode(garbage, piece_bytes)
    assert frames == []
    assert violation is not None or garbage == b""
    assert decoder.pending_bytes <= HEADER_BYTES + MAX_PAYLOAD_BYTES


headers = st.builds(
    lambda version, kind, channel, stream, sequence, length, payload: (
        b"dbtl"
        + bytes([version, kind])
        + channel.to_bytes(2, "little")
        + b"".join(number.to_bytes(4, "little") for number in (stream, sequence, length)),
        payload,
    ),
    st.sampled_from([0, 1, 1, 1, 1, 2, 255]),
    st.integers(0, 255) | st.integers(1, 6),
    st.integers(0, 65535) | st.integers(0, 2),
    st.integers(0, (1 << 32) - 1) | st.integers(0, 2),
    st.integers(0, (1 << 32) - 1) | st.integers(0, 2),
    st.integers(0, (1 << 32) - 1) | st.integers(0, 40),
    st.binary(max_size=40),
)


@settings(max_examples=500)
@given(st.lists(headers, max_size=6), st.booleans(), st.integers(1, 100))
def test_hostile_headers_with_a_right_crc(hostile: list[tuple[bytes, bytes]], greeted: bool, piece_bytes: int) -> None:
    """Never anything but a frame by the rules or a FrameError, and never memory for a length that was only claimed."""
    line = line_of([]) if greeted else b""
    for header, payload in hostile:
        line += header + zlib.crc32(header + payload).to_bytes(4, "little") + payload
    frames, violation, decoder = decode(line, piece_bytes)
    assert decoder.pending_bytes <= len(line)
    for frame in frames:
        assert (frame.stream == 0) == (frame.kind is Kind.HELLO) or frame.kind is Kind.ERROR
        assert frame.channel == 0 or frame.kind is Kind.DATA
    if violation is not None:
        assert violation.code in ("protocol", "version")
        with pytest.raises(FrameError):
            decoder.take()


def test_a_length_alone_takes_no_memory() -> None:
    decoder = Decoder()
    decoder.feed(line_of([]))
    assert decoder.take() is not None
    decoder.feed(b"dbtl\x01\x03" + bytes(6) + b"\x01\x00\x00\x00" + (0xFFFFFFFF).to_bytes(4, "little") + bytes(4))
    with pytest.raises(FrameError, match="4294967295"):
        decoder.take()
    decoder.feed(bytes(1000))
    assert decoder.pending_bytes == 0


def test_nothing_is_skipped_beyond_the_limit() -> None:
    decoder = Decoder()
    decoder.feed(b"#" * (MAX_SKIPPED_BYTES + 4))
    with pytest.raises(FrameError, match="no HELLO within"):
        decoder.take()


def test_another_version_names_both() -> None:
    decoder = Decoder()
    header = b"dbtl\x02\x01" + bytes(14)
    decoder.feed(header + zlib.crc32(header).to_bytes(4, "little"))
    with pytest.raises(FrameError) as caught:
        decoder.take()
    assert caught.value.code == "version"
    assert "version 2" in caught.value.message
    assert "version 1" in caught.value.message
    assert "setup" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "stream", "payload", "channel"),
    [
        (Kind.DATA, 1, b"", 0),
        (Kind.DATA, 1, b"x", 3),
        (Kind.DATA, 0, b"x", 0),
        (Kind.OPEN, 1, b"{}", 1),
        (Kind.HELLO, 1, b"{}", 0),
        (Kind.CREDIT, 1, b"123", 0),
        (Kind.END, 1, bytes(MAX_PAYLOAD_BYTES + 1), 0),
    ],
)
def test_the_encoder_refuses_what_a_receiver_would(kind: Kind, stream: int, payload: bytes, channel: int) -> None:
    with pytest.raises(FrameError):
        Encoder().encode(kind, stream, payload, channel)
