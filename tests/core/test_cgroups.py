"""Quotas of CPUs, read from made-up trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.transforms.core.cgroups import cpu_quota

V1, V2 = "cgroup", "cgroup2"
HALF = "50000 100000\n"


class Machine:
    """A made-up machine: what is mounted, and the files of its groups."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process = folder / "proc"
        self.process.mkdir()
        self.put_process("0::/")
        (self.process / "mountinfo").write_text("22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n")

    def put_process(self, *lines: str) -> None:
        """Puts the process into groups."""
        (self.process / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def mount(self, name: str, *, kind: str = V2, root: str = "/", options: str = "rw") -> Path:
        """Mounts a hierarchy; returns the folder where it is."""
        point = self._folder / name
        point.mkdir(parents=True)
        escaped = str(point).replace(" ", r"\040")
        with (self.process / "mountinfo").open("a") as file:
            file.write(
                f"31 22 0:26 {root} {escaped} rw,nosuid shared:9 master:1 - {kind} {kind} "
                f"{options}\n"
            )
        return point

    def quota(self) -> float | None:
        return cpu_quota(process=self.process)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def limit_v1(group: Path, *, quota: str | int, period: str | int = 100_000) -> None:
    """Gives a group of version 1 a quota, in microseconds of each period."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text(f"{period}\n")


def limit_v2(group: Path, text: str) -> None:
    """Gives a group of version 2 a quota."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(text)


class TestVersion2:
    def test_a_namespace(self, machine: Machine) -> None:
        """Docker's and Kubernetes' default: the container's group is the root of what it sees."""
        limit_v2(machine.mount("sys"), "150000 100000\n")
        assert machine.quota() == 1.5

    def test_a_unit_of_systemd(self, machine: Machine) -> None:
        machine.put_process("0::/system.slice/shardbeam.service")
        root = machine.mount("sys")
        limit_v2(root / "system.slice" / "shardbeam.service", "300000 100000\n")
        # The root of all groups has no such file.
        assert machine.quota() == 3

    @pytest.mark.parametrize("parent", ["a", "a/b"])
    def test_a_group_that_contains_it(self, parent: str, machine: Machine) -> None:
        machine.put_process("0::/a/b/c")
        root = machine.mount("sys")
        limit_v2(root / "a" / "b" / "c", "400000 100000\n")
        limit_v2(root / parent, "20000 10000\n")
        assert machine.quota() == 2

    def test_its_own_group_may_have_the_smallest(self, machine: Machine) -> None:
        machine.put_process("0::/a/b")
        root = machine.mount("sys")
        limit_v2(root / "a" / "b", HALF)
        limit_v2(root / "a", "400000 100000\n")
        assert machine.quota() == 0.5

    def test_groups_beside_it_do_not_matter(self, machine: Machine) -> None:
        machine.put_process("0::/a")
        root = machine.mount("sys")
        limit_v2(root / "a", "max 100000\n")
        limit_v2(root / "b", HALF)
        limit_v2(root / "a" / "below", HALF)
        assert machine.quota() is None

    @pytest.mark.parametrize(
        "text", ["max 100000\n", "max\n", "", "-1 100000\n", "50000 0\n", "0 100000\n", "x y\n"]
    )
    def test_no_quota(self, text: str, machine: Machine) -> None:
        limit_v2(machine.mount("sys"), text)
        assert machine.quota() is None

    def test_a_namespace_whose_mount_shows_more(self, machine: Machine) -> None:
        """`unshare --cgroup` alone: the mount is still that of the host."""
        limit_v2(machine.mount("sys", root="/../.."), HALF)
        assert machine.quota() == 0.5

    def test_a_process_outside_of_its_namespace(self, machine: Machine) -> None:
        machine.put_process("0::/../other")
        root = machine.mount("sys")
        limit_v2(root, "200000 100000\n")
        # The name must not lead out of the mounted folder.
        limit_v2(root.parent / "other", HALF)
        assert machine.quota() == 2

    def test_a_folder_with_a_space_in_its_name(self, machine: Machine) -> None:
        limit_v2(machine.mount("the groups"), HALF)
        assert machine.quota() == 0.5


class TestVersion1:
    @pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
    def test_a_group(self, controllers: str, machine: Machine) -> None:
        machine.put_process("5:cpuset:/", f"4:{controllers}:/a", "1:name=systemd:/a")
        root = machine.mount("cpu", kind=V1, options=f"rw,{controllers}")
        limit_v1(root, quota=-1)
        limit_v1(root / "a", quota=250_000)
        assert machine.quota() == 2.5

    def test_a_container_whose_group_is_named_as_on_the_host(self, machine: Machine) -> None:
        """Docker's default: what is mounted is the group itself, whose name is of the host."""
        machine.put_process("4:cpu,cpuacct:/docker/0123")
        root = machine.mount("cpu", kind=V1, root="/docker/0123", options="rw,cpu,cpuacct")
        limit_v1(root, quota=50_000)
        assert machine.quota() == 0.5

    def test_a_group_inside_of_such_a_container(self, machine: Machine) -> None:
        machine.put_process("4:cpu:/docker/0123/job")
        root = machine.mount("cpu", kind=V1, root="/docker/0123", options="rw,cpu")
        limit_v1(root, quota=200_000)
        limit_v1(root / "job", quota=100_000)
        assert machine.quota() == 1
        limit_v1(root / "job", quota=-1)
        assert machine.quota() == 2

    @pytest.mark.parametrize("group", ["/docker", "/", "/other/0123", "/docker/01234"])
    def test_a_container_whose_path_is_above_the_mount(self, group: str, machine: Machine) -> None:
        """Or beside it: the runtime has mounted the container's group, whatever its name is."""
        machine.put_process(f"4:cpu:{group}")
        limit_v1(machine.mount("cpu", kind=V1, root="/docker/0123", options="rw,cpu"), quota=50_000)
        assert machine.quota() == 0.5

    def test_other_controllers_do_not_matter(self, machine: Machine) -> None:
        machine.put_process("4:cpu:/", "3:cpuacct:/")
        limit_v1(machine.mount("cpuacct", kind=V1, options="rw,cpuacct"), quota=50_000)
        assert machine.quota() is None

    @pytest.mark.parametrize(("quota", "period"), [("-1", 100_000), (50_000, 0), ("", 1), (5, "")])
    def test_no_quota(self, quota: str | int, period: str | int, machine: Machine) -> None:
        machine.put_process("4:cpu:/")
        limit_v1(machine.mount("cpu", kind=V1, options="rw,cpu"), quota=quota, period=period)
        assert machine.quota() is None

    def test_a_file_that_is_missing(self, machine: Machine) -> None:
        machine.put_process("4:cpu:/")
        root = machine.mount("cpu", kind=V1, options="rw,cpu")
        limit_v1(root, quota=50_000)
        (root / "cpu.cfs_period_us").unlink()
        assert machine.quota() is None


class TestBothVersions:
    def test_the_controller_is_in_version_1(self, machine: Machine) -> None:
        machine.put_process("4:cpu,cpuacct:/a", "0::/b")
        limit_v1(machine.mount("cpu", kind=V1, options="rw,cpu,cpuacct") / "a", quota=300_000)
        limit_v2(machine.mount("unified") / "b", HALF)
        assert machine.quota() == 3

    def test_the_controller_is_in_version_2(self, machine: Machine) -> None:
        machine.put_process("1:name=systemd:/a", "0::/b")
        machine.mount("systemd", kind=V1, options="rw,xattr,name=systemd")
        limit_v2(machine.mount("unified") / "b", HALF)
        assert machine.quota() == 0.5

    def test_what_is_mounted_twice(self, machine: Machine) -> None:
        """The host's groups are mounted into a container, beside its own."""
        machine.put_process("4:cpu:/pod/0123")
        limit_v1(machine.mount("cpu", kind=V1, root="/pod/0123", options="rw,cpu"), quota=400_000)
        host = machine.mount("host", kind=V1, options="rw,cpu")
        limit_v1(host / "pod", quota=200_000)
        limit_v1(host / "pod" / "0123", quota=400_000)
        assert machine.quota() == 2


@pytest.mark.parametrize("missing", ["cgroup", "mountinfo"])
def test_a_system_without_groups(missing: str, machine: Machine) -> None:
    limit_v2(machine.mount("sys"), HALF)
    (machine.process / missing).unlink()
    assert machine.quota() is None


@pytest.mark.parametrize("text", [b"", b"\n", b"4\n", b"x:y\n", b"\xff:\xfe\n", b"a b - c d\n"])
@pytest.mark.parametrize("name", ["cgroup", "mountinfo"])
def test_files_that_cannot_be_understood(name: str, text: bytes, machine: Machine) -> None:
    limit_v2(machine.mount("sys") / "a", HALF)
    machine.put_process("0::/a")
    (machine.process / name).write_bytes(text)
    assert machine.quota() is None
