"""The system image as it really is: built by mmdebstrap, or taken from the user's cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dbtoll.errors import ProgramFailed, UsageError
from dbtoll.images import debian, inspect
from dbtoll.images.cache import Cache
from dbtoll.interfaces.machine import Machine
from dbtoll.model.machine import Artifact, Provision
from dbtoll.runner.preparation.software import image_software

OpenArm = Callable[..., Machine]


def test_it_holds_the_server_and_what_says_so(system_image: Artifact) -> None:
    root = Path(system_image.path)
    facts = debian.debian_image(Cache(), software=image_software()).facts
    assert re.fullmatch(r"15\..*", facts["packages"]["postgresql-15:amd64"])
    assert "procps:amd64" in facts["packages"]
    assert facts["release"].startswith("Debian GNU/Linux 12")
    assert len(facts["packages_sha256"]) == 64
    assert (root / "usr/lib/postgresql/15/bin/postgres").is_file()
    for name in inspect.DIRECTORIES:
        assert (root / name).is_dir()
    for name in inspect.FILES:
        assert (root / name).is_file()


def test_it_holds_no_cluster_and_nothing_of_this_host(system_image: Artifact) -> None:
    root = Path(system_image.path)
    assert not list((root / "etc/postgresql").glob("*"))
    assert not list((root / "var/lib/postgresql").glob("*"))
    for name in ("etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list", "etc/resolv.conf"):
        assert not (root / name).exists()
    assert (root / "etc/hostname").read_text() == "dbtoll\n"


def test_it_is_slim_and_knows_only_the_locale_c(system_image: Artifact, open_arm: OpenArm) -> None:
    size = subprocess.run(["du", "-sxm", system_image.path], capture_output=True, check=True).stdout.split()[0]
    assert int(size) < 420  # MiB; 361 were measured
    machine = open_arm()
    assert machine.run(["locale", "-a"]).output.split() == [b"C", b"C.utf8", b"POSIX"]


def test_it_cannot_be_written_to(open_arm: OpenArm, tmp_path: Path) -> None:
    """An arm that changed it would change every other arm."""
    machine = open_arm()
    for path in ("/usr/spoilt", "/spoilt", "/dbtoll/spoilt"):
        assert machine.run(["touch", path], check=False).exit_code != 0
    data = tmp_path / "data"
    data.mkdir()
    other = open_arm(Provision(Artifact("test", str(data)), "/dbtoll/data", writable=True), name="b")
    other.run(["touch", "/dbtoll/data/written"])
    assert (data / "written").exists()


def test_an_unknown_suite_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="woody") as caught:
        debian.debian_image(Cache(tmp_path), "woody")
    assert "bookworm" in caught.value.hint


def test_a_mirror_that_is_none_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    if lacking := debian.missing_requirements():
        pytest.skip(f"{lacking[0].what}: {lacking[0].why}")
    cache = Cache(tmp_path)
    with pytest.raises(ProgramFailed, match="mmdebstrap ended with"):
        debian.debian_image(cache, mirror="http://127.0.0.1:9/debian")
    assert [path.suffix for path in (tmp_path / "image").iterdir()] == [".lock"]
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_the_hosts_way_to_its_mirrors_is_taken_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::https::CaInfo "/etc/ssl/own.pem";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'APT::Install-Recommends "true";\n'
        'DPkg::Post-Invoke { "touch /tmp/never"; };\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    text = debian.host_apt_configuration()
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in text
    assert 'Acquire::https::CaInfo "/etc/ssl/own.pem";' in text
    assert 'Acquire::Check-Valid-Until "false";' in text
    assert "Recommends" not in text
    assert "Invoke" not in text


def test_a_killed_build_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    """The whole way: SIGKILL to dbtoll ends mmdebstrap too, and what it left goes away."""
    if os.geteuid() != 0 or debian.missing_requirements():
        pytest.skip("needs root and mmdebstrap")
    program = (
        "from pathlib import Path; from dbtoll.images import debian, cache;"
        f"debian.debian_image(cache.Cache(Path({str(tmp_path)!r})), progress=lambda line: print(line, flush=True))"
    )
    builder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert builder.stdout is not None
        for line in builder.stdout:
            if "extracting" in line:
                break
        else:
            pytest.fail("it did not come so far")
    finally:
        builder.kill()
        builder.wait()
        builder.stdout.close()
    (building,) = (tmp_path / "image").glob("*.building")
    for _ in range(300):
        Cache(tmp_path).sweep()
        if not building.exists():
            break
        subprocess.run(["sleep", "0.1"], check=True)
    assert not building.exists()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout
