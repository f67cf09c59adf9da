"""The lines of a process's output that describe its error, without the frames of stack traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_LINES_MAX: Final = 5
_CHARACTERS_MAX: Final = 300
_TAIL_BYTES: Final = 8_000
# Frames of Python's and Java's stack traces, the first line of a trace, and a warning of each JVM.
_SKIPPED: Final = re.compile(r"\s|Traceback \(most recent call last\):|WARNING: Using incubator|$")


def error_lines(text: str) -> list[str]:
    """Return the last lines of an output, up to five, without stack frames."""
    lines = [line.rstrip() for line in text.splitlines() if not _SKIPPED.match(line)]
    return [
        line if len(line) <= _CHARACTERS_MAX else f"{line[:_CHARACTERS_MAX]}…"
        for line in lines[-_LINES_MAX:]
    ]


def tail(path: Path, start: int = 0) -> str:
    """Return the last 8,000 bytes of a file, but nothing before a position.

    If the file is shorter than the position, because it was rotated, the position is ignored.
    Returns "" if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = start if start <= size else 0
            file.seek(max(begin, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
