"""Filters of system calls, for the view of queries and for processes of the embedded engine.

A filter is a program that the kernel runs at each call. That of the view refuses calls that neither
a JVM nor a Python worker makes, and that have had errors through which programs left containers:
calls that change mounts, namespaces, clocks or the kernel, that read other processes, and some
large ones such as `bpf` and `io_uring_setup`. Containers' usual profiles refuse each of them too,
so programs expect the refusal. Everything else is allowed, so a new release of Java or Python does
not need a change here.

It also refuses families of sockets other than those of files and of the Internet, because some of
them do not belong to the namespace of the network: those of vsock connect to the host of a virtual
machine.

The filter of the embedded engine refuses more, because the engine only reads files and computes:
programs, sockets, signals, and every call that changes a file or opens one for writing.

Owns the tables of calls and the programs. `query_jail` and `fastpath.engine_process` install them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple


class _Machine(NamedTuple):
    """Numbers of a processor: of <linux/audit.h> and of its <asm/unistd.h>."""

    architecture: int
    socket: int
    refused: frozenset[int]


# Name: its number on x86-64, and on 64-bit ARM.
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
# The same for the embedded engine, beside those above. Threads need `clone`.
_REFUSED_TO_ENGINES: Final[dict[str, tuple[int | None, int | None]]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "bind": (49, 200),
    "chmod": (90, None),
    "chown": (92, None),
    "connect": (42, 203),
    "creat": (85, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fork": (57, None),
    "ftruncate": (77, 46),
    "kill": (62, 129),
    "lchown": (94, None),
    "link": (86, None),
    "linkat": (265, 37),
    "listen": (50, 201),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "openat2": (437, 437),
    "pidfd_send_signal": (424, 424),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "rmdir": (84, None),
    "setxattr": (188, 5),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "truncate": (76, 45),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "vfork": (58, None),
}
# Calls that open a file, and the place of the flags among their arguments.
_OPENS: Final[dict[str, tuple[int | None, int | None, int]]] = {
    "open": (2, None, 1),
    "openat": (257, 56, 2),
}
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Netlink belongs to the namespace of the network; the C library lists addresses with it.
_FAMILIES: Final = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)


def _numbers(
    column: int, table: Mapping[str, tuple[int | None, int | None]] = _REFUSED
) -> frozenset[int]:
    both = (numbers[column] for numbers in table.values())
    return frozenset(number for number in both if number is not None)


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 41, _numbers(0)),
    "aarch64": _Machine(0xC00000B7, 198, _numbers(1)),
}

# From <linux/bpf_common.h> and <linux/seccomp.h>.
_LOAD: Final = 0x20
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_AT_LEAST: Final = 0x35
_JUMP_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000
# Places in `struct seccomp_data`; arguments have 64 bits, and both processors are little endian.
_AT_NUMBER: Final = 0
_AT_ARCHITECTURE: Final = 4
_AT_FIRST_ARGUMENT: Final = 16
# Calls of x86-64 with pointers of 32 bits have the same architecture, and numbers from here on.
_X32_NUMBERS: Final = 0x40000000


def system_call_filter(machine: str) -> bytes:
    """Return the program for a processor, as an array of `struct sock_filter`.

    Args:
        machine: Name of the processor, as `platform.machine` returns it.

    Returns:
        The program, or nothing for a processor whose numbers are not known.
    """
    known = _MACHINES.get(machine)
    if known is None:
        return b""
    unknown_family = _step(_RETURN, _REFUSE | errno.EAFNOSUPPORT)
    program = [
        *_refusing(known, known.refused),
        *(_step(_JUMP_IF_EQUAL, known.socket, 1), _ALLOWED, _step(_LOAD, _AT_FIRST_ARGUMENT)),
    ]
    for family in _FAMILIES:
        program += [_step(_JUMP_IF_EQUAL, family, 0, 1), _ALLOWED]
    return b"".join([*program, unknown_family])


def engine_call_filter(machine: str) -> bytes:
    """Return the program for processes of the embedded engine. Arguments and result as above."""
    known = _MACHINES.get(machine)
    if known is None:
        return b""
    column = [*_MACHINES].index(machine)
    program = _refusing(known, known.refused | _numbers(column, _REFUSED_TO_ENGINES))
    for *numbers, argument in _OPENS.values():
        if (number := numbers[column]) is not None:
            program += [
                _step(_JUMP_IF_EQUAL, number, 0, 4),
                _step(_LOAD, _AT_FIRST_ARGUMENT + 8 * argument),
                *(_step(_JUMP_IF_ANY_BIT, _WRITES, 0, 1), _REFUSED_CALL, _ALLOWED),
            ]
    return b"".join([*program, _ALLOWED])


def _refusing(known: _Machine, refused: Collection[int]) -> list[bytes]:
    """Return the first steps of a program: they refuse some calls, and leave others' number."""
    program = [
        # Calls of other architectures, such as those of 32 bits, have other numbers.
        *(_step(_LOAD, _AT_ARCHITECTURE), _step(_JUMP_IF_EQUAL, known.architecture, 1)),
        *(_REFUSED_CALL, _step(_LOAD, _AT_NUMBER)),
        *(_step(_JUMP_IF_AT_LEAST, _X32_NUMBERS, 0, 1), _REFUSED_CALL),
    ]
    for number in sorted(refused):
        program += [_step(_JUMP_IF_EQUAL, number, 0, 1), _REFUSED_CALL]
    return program


def _step(code: int, value: int, skipped_if_true: int = 0, skipped_if_false: int = 0) -> bytes:
    """Return one instruction: a code, the numbers of skipped instructions, and a value."""
    return struct.pack("=HBBI", code, skipped_if_true, skipped_if_false, value)


_ALLOWED: Final = _step(_RETURN, _ALLOW)
_REFUSED_CALL: Final = _step(_RETURN, _REFUSE | errno.EPERM)
