"""How commands print: tables for people, JSON for programs.

Owns the two forms and nothing of what is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

import typer

Row = Mapping[str, object]


def print_json(content: object) -> None:
    """Print JSON, indented."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Print a line."""
    typer.echo(text)


def warn(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(text, err=True)


def cell(value: object) -> str:
    """Write one value for a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def print_rows(rows: Sequence[Row], *, as_json: bool, empty: str = "none") -> None:
    """Print rows as a table, or as a JSON list."""
    if as_json:
        print_json([dict(row) for row in rows])
        return
    if not rows:
        say(empty)
        return
    names = list(rows[0])
    table = [[cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float) for row in rows) for name in names]
    print_table(names, table, numeric)


def print_table(
    names: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    """Print a table whose cells are text already."""
    # Rich takes a sixth of a second to import; commands that print no table do without it.
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(text) for text in row))
    # In a pipe there is no width to fit in: cells are not to be cut.
    console = Console() if sys.stdout.isatty() else Console(width=10_000)
    console.print(table)
