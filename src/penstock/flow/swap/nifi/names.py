"""Names of NiFi's swap files.

    <milliseconds>-<queue uuid>-<random uuid>[.<stream partition>].swap[.part]

Owns that form (facts of NiFi 1.x and 2.x). Does not own the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"(\d+)-([^/]*?)(?:\.[^/]+)?\.swap(\.part)?")
_OWNED_PIECES: Final = 6


@dataclass(frozen=True, slots=True)
class SwapName:
    """Parts of a name.

    Attributes:
        written_ms: When it was written, epoch milliseconds.
        queue: Id of its queue; None in names of NiFi before 1.0.
        unfinished: Whether the write was not finished: NiFi deletes such a file when it starts.
    """

    written_ms: int
    queue: str | None
    unfinished: bool

    @classmethod
    def parse(cls, name: str) -> SwapName | None:
        """Parse a file name without its folder; return None if NiFi would ignore the file."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        pieces = f"{found[1]}-{found[2]}".split("-")
        queue = "-".join(pieces[1:_OWNED_PIECES]) if len(pieces) > _OWNED_PIECES else None
        return cls(int(found[1]), queue, found[3] is not None)


def reading_order(path: str) -> tuple[bool, int, str]:
    """Return the sort key for NiFi's order of recovery: by time, files without a time last."""
    name = SwapName.parse(path.rpartition("/")[2])
    return (name is None, name.written_ms if name else 0, path)
