"""Positions in a flow: the path of fields, and line and column if it was read from a file.

Owns positions and problems. Does not own reading nor checking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.printable import escaped

Path = tuple[str | int, ...]

_MAX_SHOWN: Final = 50
_LISTED: Final = 20


@dataclass(frozen=True, slots=True, order=True)
class SourceLocation:
    """Position in a flow.

    Attributes:
        line: Line in the file, from 1; 0: it was not read from a file.
        column: Column in the line, from 1.
        path: Path of fields, ``processors.Validate.properties``.
        file: Name of the file; empty: none.
    """

    line: int = 0
    column: int = 0
    path: str = ""
    file: str = ""

    def __str__(self) -> str:
        position = f"{self.line}:{self.column}" if self.line else ""
        at = ":".join(part for part in (self.file, position) if part)
        return escaped(": ".join(part for part in (at, self.path) if part))


@dataclass(frozen=True, slots=True, order=True)
class FlowProblem:
    """Error at a position, with its remedy."""

    place: SourceLocation
    message: str

    def __str__(self) -> str:
        where = str(self.place)
        return f"{where}: {self.message}" if where else self.message


class InvalidFlow(InvalidRequest):
    """Invalid flow: `problems` contains all errors, the text lists the first ones."""

    def __init__(self, problems: Iterable[FlowProblem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:_MAX_SHOWN]]
        if len(self.problems) > _MAX_SHOWN:
            shown.append(f"and {len(self.problems) - _MAX_SHOWN} more")
        head = f"{len(self.problems)} problems in the flow:" if len(self.problems) > 1 else ""
        super().__init__("\n  ".join([head, *shown] if head else shown))
        self.place = str(self.problems[0].place) if self.problems else ""


@dataclass(frozen=True, slots=True)
class SourceLocations:
    """Finds the position of a path; without marks, as for a flow made in Python, only the path.

    Attributes:
        file: Name of the file.
        marks: Line and column of the value at a path.
        key_marks: Line and column of the last key of a path.
        numbers: Number in the file for paths that end with a number, if it differs, because one
            entry of a file may stand for several.
    """

    file: str = ""
    marks: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    key_marks: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    numbers: Mapping[Path, int] = field(default_factory=dict)

    def at(self, path: Path, *, key: bool = False) -> SourceLocation:
        """Return the position of a path, or of its nearest parent that is in the file.

        Args:
            path: Steps from the flow's root.
            key: Return the position of the key instead of the value.
        """
        first, second = (self.key_marks, self.marks) if key else (self.marks, self.key_marks)
        near = path
        while near not in first and near not in second and near:
            near = near[:-1]
        line, column = first.get(near) or second.get(near) or (0, 0)
        shown = path
        if self.numbers:
            shown = tuple(self.numbers.get(path[: n + 1], step) for n, step in enumerate(path))
        return SourceLocation(line, column, written(shown), self.file)


def written(path: Path) -> str:
    """Return a path as text: ``connections[2].to``; unusual names are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step or "[" in step or not step:
            text += f"[{step!r}]"
        else:
            text += f".{step}" if text else step
    return text


def listed(names: Iterable[str]) -> str:
    """Return names for a message, shortened if there are many; none: ``none``."""
    known = list(names)
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return (", ".join(known[:_LISTED]) or "none") + more
