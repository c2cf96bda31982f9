"""Whose machine a host is, and of what type: by what its firmware and its processor say, and, only where that is asked for, by
the cloud's metadata service."""

from __future__ import annotations

import io
import posixpath
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Final

from dbtoll.channel.relay import RelayStream
from dbtoll.errors import AgentFailure, DbtollError
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.chroot import agent_path
from dbtoll.model.json import Json

DMI: Final = "/sys/class/dmi/id"
DMI_NAMES: Final = ("sys_vendor", "product_name", "product_version", "chassis_asset_tag", "bios_vendor", "board_name")
"""No serial numbers: they are nobody's business."""

FACT_MAX: Final = 200

METADATA: Final = ("169.254.169.254", 80)
"""Link-local, the same in every cloud that has it."""

TYPE: Final = "[A-Za-z0-9._-]{1,64}"
"""What may be the name of one."""

ANSWER_S: Final = 2.0
ANSWER_MAX_BYTES: Final = 1 << 14


def facts(host: AgentMachine, *, metadata: bool) -> Json:
    """``hypervisor``: the processor's or Xen's word for it, None on none; ``dmi``: the firmware's; ``instance``: the cloud's own
    name for such a machine with the cloud, None where it was not asked or does not say."""
    return {
        "hypervisor": _hypervisor(host),
        "dmi": {name: value for name in DMI_NAMES if (value := _line(host, f"{DMI}/{name}"))},
        "instance": _instance(host) if metadata else None,
    }


def _hypervisor(host: AgentMachine) -> str | None:
    told = host.run([agent_path(host), "hypervisor"], check=False).output.decode(errors="replace")
    return _shown(told) or _line(host, "/sys/hypervisor/type")


def _line(host: AgentMachine, path: str) -> str | None:
    with suppress(AgentFailure):
        return _shown(host.get(path, max_bytes=4096).decode(errors="replace"))
    return None


def _shown(text: str) -> str | None:
    """One line of printable characters, not too many."""
    return re.sub(r"[^ -~]", "", text).strip()[:FACT_MAX] or None


# --- metadata services -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Service:
    """How one cloud is asked. ``token``: a request that comes first, and the header that its answer goes into."""

    cloud: str
    path: str
    headers: Mapping[str, str]
    token: tuple[str, Mapping[str, str], str] | None = None


SERVICES: Final = (
    Service(
        "AWS",  # instance metadata service, version 2
        "/latest/meta-data/instance-type",
        {},
        ("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "X-aws-ec2-metadata-token"),
    ),
    Service("Google Cloud", "/computeMetadata/v1/instance/machine-type", {"Metadata-Flavor": "Google"}),
    Service("Azure", "/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text", {"Metadata": "true"}),
)


def _instance(host: AgentMachine) -> Json | None:
    for service in SERVICES:
        headers = dict(service.headers)
        if service.token is not None:
            path, asked, header = service.token
            token = _asked(host, "PUT", path, asked)
            if token is None:
                continue
            headers[header] = token
        # Google's has the number of the user's project before it.
        told = posixpath.basename(_asked(host, "GET", service.path, headers) or "")
        if re.fullmatch(TYPE, told):
            return {"cloud": service.cloud, "type": told}
    return None


def _asked(host: AgentMachine, method: str, path: str, headers: Mapping[str, str]) -> str | None:
    """The one line that is answered; None where nobody answers so in time. From over there: the address is that host's own."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {METADATA[0]}", "Connection: close", "Content-Length: 0"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
    try:
        with _connected(host) as stream:
            stream.write(request)
            answer = b""
            while len(answer) <= ANSWER_MAX_BYTES and (piece := stream.read(ANSWER_MAX_BYTES)):
                answer += piece
        response = HTTPResponse(_Received(answer))  # type: ignore[arg-type]
        response.begin()
        body = response.read(ANSWER_MAX_BYTES).decode(errors="replace")
    except (DbtollError, HTTPException, ValueError):
        return None
    return _shown(body) if response.status == 200 else None


@contextmanager
def _connected(host: AgentMachine) -> Iterator[RelayStream]:
    with host.connect(tcp=METADATA, timeout_s=ANSWER_S) as stream:
        patience = threading.Timer(ANSWER_S, stream.kill)
        patience.start()
        try:
            yield stream
        finally:
            patience.cancel()


@dataclass(frozen=True, slots=True)
class _Received:
    """What http.client takes for a socket: an answer that has come."""

    answer: bytes

    def makefile(self, mode: str) -> io.BytesIO:
        """For reading."""
        del mode
        return io.BytesIO(self.answer)
