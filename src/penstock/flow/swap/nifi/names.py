"""What the name of one of NiFi's swap files says.

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
    """The parts of a name.

    Attributes:
        written_ms: When it was written, epoch milliseconds.
        queue: Id of the queue that it belongs to; None in names of NiFi before 1.0.
        unfinished: It was being written: NiFi deletes such a file when it starts.
    """

    written_ms: int
    queue: str | None
    unfinished: bool

    @classmethod
    def parse(cls, name: str) -> SwapName | None:
        """Read a file's name, without its folder; None: NiFi would ignore the file."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        pieces = f"{found[1]}-{found[2]}".split("-")
        queue = "-".join(pieces[1:_OWNED_PIECES]) if len(pieces) > _OWNED_PIECES else None
        return cls(int(found[1]), queue, found[3] is not None)


def reading_order(path: str) -> tuple[bool, int, str]:
    """Return what sorts paths as NiFi recovers the files: by time, those without one last."""
    name = SwapName.parse(path.rpartition("/")[2])
    return (name is None, name.written_ms if name else 0, path)
