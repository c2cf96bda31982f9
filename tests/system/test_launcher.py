"""The launcher's set-up on a machine that lacks a package, with the real apt: what it leaves when it is interrupted.

The machine is this one with a layer in memory over it, so that nothing of it is changed; its only source of packages is a
directory with one package, whose installation waits until the test lets it go on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbtoll.machines.agent.binary import find_agent
from tests.support.program import ROOT, is_root

DEADLINE_S = 120.0
POLICY = "usr/sbin/policy-rc.d"
REQUESTED = "mmdebstrap"
DENIED, ALLOWED = 101, 0
"""Exit codes of a policy (https://people.debian.org/~hmh/invokerc.d-policyrc.d-specification.txt)."""

FOREIGN = "#!/bin/sh\nexit 101\n"

POSTINST = f"""#!/bin/sh
touch /installing
while [ ! -e /go ]; do sleep 0.05; done
sh /{POLICY} some-service start; echo $? > /answered
"""

pytestmark = [
    pytest.mark.skipif(not is_root(), reason="a machine of its own takes mounts, and they take root"),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="the packages are Debian's"),
]


class Newcomer:
    """A machine on which the launcher has one package to install."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.policy = root / POLICY

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """The launcher's set-up, as the leader of a group of its own, as a terminal starts it; ``words`` in place of --yes."""
        home = str(Path(sys.prefix).parent)  # its Python packages are there already
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "DBTOLL_HOME": home, **environ}
        return subprocess.Popen(
            ["chroot", self.root, ROOT / "dbtoll", "setup", *(words or ["--yes"])], env=environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_hears_signals,  # noqa: PLW1509
        )  # fmt: skip

    def installing(self, launcher: subprocess.Popen[str]) -> None:
        """Waits until the package is half installed."""
        deadline = time.monotonic() + DEADLINE_S
        while not (self.root / "installing").exists():
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def go_on(self) -> None:
        (self.root / "go").touch()

    def answer(self) -> int:
        """What the policy says to whoever installs a service on this machine now."""
        if not self.policy.exists():
            return ALLOWED
        return subprocess.run(["chroot", self.root, f"/{POLICY}", "some-service", "start"], check=False).returncode


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    layers, root = tmp_path / "layers", tmp_path / "root"
    layers.mkdir()
    root.mkdir()
    mounted: list[Path] = []

    def mount(*words: str | Path, at: Path) -> None:
        subprocess.run(["mount", *words, at], check=True)
        mounted.append(at)

    try:
        mount("-t", "tmpfs", "none", at=layers)
        for name in ("upper", "work"):
            (layers / name).mkdir()
        options = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        try:
            mount("-t", "overlay", "-o", options, "none", at=root)
        except subprocess.CalledProcessError:
            pytest.skip("no overlay over this root file system")
        mount("-t", "proc", "none", at=root / "proc")
        mount("--bind", "/dev", at=root / "dev")
        if not (root / ROOT.relative_to("/")).exists():  # on another file system than the root
            (root / ROOT.relative_to("/")).mkdir(parents=True)
            mount("--bind", ROOT, at=root / ROOT.relative_to("/"))
        (root / POLICY).unlink(missing_ok=True)
        for found in ("usr/bin", "bin", "usr/local/bin"):
            (root / found / REQUESTED).unlink(missing_ok=True)
        sell(root, tmp_path)
        yield Newcomer(root)
    finally:
        for at in reversed(mounted):
            subprocess.run(["umount", "--lazy", at], check=True)


def sell(root: Path, scratch: Path) -> None:
    """The wanted package, newer than any, from the only source that this machine's apt then knows."""
    tree = scratch / "package"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin" / REQUESTED).write_text("#!/bin/sh\n")
    (tree / "usr/bin" / REQUESTED).chmod(0o755)
    control = (
        f"Package: {REQUESTED}\nVersion: 99:1\nArchitecture: all\nMaintainer: dbtoll <nobody@invalid>\nDescription: x\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    (tree / "DEBIAN/postinst").write_text(POSTINST)
    (tree / "DEBIAN/postinst").chmod(0o755)
    shop = root / "shop"
    shop.mkdir()
    subprocess.run(["dpkg-deb", "--build", tree, shop / "wanted.deb"], check=True, capture_output=True)
    content = (shop / "wanted.deb").read_bytes()
    index = f"{control}Filename: ./wanted.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    (shop / "Packages").write_text(index)
    for place in ("etc/apt/sources.list.d", "var/lib/apt/lists"):
        shutil.rmtree(root / place)
        (root / place).mkdir()
    (root / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/shop ./\n")


def test_what_it_installs_starts_no_service_and_later_packages_do(newcomer: Newcomer) -> None:
    launcher = newcomer.start()
    newcomer.installing(launcher)
    newcomer.go_on()
    said, _ = launcher.communicate(timeout=DEADLINE_S)
    assert (newcomer.root / "answered").read_text().split() == [str(DENIED)], said
    assert not newcomer.policy.exists()


def _hears_signals() -> None:
    """The tests themselves may run under nohup, or in a shell's background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("wanted", "whom"), [(signal.SIGINT, "all"), (signal.SIGHUP, "all"), (signal.SIGTERM, "launcher")]
)
def test_an_interrupted_set_up_leaves_no_policy(newcomer: Newcomer, wanted: signal.Signals, whom: str) -> None:
    """As Ctrl-C or a terminal that closes do (``all``), and as `kill` does."""
    launcher = newcomer.start()
    newcomer.installing(launcher)
    if whom == "all":
        os.killpg(launcher.pid, wanted)
    else:
        os.kill(launcher.pid, wanted)
    newcomer.go_on()
    said, _ = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 128 + wanted, said
    assert not newcomer.policy.exists()
    assert "Python" not in said  # nor does it go on with the next step


def test_what_a_killed_set_up_leaves_denies_nothing_and_the_next_one_removes_it(newcomer: Newcomer) -> None:
    launcher = newcomer.start()
    newcomer.installing(launcher)
    assert newcomer.answer() == DENIED
    os.killpg(launcher.pid, signal.SIGKILL)
    newcomer.go_on()
    launcher.communicate(timeout=DEADLINE_S)
    assert newcomer.answer() == ALLOWED
    assert newcomer.policy.exists()
    newcomer.start().communicate(timeout=DEADLINE_S)
    assert not newcomer.policy.exists()


def test_a_policy_of_somebody_else_stays(newcomer: Newcomer) -> None:
    newcomer.policy.write_text(FOREIGN)
    newcomer.policy.chmod(0o755)
    newcomer.go_on()
    newcomer.start().communicate(timeout=DEADLINE_S)
    assert (newcomer.root / "answered").read_text().split() == [str(DENIED)]
    assert newcomer.policy.read_text() == FOREIGN


def test_a_python_package_that_is_not_the_locked_one_is_refused(newcomer: Newcomer) -> None:
    """The same name, version and tags, from the only index that this machine has."""
    pin = next(line for line in (ROOT / "requirements/main.txt").read_text().splitlines() if "==" in line).split()[0]
    distribution = pin.replace("-", "_").replace("==", "-")
    with zipfile.ZipFile(newcomer.root / f"shop/{distribution}-py3-none-any.whl", "w") as wheel:
        name, _, version = pin.partition("==")
        info = f"{distribution}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    newcomer.go_on()
    launcher = newcomer.start(DBTOLL_HOME="/home-of-dbtoll", PIP_NO_INDEX="1", PIP_FIND_LINKS="/shop")
    said, _ = launcher.communicate(timeout=DEADLINE_S)
    assert "DO NOT MATCH THE HASHES" in said
    assert launcher.returncode == 69
    venv = newcomer.root / "home-of-dbtoll/venv"
    assert not (venv / "stamp-main").exists()
    # As an installation that was killed, it is begun anew.
    (venv / "half-installed").touch()
    newcomer.start(DBTOLL_HOME="/home-of-dbtoll", PIP_NO_INDEX="1", PIP_FIND_LINKS="/shop").communicate(
        timeout=DEADLINE_S
    )
    assert (venv / "bin/python").exists()
    assert not (venv / "half-installed").exists()


def test_nothing_is_installed_before_the_user_has_agreed(newcomer: Newcomer) -> None:
    newcomer.go_on()
    launcher = newcomer.start("--")
    said, _ = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 69
    assert f"will install these Debian packages: {REQUESTED}" in said
    assert "add --yes" in said
    assert not (newcomer.root / "answered").exists()


def test_a_system_without_apt_is_told_of_programs_and_goes_on(newcomer: Newcomer) -> None:
    for found in ("usr/bin", "bin"):
        (newcomer.root / found / "apt-get").unlink(missing_ok=True)
    launcher = newcomer.start()
    said, _ = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 0, said
    assert f"missing here: {REQUESTED}" in said
    assert "apt-get" not in said
    assert not newcomer.policy.exists()


def test_a_damaged_agent_is_built_again(newcomer: Newcomer) -> None:
    """Here only the wish for a compiler shows it: there is none, and the compiler is not for sale."""
    agent = newcomer.root / find_agent().relative_to("/")
    for place in os.environ["PATH"].split(":"):
        (newcomer.root / place.lstrip("/") / "cargo").unlink(missing_ok=True)
    newcomer.go_on()
    whole, _ = newcomer.start().communicate(timeout=DEADLINE_S)
    if "cargo" in whole:
        pytest.skip("the agent here is not of this source: ./dbtoll setup")
    content = agent.read_bytes()
    agent.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    damaged, _ = newcomer.start().communicate(timeout=DEADLINE_S)
    assert "cargo" in damaged
