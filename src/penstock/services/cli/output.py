"""Output of commands: tables for users and JSON for programs; and input from files.

Every command prints through this module and `tables`, and nothing else writes to the standard
streams (checked by `tests/services/test_cli_output.py`). Control characters in data are escaped
here, and text is never interpreted as markup of Rich. Bytes that a program requested, such as the
messages of `penstock sub`, are written unchanged unless the output is a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import typer

from penstock.core.errors import InvalidRequest, PenstockError, counted
from penstock.core.printable import escaped, escaped_json, escaped_lines
from penstock.core.whole_numbers import int64_of
from penstock.services.cli import exit_codes
from penstock.services.cli.tables import print_table
from penstock.services.json_values import objects, whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock.storage.filesystem import AppendFile

Row = Mapping[str, object]
_NUMBER_SHOWN = 30
_NAME_SHOWN = 100
_ESCAPING = "penstock-escapes"
_SECRET_CHARACTERS_MAX = 10_000
_BYTE_ORDER_MARK = "\ufeff"  # which some editors write before a text


def print_json(content: object) -> None:
    """Print JSON, indented."""
    typer.echo(escaped_json(json.dumps(content, indent=2, ensure_ascii=False)))


def prepare_streams() -> None:
    r"""Let streams of an encoding such as ASCII show other characters as `\u00fc`.

    Escapes of this form are also valid in JSON.
    """
    codecs.register_error(_ESCAPING, _as_json_escapes)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_ESCAPING)


def _as_json_escapes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def echo(text: str = "") -> None:
    """Print a line."""
    typer.echo(escaped(text))


def echo_lines(text: str, *, end: bool = True) -> None:
    """Print a text of several lines; tabs are kept."""
    typer.echo(escaped_lines(text), nl=end)


def warn(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(escaped(text), err=True)


def warn_lines(text: str) -> None:
    """Print a text of several lines, such as an error, on standard error."""
    typer.echo(escaped_lines(text), err=True)


def print_result(chunks: Iterable[bytes], *, is_json: bool) -> None:
    """Print a result for programs as it arrives: unchanged, but escaped on a terminal.

    JSON means the same with escapes, so it is always escaped. Line ends at the end of a result are
    replaced by one.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in with_one_end(chunks):
        text = decoder.decode(chunk)
        if is_json:
            text = escaped_json(text)
        elif sys.stdout.isatty():
            text = escaped_lines(text)
        # Not with Typer, which removes color sequences.
        sys.stdout.write(text)
    sys.stdout.write(decoder.decode(b"", final=True))


def with_one_end(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text in chunks with one line end at its end, however many it has."""
    ends = b""  # pending line ends, which are passed on when more text follows
    for chunk in chunks:
        text = ends + chunk
        rest = text.rstrip(b"\r\n")
        ends = text[len(rest) :]
        yield rest
    yield b"\n"


def write_bodies(bodies: Iterable[bytes]) -> None:
    """Write messages, each with a line end; escaped on a terminal."""
    if sys.stdout.isatty():
        for body in bodies:
            echo_lines(body.decode("utf-8", "backslashreplace"))
        return
    sys.stdout.buffer.writelines(body + b"\n" for body in bodies)
    sys.stdout.buffer.flush()


def byte_output() -> BinaryIO:
    """Return standard output for a file of bytes, such as an export to `-`.

    Raises:
        InvalidRequest: Standard output is a terminal.
    """
    if sys.stdout.isatty():
        raise InvalidRequest(
            "a terminal cannot show the bytes of the export: redirect the output, or name a file"
        )
    return sys.stdout.buffer


@contextlib.contextmanager
def new_file(target: Path, *, replace: bool) -> Iterator[AppendFile]:
    """Provide a file for writing, which gets its name when the block ends.

    Until then the content is in a file beside it, which an error deletes.

    Args:
        target: The file; of a symbolic link, the file that it names.
        replace: Replace an existing file.

    Raises:
        InvalidRequest: The file exists, is not a regular file, or its folder cannot be written.
        Unavailable: The disk is full or does not answer.
    """
    from penstock.storage.disk import OsFileSystem  # noqa: PLC0415 - not for every command

    fs = OsFileSystem()
    path = Path(fs.resolve(str(target)))
    check_new_file(target, replace=replace)
    temporary = str(path.with_name(f".{path.name[:_NAME_SHOWN]}.{uuid.uuid4().hex}.tmp"))
    file = fs.create(temporary)
    try:
        try:
            yield file
            file.sync()
        finally:
            file.close()
        check_new_file(target, replace=replace)
        fs.rename(temporary, str(path))
    except BaseException:
        with contextlib.suppress(PenstockError):
            fs.unlink(temporary)
        raise
    fs.fsync_folder(str(path.parent))


def check_new_file(target: Path, *, replace: bool) -> None:
    """Check that a file may be written.

    Raises:
        InvalidRequest: It exists and `replace` is not set, it is not a regular file, or it has no
            folder.
    """
    if not target.exists():
        if not target.absolute().parent.is_dir():
            raise InvalidRequest("its folder does not exist: create it", place=str(target))
        return
    if not target.is_file():
        raise InvalidRequest("is not a regular file: name another one", place=str(target))
    if not replace:
        raise InvalidRequest(
            "exists: name another file, or replace it with --yes", place=str(target)
        )


@contextlib.contextmanager
def progress_bars(*, with_rest: bool = True) -> Iterator[Bars]:
    """Show progress bars on standard error, which is a terminal, until the block ends.

    Args:
        with_rest: Show the percentage and the remaining time of a bar; otherwise the elapsed time.
    """
    # Imported here, because most commands show no bar and start sooner without it.
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
    """Progress bars; the text of each is data, not markup."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def add(self, text: str, total: int | None) -> TaskID:
        """Add a bar."""
        return self._shown.add_task(escaped(text), total=total)

    def advance(self, bar: TaskID) -> None:
        """Advance by one step."""
        self._shown.advance(bar)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._shown.console.print(escaped(text), markup=False, highlight=False, soft_wrap=True)

    def update(
        self, bar: TaskID, done: int, total: int | None = None, *, text: str | None = None
    ) -> None:
        """Set the progress of a bar, and its total and text if they are given."""
        shown = None if text is None else escaped(text)
        self._shown.update(bar, completed=done, total=total, description=shown)


def confirm(question: str, *, yes: bool, loss: str = "this cannot be undone") -> None:
    """Ask before data is lost; end the command unless the answer is yes.

    Raises:
        InvalidRequest: The input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"{loss}; confirm with --yes")
    try:
        answer = input(escaped(f"{question} [y/N] "))
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        warn("penstock: nothing was changed")
        raise typer.Exit(exit_codes.FAILED)


def read_secret(name: str, *, repeat: bool = False) -> str:
    """Return a password or token: from the terminal, without echo, or one line of standard input.

    Args:
        name: Its kind for the prompt, such as `password`.
        repeat: Ask twice on a terminal, because it is a new one.

    Raises:
        InvalidRequest: It is empty, has more than one line, or the two entries differ.
    """
    if not sys.stdin.isatty():
        text = sys.stdin.read(_SECRET_CHARACTERS_MAX + 1)
        secret = text.removesuffix("\n").removesuffix("\r")
        if "\n" in secret or len(text) > _SECRET_CHARACTERS_MAX:
            raise InvalidRequest(f"standard input has more than one line: send the {name} alone")
    else:
        # Imported here, because only these commands read from a terminal without echo.
        from getpass import getpass  # noqa: PLC0415

        secret = getpass(escaped(f"{name}: "))
        if repeat and getpass(escaped(f"{name} again: ")) != secret:
            raise InvalidRequest(f"the two entries of the {name} differ: try again")
    if not secret:
        raise InvalidRequest(f"the {name} is empty: write it on the terminal or to standard input")
    return secret


def read_text(file: Path) -> str:
    """Return the text of a file named on the command line; `-` is standard input.

    Raises:
        InvalidRequest: The file cannot be read.
    """
    with translate_read_errors(file):
        if str(file) == "-":
            return sys.stdin.read().removeprefix(_BYTE_ORDER_MARK)
        require_readable(file)
        return file.read_text(encoding="utf-8").removeprefix(_BYTE_ORDER_MARK)


def require_readable(file: Path) -> None:
    """Refuse a named pipe, a socket or a device, whose reading may never end.

    A pipe that the shell has opened, as for `<(command)`, is accepted.

    Raises:
        InvalidRequest: The file is one of these.
        OSError: The file does not exist, or its properties cannot be read.
    """
    mode = file.stat().st_mode
    # An open pipe has a path below /dev/fd, and no path of its own.
    is_open_pipe = stat.S_ISFIFO(mode) and not file.resolve().exists()
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or is_open_pipe):
        raise InvalidRequest(
            "is not a regular file: name one, or write - for standard input", place=str(file)
        )


def read_json(file: Path) -> object:
    """Return the value of a JSON file named on the command line. Raises as `read_text`.

    Raises:
        InvalidRequest: The file is not JSON; the message has the file, line and column.
    """
    return parse_json(read_text(file), str(file))


def parse_json(text: str, place: str, *, whole: Callable[[str], int] | None = None) -> object:
    """Return the value of a JSON text.

    Args:
        text: The text.
        place: Source of the text, for messages.
        whole: Parser of whole numbers; None: they must fit into 64 bits.

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
            "nests objects or lists too deeply: reduce the nesting", place=place
        ) from None
    except InvalidRequest as error:  # adds the place
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
def translate_read_errors(file: Path) -> Iterator[None]:
    """Translate errors of a file that the block reads.

    Raises:
        InvalidRequest: The file cannot be read.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:  # not about the file, such as a closed pipe
            raise
        raise InvalidRequest(f"cannot be read: {error.strerror}", place=str(file)) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is not UTF-8 text: byte {error.start} is invalid", place=str(file)
        ) from None


def first_line(text: object) -> str | None:
    """Return the first line of a text, because the rest may be a query with a marked position."""
    return None if text is None else str(text).split("\n", 1)[0].rstrip()


def cell(value: object) -> str:
    """Format one value for a table."""
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
    """Return rows without those of these columns that are empty in all rows.

    Columns for rare values, such as errors, would make most tables too wide for a terminal.
    """
    empty = {name for name in names if all(row.get(name) is None for row in rows)}
    return [{name: row[name] for name in row if name not in empty} for row in rows]


def print_rows(
    rows: Sequence[Row], *, as_json: bool, empty: str = "none", may_cut: Sequence[str] = ()
) -> None:
    """Print rows as a table, or as a JSON list.

    Args:
        rows: All with the same names.
        as_json: Print JSON.
        empty: Text to print if there are no rows.
        may_cut: Columns that may be shortened on a narrow terminal, in this order.
    """
    if as_json:
        print_json([dict(row) for row in rows])
        return
    if not rows:
        echo(empty)
        return
    names = list(rows[0])
    table = [[cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float) for row in rows) for name in names]
    print_table(names, table, numeric, width=terminal_width(), may_cut=may_cut)


def terminal_width() -> int | None:
    """Return the width of the terminal; None in a pipe, where cells must not be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wait_lines(answer: object) -> list[str]:
    """Return the ``waits`` of an answer as text, one line for each entry."""
    lines = []
    for one in objects(answer, "waits"):
        tries = whole(one, "tries")
        count = counted(tries, "try", "tries")
        owner = one.get("owner")
        work = f"{owner}: {one.get('work')}" if owner else one.get("work")
        lines.append(
            f"{one.get('dependency')} since {one.get('since')}, {count} ({work}):"
            f" {first_line(one.get('error'))}"
        )
    return lines
