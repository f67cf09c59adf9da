"""How rows are laid out for people: as a table where its lines fit, else row by row as lines.

Owns the choice and both forms. Ids and numbers are never broken, as they are there to be copied;
only a column that its command names as one that may be cut is, and ends in an ellipsis then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.printable import escaped, escaped_lines

_GAP: Final = 3
"""Columns of the terminal between two of a table."""

_CUT_TO_MIN: Final = 12
"""A column that may be cut keeps so much, and its name."""


def fitted(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    width: int,
    may_cut: Sequence[str] = (),
) -> list[list[str]] | None:
    """Return the cells of a table whose lines fit a width, cut where they may be; None: none fits.

    Args:
        names: Of the columns.
        cells: Row by row.
        width: Of the terminal, in characters.
        may_cut: Names of columns that lose least when their end is not shown, the first one first.
    """
    # With what it measures by, Rich takes a sixth of a second to import.
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - slow to import, not for every command

    widths = [
        max([_width(name), *(_width(row[at]) for row in cells)]) for at, name in enumerate(names)
    ]
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
    """Return each row as lines of a name and its value, with an empty line between two rows."""
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
    """Print rows; `width` of the terminal is None where there is none to fit in.

    Args:
        names: Of the columns.
        cells: Row by row, text already.
        numeric: Which columns stand at the right.
        width: In characters.
        may_cut: As for `fitted`.
    """
    names = [escaped(name) for name in names]
    cells = [[escaped_lines(text) for text in row] for row in cells]
    shown = cells if width is None else fitted(names, cells, width, may_cut)
    # Here, because commands that print no table start sooner without it.
    from rich import box  # noqa: PLC0415 - slow to import, not for every command
    from rich.console import Console  # noqa: PLC0415 - slow to import, not for every command
    from rich.table import Table  # noqa: PLC0415 - slow to import, not for every command
    from rich.text import Text  # noqa: PLC0415 - slow to import, not for every command

    console = Console() if width is not None else Console(width=10_000)
    if shown is None:
        for line in as_lines(names, cells):
            console.print(Text(line), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=True)
    for row in shown:
        table.add_row(*(Text(text) for text in row))
    console.print(table)


def _width(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415 - slow to import, not for every command

    return max(map(cell_len, text.split("\n")))
