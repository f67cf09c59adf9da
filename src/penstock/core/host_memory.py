"""The memory of this host: how much a process may use, and how much it keeps when it frees some."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

# Parameters of `mallopt`, from glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# The largest request body of a broker is smaller by default. Larger buffers come from the kernel
# each time, because glibc does not adapt a limit that a program has set.
_KEPT_PIECE_BYTES: Final = 8 << 20
_KEPT_BYTES: Final = 16 << 20


def total_memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process may use: the host's, or its control group's if less.

    Args:
        root: Folder of `proc` and `sys`.
    """
    sizes = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        sizes += [int(one.split()[1]) * 1024 for one in lines if one.startswith("MemTotal:")]
    if not sizes and root == Path("/"):  # not Linux
        with contextlib.suppress(OSError, ValueError):
            sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int((root / "sys/fs/cgroup" / limit).read_text()))
    return min(sizes, default=None)


def keep_freed_memory() -> None:
    """Have this process keep up to 16 MiB of freed memory for its next buffers.

    By default glibc returns free buffers of more than 128 KiB to the kernel, which clears and maps
    each page again for the next buffer. For batches of 300 KB, that took half of the broker's time.
    It did not happen in every run, because glibc adapts its limits to the first freed buffers.
    No effect with another C library.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_PIECE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
