"""State of a file source, so that each file is taken once. Does no I/O.

Owns the two ways of tracking and their text in the state. Does not own the listing (`listing`).

    files   a digest of path, size and time of each taken file that still exists
    times   the newest time of change of taken files, and the files that had it

Invariant: a changed file counts as another file. A forgotten file no longer exists (files), or is
older than the taken ones (times).
"""

from __future__ import annotations

import base64
import enum
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.errors import Conflict
from penstock.flow.processors.files.folders import FoundFile

DIGEST_CHARS: Final = 12
TAKEN_MAX: Final = 80_000  # as many as fit into a state

_FOLDER: Final = "folder"
_TAKEN: Final = "taken"
_NEWEST: Final = "newest.ms"


class Tracking(enum.Enum):
    """How taken files are tracked."""

    FILES = "files"
    TIMES = "times"


class Taken:
    """Files that were taken. Not thread-safe.

    Args:
        tracking: How they are tracked.
        folder: The listed folder; the state of another folder is ignored.
        state: Result of `state`, or empty.
    """

    def __init__(self, tracking: Tracking, folder: str, state: Mapping[str, str]) -> None:
        self._tracking = tracking
        self._folder = folder
        if state.get(_FOLDER) != folder:
            state = {}
        text = state.get(_TAKEN, "")
        places = range(0, len(text), DIGEST_CHARS)
        self._digests = {text[place : place + DIGEST_CHARS] for place in places}
        self._newest_ms = int(state.get(_NEWEST, "-1"))

    def is_new(self, found: FoundFile) -> bool:
        """Return whether a file was not taken yet."""
        if self._is_remembered(found):
            return digest(found) not in self._digests
        return found.modified_ms is None or found.modified_ms > self._newest_ms

    def add(self, files: Iterable[FoundFile]) -> None:
        """Record files as taken.

        Raises:
            Conflict: They are more than can be remembered; nothing was added.
        """
        given = list(files)
        if self._tracking is Tracking.TIMES:
            self._move_on(given)
        added = self._digests | {digest(found) for found in given if self._is_remembered(found)}
        if len(added) > TAKEN_MAX:
            raise Conflict(
                f"{self._folder}: more than {TAKEN_MAX:,} files that were taken still exist: "
                "remove them, or track by times"
            )
        self._digests = added

    def keep_only(self, present: Iterable[FoundFile]) -> None:
        """Forget files that no longer exist; tracking by times has nothing to forget."""
        if self._tracking is Tracking.FILES:
            self._digests &= {digest(found) for found in present}

    def state(self) -> dict[str, str]:
        """Return the state."""
        return {
            _FOLDER: self._folder,
            _TAKEN: "".join(sorted(self._digests)),
            _NEWEST: str(self._newest_ms),
        }

    def _move_on(self, files: Iterable[FoundFile]) -> None:
        newest_ms = max((f.modified_ms for f in files if f.modified_ms is not None), default=-1)
        if newest_ms > self._newest_ms:
            self._newest_ms = newest_ms
            self._digests = set()

    def _is_remembered(self, found: FoundFile) -> bool:
        return self._tracking is Tracking.FILES or found.modified_ms in {None, self._newest_ms}


def digest(found: FoundFile) -> str:
    """Return a digest of a file's current version."""
    text = f"{found.place}\n{found.size}\n{found.modified_ms}\n{found.mark}"
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=9).digest()
    return base64.urlsafe_b64encode(hashed).decode("ascii")
