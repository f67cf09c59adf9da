"""Exit codes of commands; `docs/cli.md` has the same table."""

from __future__ import annotations

from penstock.services.host import supervision

OK = 0
FAILED = 1
USAGE = 2
NOT_REACHABLE = 3
DEAD_THREAD = supervision.DEAD_THREAD
INTERRUPTED = 130
