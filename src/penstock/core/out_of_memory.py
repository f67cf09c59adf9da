"""Errors of a process that ran out of memory: their types, and the limit that applied.

The process may have little memory left although the current work needs little, so such an error
does not show that the input is wrong.
"""

from __future__ import annotations

import re
import resource
from typing import Final

_MIB: Final = 1 << 20
# Python raises SystemError if C code failed without an exception: orjson returns no result and sets
# no exception when an allocation fails. If another exception was set before, it is the cause.
_WITHOUT_EXCEPTION: Final = re.compile("without (setting an )?exception")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports that an allocation failed."""
    if isinstance(error, MemoryError):  # including `pa.ArrowMemoryError`
        return True
    if not isinstance(error, SystemError):
        return False
    return (
        isinstance(error.__cause__, MemoryError)
        or _WITHOUT_EXCEPTION.search(str(error)) is not None
    )


def memory_limit_bytes() -> int | None:
    """Return the lower limit on allocations of this process, or None if it has none."""
    limits = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    return min((one for one in limits if one != resource.RLIM_INFINITY), default=None)


def memory_text() -> str:
    """Return a description of the exhausted memory, such as `memory limit of 4,096 MB`."""
    limit = memory_limit_bytes()
    return "memory" if limit is None else f"memory limit of {limit // _MIB:,} MB"
