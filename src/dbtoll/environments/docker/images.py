"""A system image's directory as an image of a Docker daemon: imported once, found again by its label, removed when it is unused
for longest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from dbtoll.environments.docker.api import Api, reason
from dbtoll.errors import DbtollError, ProgramFailed, Unavailable
from dbtoll.machines.agent.machine import AgentMachine
from dbtoll.machines.programs import find_program
from dbtoll.model.machine import Artifact

REPOSITORY = "dbtoll/image"
TAGGED = f"{REPOSITORY}:[A-Za-z0-9_.-]{{1,128}}"
"""How imported images are called (`tag_of`)."""

LABEL = "dbtoll.image"
"""Its value is the tag, which is made from the image's key."""

IMPORTED_MAX_BYTES = 8 << 30
"""What imported images may take of a daemon's disk, about twenty: those that have been unused for longest make room."""

IMPORT_TIMEOUT_S = 900.0

BY_DOCKER = f'docker --host "unix://$2" import --change "LABEL {LABEL}=${{3##*:}}" - "$3"'
BY_CURL = (
    'curl --silent --show-error --fail-with-body --unix-socket "$2" --header "Content-Type: application/x-tar" '
    '--upload-file - --request POST "http://docker/images/create?fromSrc=-&repo=$3'
    f'&changes=LABEL%20{LABEL}%3D${{3##*:}}"'
)


@dataclass(frozen=True, slots=True)
class Imported:
    """An image that dbtoll imported. ``used_at``: when it was last used, s since 1970. ``names``: its tags of ours, else its id."""

    client: Any
    key: str
    names: tuple[str, ...]
    size_bytes: int
    used_at: float

    def remove(self) -> bool:
        """False if a container uses it. DbtollError with what the daemon said. What it is called by others stays."""
        import docker

        for name in self.names:
            try:
                self.client.remove_image(name)
            except docker.errors.ImageNotFound:
                continue
            except docker.errors.APIError as error:
                if error.status_code == HTTPStatus.CONFLICT:
                    return False
                raise DbtollError(f"the image {name} could not be removed: {reason(error)}") from error
        return True


def imported(api: Api) -> list[Imported]:
    """Those of one daemon, the longest unused first."""
    client: Any = api.client
    labelled, earlier = client.images(filters={"label": LABEL}), client.images(name=REPOSITORY)
    found = []
    for number in {image["Id"] for image in (*labelled, *earlier)}:
        told = client.inspect_image(number)
        tags = tuple(tag for tag in told["RepoTags"] or () if tag.partition(":")[0].endswith(REPOSITORY))
        key = tags[0].rpartition(":")[2] if tags else ""
        last_tag = (told.get("Metadata") or {}).get("LastTagTime") or ""  # podman knows none
        used_at = max(_seconds(told["Created"]), _seconds(last_tag))
        found.append(Imported(client, key, tags or (number,), int(told["Size"]), used_at))
    return sorted(found, key=lambda image: image.used_at)


def _seconds(text: str) -> float:
    """RFC 3339, as the API writes times; 0 where there is none."""
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _make_room(api: Api, kept: str) -> None:
    """What goes beyond the limit, but for the image ``kept`` and those of containers."""
    images = imported(api)
    excess_bytes = sum(image.size_bytes for image in images) - IMPORTED_MAX_BYTES
    for image in images:
        if excess_bytes > 0 and kept not in image.names and image.remove():
            excess_bytes -= image.size_bytes


def tag_of(image: Artifact) -> str:
    """The name under which a daemon knows the image: from its key, so that it is found again."""
    return f"{REPOSITORY}:{re.sub('[^A-Za-z0-9_.-]', '-', image.key)[-128:]}"


def import_image(machine: AgentMachine, api: Api, image: Artifact) -> None:
    """Have a program on the daemon's machine stream the directory to it, unless it has it: nothing crosses our line."""
    tag = tag_of(image)
    if has_image(api.client, tag):
        api.client.tag(tag, REPOSITORY, tag.rpartition(":")[2])  # the daemon notes when: that is its last use
        return
    if find_program(machine, "docker"):
        sink = BY_DOCKER
    elif find_program(machine, "curl"):
        sink = BY_CURL
    else:
        raise Unavailable(
            f"{machine.name}: neither docker nor curl is there to import an image with", "apt-get install -y curl"
        )
    path = machine.provide(image)
    done = machine.run(
        [
            *("bash", "-c", f'set -o pipefail; tar --numeric-owner -C "$1" -c . | {sink}', "import"),
            *(path, api.path, tag),
        ],
        timeout_s=IMPORT_TIMEOUT_S,
        check=False,
    )
    if done.exit_code != 0:
        words = (done.error_output + done.output).decode(errors="replace").strip()[-400:]
        raise ProgramFailed(
            f"{machine.name}: the image {path} could not be imported: {words}", "look for space on its disk"
        )

    _make_room(api, tag)


def has_image(client: Any, tag: str) -> bool:
    """Whether the daemon knows it by that name."""
    import docker

    try:
        client.inspect_image(tag)
    except docker.errors.ImageNotFound:
        return False
    return True
