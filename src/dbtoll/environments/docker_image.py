"""A system image's directory as an image of a Docker daemon, imported once."""

from __future__ import annotations

import re
from typing import Any

from dbtoll.channel.machine import AgentMachine
from dbtoll.environments.docker_api import Api
from dbtoll.environments.dockerd import find_program
from dbtoll.errors import ProgramFailed, Unavailable
from dbtoll.model import Artifact

REPOSITORY = "dbtoll/image"
IMPORT_TIMEOUT_S = 900.0

BY_DOCKER = 'docker --host "unix://$2" import - "$3"'
BY_CURL = (
    'curl --silent --show-error --fail-with-body --unix-socket "$2" --header "Content-Type: application/x-tar" '
    '--upload-file - --request POST "http://docker/images/create?fromSrc=-&repo=${3%:*}&tag=${3##*:}"'
)


def tag_of(image: Artifact) -> str:
    """The name under which a daemon knows the image: from its key, so that it is found again."""
    return f"{REPOSITORY}:{re.sub('[^A-Za-z0-9_.-]', '-', image.key)[-128:]}"


def import_image(machine: AgentMachine, api: Api, image: Artifact) -> None:
    """Have a program on the daemon's machine stream the directory to it, unless it has it: nothing crosses our line."""
    if _has(api.client, tag_of(image)):
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
            *(path, api.path, tag_of(image)),
        ],
        timeout_s=IMPORT_TIMEOUT_S,
        check=False,
    )
    if done.exit_code != 0:
        words = (done.error_output + done.output).decode(errors="replace").strip()[-400:]
        raise ProgramFailed(
            f"{machine.name}: the image {path} could not be imported: {words}", "look for space on its disk"
        )


def _has(client: Any, tag: str) -> bool:
    import docker

    try:
        client.inspect_image(tag)
    except docker.errors.ImageNotFound:
        return False
    return True
