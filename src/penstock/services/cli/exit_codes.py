"""Exit codes of commands; the reference of the command line has the same table."""

from __future__ import annotations

from penstock.services.host import restart_policy

OK = 0
FAILED = 1
USAGE = 2
NOT_REACHABLE = 3
RESTART_REQUESTED = restart_policy.RESTART_REQUESTED
INTERRUPTED = 130
