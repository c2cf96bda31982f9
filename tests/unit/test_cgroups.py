"""Finding the layout of control groups in recorded texts of /proc. What is done with it is tested on a real kernel."""

from __future__ import annotations

import pytest

from dbtoll.machines.cgroups.layout import Layout, cpu_list, parse_layout

OFFERED = {"/sys/fs/cgroup": "cpuset cpu io memory hugetlb pids rdma misc", "/sys/fs/cgroup/unified": "hugetlb"}

# A systemd host, Debian 12: version 2 only.
V2_MOUNTS = """\
24 30 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
30 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
35 24 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""
V2_GROUPS = "0::/user.slice/user-0.slice/session-3.scope\n"

# A systemd host with the legacy layout: version 1, controllers mounted in pairs, a named tree without controllers.
V1_MOUNTS = """\
30 24 0:25 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:8 - tmpfs tmpfs ro,mode=755
31 30 0:26 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,xattr,name=systemd
33 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:14 - cgroup cgroup rw,cpu,cpuacct
34 30 0:29 / /sys/fs/cgroup/cpuset rw,nosuid shared:15 - cgroup cgroup rw,cpuset
35 30 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:16 - cgroup cgroup rw,memory
36 30 0:31 / /sys/fs/cgroup/freezer rw,nosuid shared:17 - cgroup cgroup rw,freezer
"""
V1_GROUPS = """\
6:freezer:/
5:memory:/user.slice/user-0.slice/session-1.scope
4:cpuset:/
3:cpu,cpuacct:/user.slice
1:name=systemd:/user.slice/user-0.slice/session-1.scope
"""

# Both: the controllers in version 1 trees, beside an all but empty version 2 tree.
HYBRID_MOUNTS = (
    V1_MOUNTS + "41 30 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    "77 30 0:99 / /elsewhere rw - tmpfs tmpfs rw,cpuset\n"
)
HYBRID_GROUPS = V1_GROUPS + "0::/user.slice\n"

CONTAINER = "/docker/3f2a"

# In a container with version 1 and no cgroup namespace: the mounts show only its own groups.
CONTAINER_V1_MOUNTS = f"""\
78 77 0:29 {CONTAINER} /sys/fs/cgroup/cpuset ro,nosuid - cgroup cgroup rw,cpuset
79 77 0:30 {CONTAINER} /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
80 77 0:31 {CONTAINER} /sys/fs/cgroup/freezer ro,nosuid - cgroup cgroup rw,freezer
"""
CONTAINER_V1_GROUPS = f"3:freezer:{CONTAINER}\n2:memory:{CONTAINER}/inner\n1:cpuset:{CONTAINER}\n"

# In a container with version 2 and a cgroup namespace of its own.
CONTAINER_V2_MOUNTS = "99 80 0:29 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n"
CONTAINER_V2_GROUPS = "0::/\n"


def layout_of(mounts: str, groups: str) -> Layout:
    return parse_layout(mounts, groups, lambda mount: frozenset(OFFERED[mount].split()))


def governs(layout: Layout, controller: str) -> tuple[int, str, str] | None:
    tree = layout.having(controller)
    return None if tree is None else (tree.version, tree.mount, tree.own)


def test_version_2() -> None:
    layout = layout_of(V2_MOUNTS, V2_GROUPS)
    session = (2, "/sys/fs/cgroup", "/user.slice/user-0.slice/session-3.scope")
    for controller in ("cpuset", "memory", "cpu", "freezer", "cpuacct"):
        assert governs(layout, controller) == session
    assert layout.versions() == "v2"
    # Not below the session, where systemd and the shell's other processes live.
    assert layout.path("run", "arm") == "/dbtoll/run/arm"


def test_version_1() -> None:
    layout = layout_of(V1_MOUNTS, V1_GROUPS)
    assert governs(layout, "cpuset") == (1, "/sys/fs/cgroup/cpuset", "")
    assert governs(layout, "cpuacct") == governs(layout, "cpu") == (1, "/sys/fs/cgroup/cpu,cpuacct", "/user.slice")
    assert governs(layout, "memory") == (1, "/sys/fs/cgroup/memory", "/user.slice/user-0.slice/session-1.scope")
    assert governs(layout, "freezer") == (1, "/sys/fs/cgroup/freezer", "")
    assert governs(layout, "hugetlb") is None
    assert layout.versions() == "v1"
    assert len(layout.hierarchies) == 5  # the named tree too: container engines make groups there


def test_hybrid() -> None:
    layout = layout_of(HYBRID_MOUNTS, HYBRID_GROUPS)
    for controller in ("cpuset", "memory", "freezer", "cpuacct"):
        tree = layout.having(controller)
        assert tree is not None
        assert tree.version == 1
    assert governs(layout, "hugetlb") == (2, "/sys/fs/cgroup/unified", "/user.slice")
    assert layout.versions() == "hybrid"


def test_hybrid_without_a_version_1_freezer_uses_version_2() -> None:
    mounts = "".join(line for line in HYBRID_MOUNTS.splitlines(keepends=True) if "freezer" not in line)
    assert governs(layout_of(mounts, HYBRID_GROUPS), "freezer") == (2, "/sys/fs/cgroup/unified", "/user.slice")


def test_in_a_container_paths_begin_where_its_mounts_do() -> None:
    layout = layout_of(CONTAINER_V1_MOUNTS, CONTAINER_V1_GROUPS)
    assert governs(layout, "cpuset") == (1, "/sys/fs/cgroup/cpuset", "")
    assert governs(layout, "memory") == (1, "/sys/fs/cgroup/memory", "/inner")
    assert governs(layout_of(CONTAINER_V2_MOUNTS, CONTAINER_V2_GROUPS), "memory") == (2, "/sys/fs/cgroup", "")


@pytest.mark.parametrize(
    ("own", "base"),
    [
        ("/dbtoll/r1/r1-a", "/dbtoll/r1/r1-a"),
        ("/dbtoll/r1/r1-a/dbtoll.others", "/dbtoll/r1/r1-a"),
        ("/dbtoll/r1/r1-a/dbtoll/r1/r1-b", "/dbtoll/r1/r1-a/dbtoll/r1/r1-b"),
        ("/dbtoll/r1", ""),
        ("/mydbtoll/r1/x", ""),
        ("/", ""),
    ],
)
def test_inside_an_arm_new_groups_lie_in_its_group(own: str, base: str) -> None:
    layout = layout_of(V2_MOUNTS, f"0::{own}\n")
    assert layout.base == base
    assert layout.path("r2", "arm") == f"{base}/dbtoll/r2/arm"


def test_a_mount_point_with_a_blank() -> None:
    mounts = "34 30 0:29 / /sys/fs/my\\040groups rw,nosuid shared:15 - cgroup cgroup rw,cpuset\n"
    assert governs(layout_of(mounts, "4:cpuset:/\n"), "cpuset") == (1, "/sys/fs/my groups", "")


def test_nothing_mounted() -> None:
    assert layout_of("30 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw\n", "0::/\n").hierarchies == ()


def test_cpu_list() -> None:
    assert cpu_list([3, 0, 2]) == "0,2,3"
