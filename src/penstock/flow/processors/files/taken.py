"""What a source of files remembers, so that each file is taken once: pure.

Owns the two ways to remember and their text in the state. Does not own the listing (`listing`).

    files   a digest of place, size and time of each file that was taken and is still there
    times   the newest time of change among those taken, and which files had it

Invariant: a file that changed is another file; what is forgotten is no longer there (files), or
older than what was taken (times).
"""

from __future__ import annotations

import base64
import enum
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.errors import Conflict
from penstock.flow.processors.files.places import FoundFile

DIGEST_CHARS: Final = 12
TAKEN_MAX: Final = 80_000  # as many as a state has room for

_FOLDER: Final = "folder"
_TAKEN: Final = "taken"
_NEWEST: Final = "newest.ms"


class Tracking(enum.Enum):
    """How it is known which files were taken."""

    FILES = "files"
    TIMES = "times"


class Taken:
    """The files that were taken. Not for several threads.

    Args:
        tracking: How to remember.
        folder: What is listed: with another, nothing was taken.
        state: As `state` gave it, or empty.
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
        """Say whether a file was not taken yet."""
        if self._is_remembered(found):
            return digest(found) not in self._digests
        return found.modified_ms is None or found.modified_ms > self._newest_ms

    def add(self, files: Iterable[FoundFile]) -> None:
        """Remember files as taken.

        Raises:
            Conflict: They are more than can be remembered; nothing was added.
        """
        given = list(files)
        if self._tracking is Tracking.TIMES:
            self._move_on(given)
        added = self._digests | {digest(found) for found in given if self._is_remembered(found)}
        if len(added) > TAKEN_MAX:
            raise Conflict(
                f"{self._folder}: more than {TAKEN_MAX:,} files that were taken are still there: "
                "have them removed, or track by times"
            )
        self._digests = added

    def keep_only(self, present: Iterable[FoundFile]) -> None:
        """Forget files that are gone; by times, nothing needs to be forgotten."""
        if self._tracking is Tracking.FILES:
            self._digests &= {digest(found) for found in present}

    def state(self) -> dict[str, str]:
        """Return all that is to be remembered."""
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
    """Return what stands for a file as it is now."""
    text = f"{found.place}\n{found.size}\n{found.modified_ms}\n{found.mark}"
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=9).digest()
    return base64.urlsafe_b64encode(hashed).decode("ascii")
