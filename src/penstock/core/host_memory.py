"""The memory of this host that a process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
