"""Memory limit of one Python worker of Spark.

A few bytes of input can represent any number of bytes in memory. The parsers have their own limits;
this limit ends a single piece of work that exceeds them, before the kernel ends the JVM, the broker
or other workers for lack of memory.

Owns the size of the limit, how a worker sets it, and the error of work that exceeds it. The limit
counts allocations of a process (`RLIMIT_DATA`). Mapped files, such as the blocks of a topic, do not
count, unlike with `spark.executor.pyspark.memory` (`RLIMIT_AS`).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.host_memory import total_memory_bytes
from penstock.core.out_of_memory import is_out_of_memory, memory_text

LIMIT_BYTES: Final = 4 << 30
"""Limit of a worker, if that is at most half of the host's memory, and at least its share."""
_LIMIT_BYTES_MIN: Final = 1 << 30
_BADNESS: Final = "500"  # from -1000 to 1000; the default is 0
_REMEDY: Final = (
    "split the file, write smaller rows, blocks or row groups, or run the task on a host with more"
    " memory"
)


def limit_bytes(total_bytes: int, cores: int) -> int:
    """Return how many bytes one worker may allocate.

    Args:
        total_bytes: Memory of the host.
        cores: Number of concurrent workers.
    """
    share = max(LIMIT_BYTES, total_bytes // (cores + 1))
    return max(min(share, total_bytes // 2), _LIMIT_BYTES_MIN)


def limit_this_process(bytes_max: int | None = None) -> None:
    """Limit the further allocations of this process.

    If several processes together exceed the memory of the host, the kernel ends one like this
    first. On systems without such limits, nothing is changed.

    Args:
        bytes_max: The limit; None: that of a worker of Spark.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_BADNESS, encoding="ascii")
    total = total_memory_bytes()
    if total is None:
        return
    wanted = _allocated() + (bytes_max or limit_bytes(total, os.cpu_count() or 1))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


@contextlib.contextmanager
def translate_memory_errors(work: str) -> Iterator[None]:
    """Translate an allocation error in the block to one that names the work.

    Args:
        work: Description of the block's work, such as `reading rows.json`.

    Raises:
        InvalidRequest: The block exceeded the memory limit.
    """
    try:
        yield
    except (MemoryError, SystemError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(work) from None


def out_of_memory(work: str) -> InvalidRequest:
    """Return the error of work that exceeded the memory limit of its process."""
    text = memory_text()
    owner = "the process" if text == "memory" else "a Python worker of Spark"
    return InvalidRequest(f"{owner} ran out of its {text} while {work}: {_REMEDY}")


def _allocated() -> int:
    """Return the bytes that count towards the limit already."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
