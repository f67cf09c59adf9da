"""Limits of the view of queries: how much, by which control group, and which system calls."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.memory import query_memory_limit
from penstock.services.host.query_limits import (
    divisible_group,
    excess_file,
    excess_reason,
    processes_max,
)
from penstock.services.host.system_call_filter import engine_call_filter, system_call_filter
from penstock.services.options.table import PenstockOptions

GIB = 1 << 30


@pytest.mark.parametrize(
    ("options", "heap", "total_gib", "limit_gib"),
    [
        # Three quarters of the host, without the Spark of tasks and 1.5 GiB of other processes.
        (PenstockOptions(), "2g", 24, 18 - 8 / 3 - 1.5),
        (PenstockOptions(spark_memory="3g"), "1g", 16, 12 - 4 - 1.5),
        (PenstockOptions(spark_connect="sc://h:1"), "1g", 16, 12 - 1.5),
        # What the JVM itself may need, if the rest is less.
        (PenstockOptions(), "2g", 10, 5),
        (PenstockOptions(), "4g", 8, 8),
        (PenstockOptions(), "1g", None, 3),
    ],
)
def test_queries_may_use_the_memory_that_the_others_leave(
    options: PenstockOptions, heap: str, total_gib: int | None, limit_gib: float
) -> None:
    total = None if total_gib is None else total_gib * GIB
    assert query_memory_limit(options, heap, total) == pytest.approx(limit_gib * GIB, abs=1)


def test_the_limit_of_processes_leaves_room_for_threads() -> None:
    assert 2_048 < processes_max() <= 16_384


def group_tree(root: Path, own: str) -> Path:
    """Return the folder of control groups of a host, in which a process has this group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{own}\n")
    tree = root / "sys/fs/cgroup"
    for path in (tree, tree / own.lstrip("/")):
        make_group(path)
    return tree


def make_group(path: Path, controllers: str = "cpu memory pids", enabled: str = "") -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.subtree_control").write_text(enabled)
    (path / "cgroup.procs").touch()


def test_a_group_is_made_where_the_operator_has_left_that_to_the_user(tmp_path: Path) -> None:
    tree = group_tree(tmp_path, "/system.slice/penstock.service/main")
    unit = tree / "system.slice/penstock.service"
    # Its parts are not listed here; files of the group of this process cannot be written.
    for path in (tree, unit / "main"):
        (path / "cgroup.procs").unlink()
    assert divisible_group(tmp_path) is None, "a folder without a list of processes"
    make_group(unit, enabled="memory pids")
    assert divisible_group(tmp_path) == unit


def test_missing_controllers_are_enabled_and_groups_without_them_are_not_used(
    tmp_path: Path,
) -> None:
    tree = group_tree(tmp_path, "/a/b")
    (tree / "a/b/cgroup.procs").unlink()
    make_group(tree / "a", controllers="cpu memory")
    assert divisible_group(tmp_path) is None
    make_group(tree / "a", enabled="memory")
    assert divisible_group(tmp_path) == tree / "a"
    assert (tree / "a/cgroup.subtree_control").read_text() == "+pids"


@pytest.mark.parametrize("text", ["", "4:memory:/a\n", "0::/../other\n"])
def test_hosts_without_the_second_version_have_no_group(tmp_path: Path, text: str) -> None:
    group_tree(tmp_path, "/a")
    (tmp_path / "proc/self/cgroup").write_text(text)
    assert divisible_group(tmp_path) is None


def test_the_reason_of_an_end_is_given_for_a_minute(tmp_path: Path) -> None:
    folder, clock = DataFolder(tmp_path), SystemClock()
    assert excess_reason(folder, clock) == ""
    path = excess_file(folder)
    path.parent.mkdir()
    path.write_text("too much")
    assert excess_reason(folder, clock) == "too much"
    old_s = path.stat().st_mtime - 61
    os.utime(path, (old_s, old_s))
    assert excess_reason(folder, clock) == ""


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED = 0x7FFF0000


def verdict(
    machine: str,
    number: int,
    first: int = 0,
    architecture: int | None = None,
    *more: int,
    of: Callable[[str], bytes] = system_call_filter,
) -> int:
    """Return what the kernel would decide: run the program as it does."""
    program = list(struct.iter_unpack("=HBBI", of(machine)))
    architecture = ARCHITECTURES[machine] if architecture is None else architecture
    arguments = [first, *more, *[0] * (5 - len(more))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments)
    at, register = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        match code:
            case 0x20:
                register = struct.unpack_from("<I", data, value)[0]
            case 0x15 | 0x35:
                holds = register == value if code == 0x15 else register >= value
                at += if_true if holds else if_false
            case 0x45:
                at += if_true if register & value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(code)


# Of <asm/unistd.h>: mount, ptrace, bpf, clone3, execve, read, socket.
@pytest.mark.parametrize(
    ("machine", "refused", "allowed", "socket"),
    [
        ("x86_64", (165, 101, 321), (435, 59, 0), 41),
        ("aarch64", (40, 117, 280), (435, 221, 63), 198),
    ],
)
def test_the_filter_decides_by_number_family_and_architecture(
    machine: str, refused: tuple[int, ...], allowed: tuple[int, ...], socket: int
) -> None:
    no_permission = 0x00050000 | errno.EPERM
    assert {verdict(machine, number) for number in refused} == {no_permission}
    assert {verdict(machine, number) for number in allowed} == {ALLOWED}
    assert {verdict(machine, socket, family) for family in (1, 2, 10, 16)} == {ALLOWED}
    unknown = 0x00050000 | errno.EAFNOSUPPORT
    assert {verdict(machine, socket, family) for family in (0, 17, 38, 40)} == {unknown}
    # Programs of 32 bits, and those with pointers of 32 bits.
    assert verdict(machine, allowed[2], architecture=0x40000003) == no_permission
    assert verdict(machine, 0x40000000 | allowed[2]) == no_permission


# Of <asm/unistd.h>: execve, socket, unlinkat, ptrace; clone3, read, mmap; openat.
@pytest.mark.parametrize(
    ("machine", "refused", "allowed", "openat"),
    [
        ("x86_64", (59, 41, 263, 101), (435, 0, 9), 257),
        ("aarch64", (221, 198, 35, 117), (435, 63, 222), 56),
    ],
)
def test_the_filter_of_engines_lets_them_read_and_compute(
    machine: str, refused: tuple[int, ...], allowed: tuple[int, ...], openat: int
) -> None:
    def decided(number: int, *arguments: int) -> int:
        first, *more = arguments or (0,)
        return verdict(machine, number, first, None, *more, of=engine_call_filter)

    no_permission = 0x00050000 | errno.EPERM
    assert {decided(number) for number in refused} == {no_permission}
    assert {decided(number) for number in allowed} == {ALLOWED}
    read = os.O_RDONLY | os.O_CLOEXEC
    assert decided(openat, 0, 0, read) == ALLOWED
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
        assert decided(openat, 0, 0, read | flag) == no_permission
    if machine == "x86_64":  # open
        assert decided(2, 0, read, os.O_WRONLY) == ALLOWED
        assert decided(2, 0, read | os.O_WRONLY) == no_permission


def test_an_unknown_processor_has_no_filter() -> None:
    assert system_call_filter("riscv64") == engine_call_filter("riscv64") == b""
