"""Layout of rows for users: a table if its lines fit, otherwise the fields of each row as lines.

Owns the choice and both forms. Ids and numbers are never broken, so that they can be copied. Only
columns that the command marks as shortenable are cut; they end in an ellipsis then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from penstock.core.printable import escaped, escaped_lines

_GAP: Final = 3
"""Terminal columns between two columns of a table."""

_BLOCK_ROWS: Final = 1_000
"""Number of rows that are laid out before they are printed."""

_CUT_TO_MIN: Final = 12
"""Minimum width of a shortened column, besides its name."""


def fitted(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    may_cut: Sequence[str] = (),
) -> list[list[str]] | None:
    """Return the cells of a table that fits a width, shortened if allowed, or None.

    Args:
        names: Names of the columns.
        cells: Row by row.
        width: Width of the terminal, in characters.
        may_cut: Names of columns that may be shortened, in this order.
    """
    # Importing Rich's measuring functions takes a sixth of a second.
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - slow to import, not for every command

    widths = _widths(names, cells)
    excess = sum(widths) + _GAP * (len(names) - 1) - width
    limits = list(widths)
    for name in may_cut:
        if name in names and excess > 0:
            at = names.index(name)
            limits[at] = max(widths[at] - excess, min(widths[at], _CUT_TO_MIN), _width(name))
            excess -= widths[at] - limits[at]
    if excess > 0:
        return None

    def shown(text: str, at: int) -> str:
        if limits[at] == widths[at]:
            return text
        line = text.replace("\n", " ")
        if cell_len(line) <= limits[at]:
            return line
        return set_cell_size(line, limits[at] - 1).rstrip() + "…"

    return [[shown(text, at) for at, text in enumerate(row)] for row in cells]


def as_lines(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return each row as lines of names and values, with an empty line between rows."""
    label = max((len(name) for name in names), default=0)
    lines: list[str] = []
    for row in cells:
        if lines:
            lines.append("")
        for name, text in zip(names, row, strict=True):
            first, *more = text.split("\n")
            lines.append(f"{name:<{label}}  {first}".rstrip())
            lines += [f"{'':<{label}}  {line}".rstrip() for line in more]
    return lines


def print_table(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    *,
    width: int | None,
    may_cut: Sequence[str] = (),
) -> None:
    """Print rows; `width` of the terminal is None if the lines need not fit.

    Args:
        names: Names of the columns.
        cells: Rows of cells, as text.
        numeric: Which columns are right-aligned.
        width: Width in characters.
        may_cut: As for `fitted`.
    """
    names = [escaped(name) for name in names]
    cells = [[_printed(text) for text in row] for row in cells]
    shown = cells if width is None else fitted(names, cells, width, may_cut)
    if shown is None:
        _write(as_lines(names, cells))
        return
    # Imported here, so that commands that print no table start sooner.
    from rich.console import Console  # noqa: PLC0415 - slow to import, not for every command
    from rich.text import Text  # noqa: PLC0415 - slow to import, not for every command

    console = Console()
    layout = _Layout(_widths(names, shown), numeric)
    # Rich detects whether the terminal supports bold. It takes a millisecond per row, so the rows
    # of the table are written without it.
    console.print(Text(layout.line(names), style="bold"), soft_wrap=True)
    _write([("─" if console.encoding.startswith("utf") else "-") * layout.width])
    for begin in range(0, len(shown), _BLOCK_ROWS):
        _write([line for row in shown[begin : begin + _BLOCK_ROWS] for line in layout.lines(row)])


class _Layout:
    """The columns of a table.

    Args:
        widths: Widths of the columns, in terminal characters.
        numeric: Which columns are right-aligned.
    """

    def __init__(self, widths: Sequence[int], numeric: Sequence[bool]) -> None:
        self._columns = list(zip(widths, numeric, strict=True))
        self.width = sum(widths) + _GAP * (len(widths) - 1)

    def lines(self, row: Sequence[str]) -> list[str]:
        """Return the lines of a row: one, unless a cell has several."""
        if not any("\n" in text for text in row):
            return [self.line(row)]
        parts = zip_longest(*(text.split("\n") for text in row), fillvalue="")
        return [self.line(part) for part in parts]

    def line(self, texts: Sequence[str]) -> str:
        """Return one line."""
        padded = []
        for text, (width, right) in zip(texts, self._columns, strict=True):
            padding = " " * (width - _width(text))
            padded.append(padding + text if right else text + padding)
        return (" " * _GAP).join(padded)


def _widths(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max([_width(name), *(_width(row[at]) for row in cells)]) for at, name in enumerate(names)
    ]


def _width(text: str) -> int:
    if text.isascii() and "\n" not in text:
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - slow to import, not for every command

    return max(map(cell_len, text.split("\n")))


def _printed(text: str) -> str:
    return escaped_lines(text).expandtabs()


def _write(lines: Sequence[str]) -> None:
    """Print lines, with control characters escaped."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
