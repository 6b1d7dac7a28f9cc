"""Cores, classes, caches and quotas, read from made-up /sys and /proc trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aspen_mp.shm.errors import ResourceLimitError
from aspen_mp.workers import topology


class Tree:
    """A made-up root of a Linux machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpu(
        self, cpu: int, *, package: int = 0, siblings: str | None = None, l2: str | None = None, l3: str | None = None, **files: int
    ) -> None:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        self.put(f"{folder}/topology/physical_package_id", package)
        self.put(f"{folder}/topology/core_cpus_list", siblings or cpu)
        for index, (level, kind, shared) in enumerate([(1, "Instruction", str(cpu)), (2, "Unified", l2 or str(cpu)), (3, "Unified", l3)]):
            if shared:
                self.put(f"{folder}/cache/index{index}/level", level)
                self.put(f"{folder}/cache/index{index}/type", kind)
                self.put(f"{folder}/cache/index{index}/shared_cpu_list", shared)
        for name, value in files.items():
            self.put(f"{folder}/{name.replace('__', '/')}", value)

    def cgroup2(self, path: str, inside: str = "/") -> None:
        self.put("proc/self/cgroup", f"0::{path}")
        self.put("proc/self/mountinfo", f"30 23 0:26 {inside} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def uniform(tree: Tree, n: int) -> None:
    tree.put("sys/devices/system/cpu/online", f"0-{n - 1}")
    for cpu in range(n):
        tree.cpu(cpu, l3=f"0-{n - 1}")


def test_cpu_lists() -> None:
    assert topology.parse_cpus("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert topology.parse_cpus("") == []
    assert topology.format_cpus([8, 0, 1, 2, 3, 11, 10]) == "0-3,8,10-11"
    for bad in ("x", "3-1", "-1", "0-99999999"):
        with pytest.raises(ValueError, match=r".*"):
            topology.parse_cpus(bad)


def test_this_machine() -> None:
    found = topology.read()
    assert {c.cpu for c in found.cores} <= os.sched_getaffinity(0)
    assert 1 <= topology.default_workers() <= len(found.cores)
    assert found.select(1)[0] in found.by_cpu


def test_no_files_at_all(tmp_path: Path) -> None:
    found = topology.read(tmp_path, [2, 5])
    assert [c.cpu for c in found.cores] == [2, 5]
    assert found.default_workers == 2
    assert found.quota is None
    assert {c.core_class for c in found.cores} == {"uniform"}


def test_affinity_mask_limits(tree: Tree) -> None:
    uniform(tree, 8)
    found = topology.read(tree.root, [1, 3, 5])
    assert [c.cpu for c in found.cores] == [1, 3, 5]
    assert (found.default_workers, found.online) == (3, 8)


def test_offline_cpus_do_not_count(tree: Tree) -> None:
    uniform(tree, 4)
    assert [c.cpu for c in topology.read(tree.root, range(8)).cores] == [0, 1, 2, 3]


def hybrid(tree: Tree) -> None:
    """Two performance cores of two threads, four efficiency cores that share an L2, as Intel hybrids show them."""
    tree.put("sys/devices/system/cpu/online", "0-7")
    for cpu in range(4):
        pair = "0-1" if cpu < 2 else "2-3"
        tree.cpu(cpu, siblings=pair, l2=pair, l3="0-7", acpi_cppc__highest_perf=68 + cpu % 2)
    for cpu in range(4, 8):
        tree.cpu(cpu, l2="4-7", l3="0-7", acpi_cppc__highest_perf=43)


@pytest.mark.parametrize("pmu", [True, False])
def test_hybrid(tree: Tree, pmu: bool) -> None:
    hybrid(tree)
    if pmu:
        tree.put("sys/devices/cpu_core/cpus", "0-3")
        tree.put("sys/devices/cpu_atom/cpus", "4-7")
    found = topology.read(tree.root, range(8))
    assert [c.core_class for c in found.cores] == ["performance"] * 4 + ["efficiency"] * 4
    assert [c.rank for c in found.cores] == [0] * 4 + [1] * 4
    assert 0.55 < found.cores[4].speed < 0.7
    assert (found.physical, found.default_workers) == (6, 6)
    # Whole fast cores, then slow cores, then second threads.
    assert found.choose(8) == [0, 2, 4, 5, 6, 7, 1, 3]


def test_core_classes_and_threads_on_request(tree: Tree) -> None:
    hybrid(tree)
    found = topology.read(tree.root, range(8))
    assert found.select() == [0, 2, 4, 5, 6, 7]
    assert found.select(classes=["performance"]) == [0, 2]
    assert found.select(classes=["performance"], smt=True) == [0, 2, 1, 3]
    assert found.select(3, classes=["performance"]) == [0, 2, 4]
    assert found.select(classes=["low-power"]) == [0, 2, 4, 5, 6, 7]
    assert found.select(cores=[7, 1]) == [7, 1]
    assert len(found.select(11)) == 11
    with pytest.raises(ResourceLimitError, match="at least one"):
        found.select(0)


def test_cores_without_l3_are_a_group_of_their_own(tree: Tree) -> None:
    tree.put("sys/devices/system/cpu/online", "0-3")
    for cpu in range(4):
        tree.cpu(cpu, l3="0-1" if cpu < 2 else None)
    assert [c.l3 for c in topology.read(tree.root, range(4)).cores] == [0, 0, 2, 2]


def test_mask_of_slow_cores_keeps_their_class(tree: Tree) -> None:
    hybrid(tree)
    assert [c.core_class for c in topology.read(tree.root, [4, 5]).cores] == ["efficiency"] * 2


def test_favoured_cores_are_no_class(tree: Tree) -> None:
    tree.put("sys/devices/system/cpu/online", "0-7")
    for cpu in range(8):
        tree.cpu(cpu, l3="0-7", acpi_cppc__highest_perf=236 - 5 * cpu)
    assert {c.core_class for c in topology.read(tree.root, range(8)).cores} == {"uniform"}


def test_three_arm_classes(tree: Tree) -> None:
    tree.put("sys/devices/system/cpu/online", "0-7")
    for cpu in range(8):
        tree.cpu(cpu, cpu_capacity=250 if cpu < 4 else 770 if cpu < 7 else 1024)
    found = topology.read(tree.root, range(8))
    assert [c.core_class for c in found.cores] == ["low-power"] * 4 + ["efficiency"] * 3 + ["performance"]
    assert found.choose(2) == [7, 4]


def test_max_frequency_as_last_resort(tree: Tree) -> None:
    tree.put("sys/devices/system/cpu/online", "0-3")
    for cpu in range(4):
        tree.cpu(cpu, cpufreq__cpuinfo_max_freq=5_100_000 if cpu < 2 else 3_300_000)
    assert [c.rank for c in topology.read(tree.root, range(4)).cores] == [0, 0, 1, 1]


def two_nodes(tree: Tree) -> None:
    """Two packages, one NUMA node each, two L3 groups of two cores a package, two threads a core (threads numbered last)."""
    tree.put("sys/devices/system/cpu/online", "0-15")
    for cpu in range(16):
        core = cpu % 8
        group = core // 2 * 2
        tree.cpu(
            cpu,
            package=core // 4,
            siblings=f"{core},{core + 8}",
            l2=f"{core},{core + 8}",
            l3=f"{group}-{group + 1},{group + 8}-{group + 9}",
        )
    for node in range(2):
        tree.put(f"sys/devices/system/node/node{node}/cpulist", f"{4 * node}-{4 * node + 3},{4 * node + 8}-{4 * node + 11}")
    tree.put("sys/devices/system/node/possible", "0-1")


def test_numa_and_smt(tree: Tree) -> None:
    two_nodes(tree)
    found = topology.read(tree.root, range(16))
    assert [c.node for c in found.cores] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert found.default_workers == 8
    assert found.choose(4) == [0, 1, 2, 3]
    assert found.choose(16) == list(range(16))


def test_fuller_node_first(tree: Tree) -> None:
    two_nodes(tree)
    found = topology.read(tree.root, [0, 4, 5, 6])
    assert found.choose(3) == [4, 5, 6]
    assert found.choose(3, taken=[4]) == [5, 6, 0]
    assert found.choose(5, taken=[4, 5, 5]) == [6, 0, 4, 6, 0]  # those with the fewest workers first


def test_second_thread_alone_counts_as_a_core(tree: Tree) -> None:
    two_nodes(tree)
    found = topology.read(tree.root, [8, 9])
    assert (found.default_workers, found.choose(2)) == (2, [8, 9])


def test_explicit_cores(tree: Tree) -> None:
    uniform(tree, 4)
    found = topology.read(tree.root, [0, 1, 2])
    assert found.choose(2, [2, 0]) == [2, 0]
    with pytest.raises(ResourceLimitError, match=r"CPU 3 cannot be used.*0-2"):
        found.choose(2, [0, 3])
    with pytest.raises(ResourceLimitError, match="3 workers asked for, but 1"):
        found.choose(3, [0])


def test_more_workers_than_cpus_take_turns(tree: Tree) -> None:
    uniform(tree, 2)
    assert topology.read(tree.root, range(2)).choose(5) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("quota", "workers"),
    [("max 100000", 8), ("400000 100000", 4), ("250000 100000", 2), ("195000 100000", 2), ("50000 100000", 1), ("nonsense", 8)],
)
def test_container_quota(tree: Tree, quota: str, workers: int) -> None:
    uniform(tree, 8)
    tree.cgroup2("/")
    tree.put("sys/fs/cgroup/cpu.max", quota)
    assert topology.read(tree.root, range(8)).default_workers == workers


def test_strictest_nested_quota_counts(tree: Tree) -> None:
    uniform(tree, 8)
    tree.cgroup2("/a/b/c")
    tree.put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000")
    tree.put("sys/fs/cgroup/a/b/cpu.max", "600000 100000")
    tree.put("sys/fs/cgroup/a/cpu.max", "150000 50000")
    found = topology.read(tree.root, range(8))
    assert (found.quota, found.default_workers) == (3.0, 3)


def test_host_path_seen_in_a_container(tree: Tree) -> None:
    uniform(tree, 8)
    tree.cgroup2("/kubepods/pod1/box", inside="/kubepods/pod1/box")
    tree.put("sys/fs/cgroup/cpu.max", "200000 100000")
    assert topology.read(tree.root, range(8)).default_workers == 2


def test_path_outside_the_namespace(tree: Tree) -> None:
    uniform(tree, 8)
    tree.cgroup2("/../other")
    tree.put("sys/fs/cgroup/cpu.max", "200000 100000")
    assert topology.read(tree.root, range(8)).default_workers == 2


def test_cgroup_v1(tree: Tree) -> None:
    uniform(tree, 8)
    tree.put("proc/self/cgroup", "4:cpuset:/box\n3:cpu,cpuacct:/box\n0::/")
    tree.put(
        "proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    tree.put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", 350_000)
    tree.put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", 100_000)
    tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", -1)
    tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", 100_000)
    tree.put("sys/fs/cgroup/cpuset/box/cpuset.cpus", "2-7")
    found = topology.read(tree.root, range(8))
    assert [c.cpu for c in found.cores] == [2, 3, 4, 5, 6, 7]
    assert (found.quota, found.default_workers) == (3.5, 3)


def test_limits_are_read_anew(tree: Tree) -> None:
    """Quota, cpuset and mask may change at any time, and the process be moved to another cgroup."""
    uniform(tree, 8)
    tree.cgroup2("/a")
    tree.put("sys/fs/cgroup/a/cpu.max", "max 100000")
    reader = topology.LimitsReader(tree.root)
    before = reader.read(range(8))
    assert (before.cpus, before.quota) == (tuple(range(8)), None)
    assert reader.read(range(8)) == before
    tree.put("sys/fs/cgroup/a/cpu.max", "150000 100000")
    assert reader.read(range(8)).quota == 1.5
    tree.put("sys/fs/cgroup/a/cpuset.cpus.effective", "2-5")
    assert reader.read(range(4)).cpus == (2, 3)
    tree.put("proc/self/cgroup", "0::/b")
    tree.put("sys/fs/cgroup/b/cpu.max", "300000 100000")
    moved = reader.read(range(4))
    assert (moved.cpus, moved.quota) == ((0, 1, 2, 3), 3.0)
    tree.put("sys/devices/system/cpu/online", "0-1")
    assert reader.read(range(4)).cpus == (0, 1)


def test_cpuset_v2(tree: Tree) -> None:
    uniform(tree, 8)
    tree.cgroup2("/box")
    tree.put("sys/fs/cgroup/box/cpuset.cpus.effective", "4-5")
    assert [c.cpu for c in topology.read(tree.root, range(8)).cores] == [4, 5]


def test_memory_limit(tree: Tree) -> None:
    tree.cgroup2("/a/b")
    tree.put("sys/fs/cgroup/a/b/memory.max", "max")
    assert topology.memory_limit(tree.root) is None
    tree.put("sys/fs/cgroup/a/memory.max", 512 << 20)
    assert topology.memory_limit(tree.root) == 512 << 20


def test_cache_sizes(tree: Tree) -> None:
    uniform(tree, 2)
    tree.put("sys/devices/system/cpu/cpu0/cache/index1/size", "1024K")
    tree.put("sys/devices/system/cpu/cpu0/cache/index2/size", "32M")
    assert topology.cache_sizes(0, tree.root) == {"L2": (1 << 20, 1), "L3": (32 << 20, 2)}
