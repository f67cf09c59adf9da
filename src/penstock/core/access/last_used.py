"""When each stored credential was last used: in memory, and in a file of each kind of process.

Owns the files in `last-used`, their form and their reading. A use is recorded in memory, which
costs a request nothing; the thread of `access_control` writes the file once a minute. Times of
before the start of a process stay in its file, and processes with the same name, such as two
workers, share one file under a lock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from penstock.core.access.principal import Principal
from penstock.core.access.private_file import (
    locked,
    make_private_folder,
    read_bounded,
    replace_private,
)
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError

_logger = logging.getLogger(__name__)

_BYTES_MAX: Final = 16 << 20


class LastUsed:
    """The last use of credentials in one process. Any thread; only `write` is slow.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._used: dict[str, int] = {}
        self._has_changed = False

    def note(self, principal: Principal) -> None:
        """Note that the credential of a principal is used now."""
        self._used[principal.id] = self._clock.now_ms()
        self._has_changed = True

    def write(self, folder: Path, process: str, known: Collection[str]) -> None:
        """Write the file of this process, if a credential was used since the last time.

        Args:
            folder: The folder of the files; it is created if it is missing.
            process: Name of this process.
            known: Ids of the principals whose credentials exist; others are left out.
        """
        if not self._has_changed:
            return
        # Before the copy, so that a use in between is written the next time.
        self._has_changed = False
        # A copy, because other threads add to the dictionary.
        latest = {name: ms for name, ms in self._used.copy().items() if name in known}
        path = folder / f"{process}.json"
        try:
            make_private_folder(folder)
            with locked(folder, self._clock):
                for name, ms in _read(path).items():
                    if name in known:
                        latest[name] = max(ms, latest.get(name, 0))
                replace_private(path, json.dumps(latest).encode(), is_durable=False)
        except PenstockError as error:  # narrow: the next attempt follows in a minute
            self._has_changed = True
            _logger.warning("the last use of credentials is not stored: %s", error)


def read_last_used(folder: Path) -> Mapping[str, int]:
    """Return when each principal was last seen by any process, in epoch milliseconds.

    Args:
        folder: The folder of the files. A file that cannot be read is left out.
    """
    latest: dict[str, int] = {}
    for path in sorted(folder.glob("*.json")):
        for name, ms in _read(path).items():
            latest[name] = max(ms, latest.get(name, 0))
    return latest


def _read(path: Path) -> dict[str, int]:
    try:
        used = json.loads(read_bounded(path, _BYTES_MAX, is_private=False))
    except (PenstockError, ValueError, RecursionError):  # narrow: only a column of a list is lost
        return {}
    if not isinstance(used, dict):
        return {}
    return {name: ms for name, ms in used.items() if type(ms) is int}
