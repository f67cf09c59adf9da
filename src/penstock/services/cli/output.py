"""How commands print, tables for people and JSON for programs, and how they read files.

Every command prints through this module and `tables`, and nothing else writes to the standard
streams (`tests/services/test_cli_output.py` looks): here control characters in data are escaped,
and here and in `tables` text is never read as markup of Rich. Bytes that a program asked for, such
as the messages of `penstock sub`, pass as they are unless a terminal would show them.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import typer

from penstock.core.errors import InvalidRequest, counted
from penstock.core.printable import escaped, escaped_json, escaped_lines
from penstock.core.wholenumbers import int64_of
from penstock.services.answers import objects, whole
from penstock.services.cli import exitcodes
from penstock.services.cli.tables import print_table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Row = Mapping[str, object]
_NUMBER_SHOWN = 30


def print_json(content: object) -> None:
    """Print JSON, indented."""
    typer.echo(escaped_json(json.dumps(content, indent=2, ensure_ascii=False)))


def say(text: str = "") -> None:
    """Print a line."""
    typer.echo(escaped(text))


def say_lines(text: str, *, end: bool = True) -> None:
    """Print a text of several lines; its tabs stay, too."""
    typer.echo(escaped_lines(text), nl=end)


def warn(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(escaped(text), err=True)


def warn_lines(text: str) -> None:
    """Print a text of several lines, such as an error, on standard error."""
    typer.echo(escaped_lines(text), err=True)


def print_result(chunks: Iterable[bytes], *, is_json: bool) -> None:
    """Print a result for programs as it arrives: as it is, but escaped on a terminal.

    JSON means the same with escapes, so it always has them. One end of line replaces those at the
    end of the result.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    ends = ""  # of lines, which are printed when something follows them
    for chunk in chunks:
        text = ends + decoder.decode(chunk)
        rest = text.rstrip("\r\n")
        ends = text[len(rest) :]
        if is_json:
            rest = escaped_json(rest)
        elif sys.stdout.isatty():
            rest = escaped_lines(rest)
        # Not by Typer, which leaves out what looks like a colour.
        sys.stdout.write(rest)
    sys.stdout.write(decoder.decode(b"", final=True) + "\n")


def write_bodies(bodies: Iterable[bytes]) -> None:
    """Write messages, each with the end of a line; a terminal is shown them escaped."""
    if sys.stdout.isatty():
        for body in bodies:
            say_lines(body.decode("utf-8", "backslashreplace"))
        return
    sys.stdout.buffer.writelines(body + b"\n" for body in bodies)
    sys.stdout.buffer.flush()


def byte_output() -> BinaryIO:
    """Return standard output for a file of bytes, such as an export to `-`.

    Raises:
        InvalidRequest: A terminal would show the bytes.
    """
    if sys.stdout.isatty():
        raise InvalidRequest(
            "a terminal cannot show the bytes of the export: redirect the output, or name a file"
        )
    return sys.stdout.buffer


@contextlib.contextmanager
def progress_bars(*, with_rest: bool = True) -> Iterator[Bars]:
    """Show bars of progress on standard error, which is a terminal, until the block ends.

    Args:
        with_rest: Whether a bar has its percentage and the time that is left, or the time passed.
    """
    # Here, because most commands show no bar and start sooner without it.
    from rich import progress  # noqa: PLC0415 - slow to import, not for every command
    from rich.console import Console  # noqa: PLC0415 - slow to import, not for every command

    columns: list[progress.ProgressColumn] = [
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
    ]
    if with_rest:
        columns += [progress.TaskProgressColumn(), progress.TimeRemainingColumn()]
    else:
        columns.append(progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bars(shown)


class Bars:
    """Bars of progress, each with a text that is data."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def add(self, text: str, total: int | None) -> TaskID:
        """Show one bar more."""
        return self._shown.add_task(escaped(text), total=total)

    def advance(self, bar: TaskID) -> None:
        """Count one step."""
        self._shown.advance(bar)

    def update(
        self, bar: TaskID, done: int, total: int | None = None, *, text: str | None = None
    ) -> None:
        """Show how much is done; of how much, and what, only if that is given."""
        shown = None if text is None else escaped(text)
        self._shown.update(bar, completed=done, total=total, description=shown)


def confirm(question: str, *, yes: bool, loss: str = "this cannot be undone") -> None:
    """Ask before something is lost; end the command unless the answer is yes.

    Raises:
        InvalidRequest: Nobody is there to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{loss}; say --yes")
    try:
        answer = input(escaped(f"{question} [y/N] "))
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        warn("penstock: nothing was changed")
        raise typer.Exit(exitcodes.FAILED)


def read_text(file: Path) -> str:
    """Return the text of a file that a command was given; `-` is standard input.

    Raises:
        InvalidRequest: It cannot be read.
    """
    with reading(file):
        if str(file) == "-":
            return sys.stdin.read()
        return file.read_text(encoding="utf-8")


def read_json(file: Path) -> object:
    """Return the value of a JSON file that a command was given. Raises as `read_text`.

    Raises:
        InvalidRequest: It is not JSON; the message names the file, line and column.
    """
    return parse_json(read_text(file), str(file))


def read_spec(file: Path) -> bytes:
    """Return a JSON or YAML file as it was written: the server also sees names that stand twice.

    Raises:
        InvalidRequest: As `read_json`; the server reads YAML, because that takes long to import.
    """
    text = read_text(file)
    if not text.strip():
        raise InvalidRequest("is empty: write a spec in JSON or YAML", place=str(file))
    if text.lstrip().startswith(("{", "[")):
        parse_json(text, str(file), whole=len)
    return text.encode(errors="surrogateescape")


def parse_json(text: str, place: str, *, whole: Callable[[str], int] | None = None) -> object:
    """Return the value of a JSON text.

    Args:
        text: The text.
        place: Where it comes from, for the message.
        whole: Reads whole numbers; None: they must fit into 64 bits.

    Raises:
        InvalidRequest: It is not JSON.
    """
    try:
        value: object = json.loads(text, parse_int=whole or _int64)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"is not JSON: {error.msg}", place=f"{place}:{error.lineno}:{error.colno}"
        ) from None
    except RecursionError:
        raise InvalidRequest(
            "has objects or lists inside each other too deeply: write it flatter", place=place
        ) from None
    except InvalidRequest as error:  # narrow: adds the place
        raise InvalidRequest(str(error), place=place) from None
    return value


def _int64(text: str) -> int:
    number = int64_of(text)
    if number is None:
        shown = text if len(text) <= _NUMBER_SHOWN else f"{text[:_NUMBER_SHOWN]}…"
        raise InvalidRequest(
            f"the number {shown} has more than 64 bits: write a smaller one, or put it in quotes"
        )
    return number


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Say what is wrong with a file that the block reads.

    Raises:
        InvalidRequest: It cannot be read.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:  # of something else, such as a pipe that was closed
            raise
        raise InvalidRequest(f"cannot be read: {error.strerror}", place=str(file)) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is no UTF-8 text: byte {error.start} is none of it", place=str(file)
        ) from None


def first_line(text: object) -> str | None:
    """Return what fits in a table of a text that may go on with a query and arrows under it."""
    return None if text is None else str(text).split("\n", 1)[0].rstrip()


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
        return escaped_json(json.dumps(value, ensure_ascii=False))
    return escaped(str(value))


def without_empty(rows: Sequence[Row], *names: str) -> list[Row]:
    """Return the rows of a table without those of these columns that hold nothing.

    Columns for what is rare, such as errors, cost most tables the width of a terminal.
    """
    empty = {name for name in names if all(row.get(name) is None for row in rows)}
    return [{name: row[name] for name in row if name not in empty} for row in rows]


def print_rows(
    rows: Sequence[Row], *, as_json: bool, empty: str = "none", may_cut: Sequence[str] = ()
) -> None:
    """Print rows as a table, or as a JSON list.

    Args:
        rows: All with the same names.
        as_json: Whether as JSON.
        empty: What is said where there are none.
        may_cut: Columns that may be shortened where a terminal is narrow, the first one first.
    """
    if as_json:
        print_json([dict(row) for row in rows])
        return
    if not rows:
        say(empty)
        return
    names = list(rows[0])
    table = [[cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float) for row in rows) for name in names]
    print_table(names, table, numeric, width=terminal_width(), may_cut=may_cut)


def terminal_width() -> int | None:
    """Return the width of the terminal; None in a pipe, where cells are not to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wait_lines(answer: object) -> list[str]:
    """Return what the ``waits`` of an answer say, one line for each dependency."""
    lines = []
    for one in objects(answer, "waits"):
        tries = whole(one, "tries")
        count = counted(tries, "try", "tries")
        lines.append(
            f"{one.get('dependency')} since {one.get('since')}, {count} ({one.get('work')}):"
            f" {first_line(one.get('error'))}"
        )
    return lines
