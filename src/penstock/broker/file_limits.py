"""Limits of the operating system on the process."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Raise the limit on open files and connections to the hard limit, and return it.

    The soft limit is 1,024 on many systems, for programs that use ``select``; each client needs a
    descriptor, and so does each stream partition that is being written.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
