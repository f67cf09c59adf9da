"""What the operating system lets the process have."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Let this process open as many files and connections as its hard limit says; returns it.

    The soft limit is 1,024 on many systems, for the sake of programs that use ``select``; each
    client takes a descriptor, and so does each stream partition that is being written.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
