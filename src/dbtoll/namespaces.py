"""Without root: a user namespace in which everything is done as root does it (user_namespaces(7), ADR 0034).

Whoever is not root enters it once, at the beginning of a command that measures, and the whole program goes on in there as user 0.
The user is root there, and with subordinate ids (subuid(5)) it has all other users too: so images, data directories, mounts and
servers of other users are what they are for root, by the same code. Mounts and processes are the namespace's own: with its first
process the kernel ends all others, whatever becomes of dbtoll.

Three processes are on the way: the one that the user started, which waits outside; the first process of the namespace, which takes
in orphans; and dbtoll itself. Signals are handed on from one to the next.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

ALL_IDS: Final = 1 << 16
"""As many users as Debian's images have, and as useradd gives to a user as subordinate ids."""

OTHERS: Final = "dbtoll.others"
"""The control group in which what is not dbtoll's waits: version 2 forbids processes in a group with limited children."""

_SCOPED: Final = "DBTOLL_SCOPE"
"""Set where the session manager has been asked for control groups already."""

_NEW_NAMESPACES: Final = 0x10000000 | 0x00020000 | 0x20000000
"""CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID (linux/sched.h)."""
_DOWN: Final = 16384 | (1 << 19)
"""MS_REC, MS_SLAVE (sys/mount.h): mounts from outside are seen, ours are not seen outside."""
_SAFE: Final = 2 | 4 | 8
"""MS_NOSUID, MS_NODEV, MS_NOEXEC."""
_PR_SET_PDEATHSIG: Final = 1

_HANDED_ON: Final = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCHLD,
}

_ALLOWING: Final = {
    "user.max_user_namespaces": "10000",
    "kernel.unprivileged_userns_clone": "1",
    "kernel.apparmor_restrict_unprivileged_userns": "0",
}
"""Settings by which distributions forbid user namespaces, and the value that allows them."""
_FORBIDS: Final = {
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}

_refusal = ""
_libc = ctypes.CDLL(None, use_errno=True)


def is_whole(uid_map: str) -> bool:
    """Whether a process with this /proc/PID/uid_map is in no user namespace but the first: its user 0 is the machine's."""
    return uid_map.split() == ["0", "0", "4294967295"]


def is_root() -> bool:
    """Whether this process is the machine's root, not that of a user namespace."""
    return os.geteuid() == 0 and is_whole(_uid_map())


def is_inside() -> bool:
    """Whether this process is user 0 of a user namespace."""
    return os.geteuid() == 0 and not is_whole(_uid_map())


def has_users() -> bool:
    """Whether files and processes may belong to other users than this one: root, or with subordinate ids."""
    return os.geteuid() == 0 and sum(int(line.split()[2]) for line in _uid_map().splitlines()) >= ALL_IDS


def own_place(path: str) -> str:
    """Where what root has at ``path``, below /run or /var/lib, lies for this process: there, or in its user's own directories (XDG
    Base Directory Specification)."""
    if not is_inside():
        return path
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "dbtoll")
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or cache)
    tops = {
        "/run": runtime if os.access(runtime, os.W_OK) else cache,
        "/var/lib": Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share"),
    }
    return next(
        (str(own / Path(path).relative_to(top)) for top, own in tops.items() if path.startswith(f"{top}/")), path
    )


def lacking() -> tuple[str, str, str] | None:
    """What keeps this process from being root, if only in a namespace, with all users: what is missing, why, and what root does
    about it, once. None where nothing does."""
    if os.geteuid() != 0:
        return (
            "a user namespace",
            f"without root everything is done in one; {_refusal or 'none was entered'}",
            _allowed_by(),
        )
    if has_users():
        return None
    why = "without root the other users of an image, such as a server's, are subordinate ids of the user"
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return "newuidmap", why, "apt-get install uidmap"
    outside = int(_uid_map().split()[1])
    try:
        user = pwd.getpwuid(outside).pw_name
    except KeyError:
        user = str(outside)
    return "subordinate ids", why, f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"


def _allowed_by() -> str:
    """What makes the kernel allow user namespaces to everybody, where it is known not to."""
    for name, wanted in _ALLOWING.items():
        with suppress(OSError):
            if Path("/proc/sys", name.replace(".", "/", 1)).read_text(encoding="ascii").strip() == _FORBIDS[name]:
                return f"sysctl {name}={wanted}"
    return "run outside a container and outside a chroot, or as root: sudo ./dbtoll …"


def stands_for_unmapped(uid: int) -> bool:
    """Whether that is what the kernel shows in here for everybody who has no number in here, the machine's root among them."""
    return is_inside() and uid == int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))


def enter() -> None:
    """Go on in a namespace of one's own; root, and who is in one already, goes on as it is.

    Where none can be made this returns, and `refusal` says why. Call it while there is one thread only.
    """
    global _refusal  # noqa: PLW0603  (this process is in a namespace, or it is not)
    if os.geteuid() == 0:
        return
    _ask_for_a_scope()
    subordinate = _subordinate_ids()
    _refusal = _trial(subordinate)
    if _refusal and subordinate is not None:
        subordinate, _refusal = None, _trial(None)
    if _refusal:
        return
    step_back = _step_aside()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
    _unshare(subordinate)
    if first := os.fork():
        code = _accompany(first)
        step_back()
        os._exit(code)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount_proc()
    if child := os.fork():
        os._exit(_accompany(child))
    signal.pthread_sigmask(signal.SIG_SETMASK, former)


def as_oneself() -> list[str]:
    """Words before a program that is to be under the number that its user has outside, such as ssh, which looks up by that number
    who it is and where its configuration lies. None but in a namespace."""
    if not is_inside():
        return []
    user, group = (Path(f"/proc/self/{kind}_map").read_text(encoding="ascii").split()[1] for kind in ("uid", "gid"))
    return ["unshare", "--user", f"--map-user={user}", f"--map-group={group}", "--"]


def _uid_map() -> str:
    try:
        return Path("/proc/self/uid_map").read_text(encoding="ascii")
    except OSError:  # a kernel without user namespaces
        return "0 0 4294967295"


# --- the namespace ---------------------------------------------------------------------------------------------------


def _subordinate_ids() -> tuple[str, str] | None:
    """First id of the user's subordinate users and groups; None where there are not enough of both, or no programs for them."""
    if not (shutil.which("newuidmap") and shutil.which("newgidmap")):
        return None
    names = {str(os.getuid())}
    with suppress(KeyError):  # nobody by name
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    found = []
    for file in ("/etc/subuid", "/etc/subgid"):
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        ranges = [fields for line in lines if len(fields := line.split(":")) == 3]
        starts = [start for name, start, count in ranges if name in names and int(count) >= ALL_IDS]
        found += starts[:1]
    return (found[0], found[1]) if len(found) == 2 else None


def _unshare(subordinate: tuple[str, str] | None) -> None:
    """This process into new namespaces; its next child is the first process there. Raises OSError."""
    pid, uid, gid = os.getpid(), os.getuid(), os.getgid()
    if subordinate is None:
        _checked(_libc.unshare(_NEW_NAMESPACES), "unshare")
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")
    else:
        hears, tells = os.pipe()
        if not (helper := os.fork()):  # stays outside, where newuidmap has to be started
            os.close(tells)
            os.read(hears, 1)
            commands = (("newuidmap", uid, subordinate[0]), ("newgidmap", gid, subordinate[1]))
            words = [[name, str(pid), "0", str(own), "1", "1", start, str(ALL_IDS)] for name, own, start in commands]
            ended = [subprocess.run(each, capture_output=True, check=False).returncode for each in words]
            os._exit(1 if any(ended) else 0)
        os.close(hears)
        result = _libc.unshare(_NEW_NAMESPACES)
        number = ctypes.get_errno()
        os.close(tells)
        _, status = os.waitpid(helper, 0)
        if result:
            raise OSError(number, os.strerror(number), "unshare")
        if status:
            raise PermissionError(1, "newuidmap or newgidmap refused it")
    _checked(_libc.mount(None, b"/", None, _DOWN, None), "mount --make-rslave /")


def _mount_proc() -> None:
    """That of the new processes."""
    _checked(_libc.mount(b"proc", b"/proc", b"proc", _SAFE, None), "mount /proc")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _trial(subordinate: tuple[str, str] | None) -> str:
    """Why no such namespace can be made; "" if it can. A process that is half in one could not go back."""
    hears, tells = os.pipe()
    if trying := os.fork():
        os.close(tells)
        with os.fdopen(hears, encoding="utf-8") as told:
            why = told.read()
        _, status = os.waitpid(trying, 0)
        return why or ("" if status == 0 else "a trial of it was ended")
    try:
        _unshare(subordinate)
        if first := os.fork():
            os._exit(1 if os.waitpid(first, 0)[1] else 0)
        _mount_proc()
        os._exit(0)
    except OSError as error:
        os.write(tells, f"{error.filename or 'user namespace'}: {error.strerror}".encode())
        os._exit(1)


def _accompany(child: int) -> int:
    """Reap whatever ends, and hand signals on to ``child``, until that has ended. Its exit code, as a shell has it.

    What a terminal sends goes to all of its processes anyway: only what somebody has sent to this one is handed on.
    """
    while True:
        heard = signal.sigwaitinfo(_HANDED_ON)
        if heard.si_signo == signal.SIGCHLD:
            with suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == child:
                        code = os.waitstatus_to_exitcode(ended[1])
                        return code if code >= 0 else 128 - code
        elif heard.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)  # the shell is to see it; SIGCONT comes to all
        elif heard.si_code <= 0:
            os.kill(child, heard.si_signo)


# --- control groups of the session manager ---------------------------------------------------------------------------


def _ask_for_a_scope() -> None:
    """Where this process has no control group of its own, and the user's service manager gives one: begin anew in there."""
    if _SCOPED in os.environ or _own_group() is not None or not shutil.which("systemd-run"):
        return
    words = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--"]
    trial = subprocess.run([*words, "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if trial.returncode == 0:
        os.execvpe(words[0], [*words, sys.executable, *sys.orig_argv[1:]], {**os.environ, _SCOPED: "1"})


def _own_group() -> Path | None:
    """Directory of this process's group of version 2, if it is delegated to this user (cgroups(7), "Delegation")."""
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    for fields in (line.split(" ") for line in mounts):
        if own is not None and fields[fields.index("-", 6) + 1] == "cgroup2" and fields[3] == "/":
            group = Path(fields[4] + own.rstrip("/"))
            return group if all(os.access(each, os.W_OK) for each in (group, group / "cgroup.procs")) else None
    return None


def _step_aside() -> Callable[[], None]:
    """Every process of our delegated group into a group below it, so that arms may have groups beside that one. Returns what undoes
    it. From outside: nobody in the namespace sees the numbers of those who are not in it."""
    group = _own_group()
    if group is None or group.name == OTHERS:
        return lambda: None
    aside = group / OTHERS
    with suppress(OSError):
        aside.mkdir()

    def step_back() -> None:
        with suppress(OSError):
            _move(aside, group)
            aside.rmdir()

    with suppress(OSError):
        _move(group, aside)
    return step_back


def _move(source: Path, target: Path) -> None:
    while pids := (source / "cgroup.procs").read_text(encoding="ascii").split():
        for pid in pids:
            with suppress(ProcessLookupError):
                (target / "cgroup.procs").write_text(pid, encoding="ascii")
