"""`penstock sql`: one statement from an argument, a file or standard input; or a prompt."""

from __future__ import annotations

import enum
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, counted
from penstock.core.http_errors import error_of_answer
from penstock.core.printable import quoted
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI, QUERY_TIMEOUT_S
from penstock.services.cli.indexing.followed_tasks import follow
from penstock.services.cli.output import (
    byte_output,
    cell,
    check_new_file,
    echo,
    new_file,
    print_result,
    read_text,
    terminal_width,
    warn,
    warn_lines,
    with_one_end,
)
from penstock.services.cli.tables import print_table
from penstock.services.json_client import COMMAND_LINE, JsonClient, json_body
from penstock.services.json_values import part
from penstock.services.sql_client import ask

HISTORY = Path("~/.penstock_history")
PROMPT_HELP = (
    "End a statement with ; or an empty line. \\d lists datasources, \\d NAME the columns of one, "
    "\\q quits; Ctrl-C stops a query."
)
DATASOURCES = "/druid/coordinator/v1/metadata/datasources"


class ResultFormat(enum.StrEnum):
    """Output format of rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Output format of rows, and the context of queries and tasks.

    Attributes:
        output: The format.
        context: The context.
        file: Where the rows are written; None: they are printed.
        replaces: Whether this file may exist already.
    """

    output: ResultFormat
    context: Mapping[str, object]
    file: Path | None = None
    replaces: bool = False


# The server decides whether a statement becomes a task; this test saves queries a request.
_WRITES = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:INSERT|REPLACE)\b", re.IGNORECASE | re.DOTALL)
_EXPLAINS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN\b", re.IGNORECASE | re.DOTALL)

# Context of a query that limits the rows of its result.
_LIMIT: Final = "sqlOuterLimit"
_UNKNOWN_TABLE: Final = "[TABLE_OR_VIEW_NOT_FOUND]"  # Spark's name of the error
_TRUNCATED: Final = (
    "penstock: the result was cut, because it has more rows than the limit of a query (1,000,000, "
    "or less if the query sets a lower one): select fewer rows, for instance one interval of "
    "__time at a time"
)

_RESULT_FORMATS = {
    ResultFormat.CSV: "csv",
    ResultFormat.JSON: "object",
    ResultFormat.JSONL: "objectLines",
    ResultFormat.PARQUET: "parquet",
    ResultFormat.ARROW: "arrow",
}
_BINARY: Final = frozenset({ResultFormat.PARQUET, ResultFormat.ARROW})


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command("sql")(sql)


def sql(
    statement: Annotated[
        str | None, typer.Argument(help="The statement; default: standard input or a prompt.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File that contains the statement.")
    ] = None,
    output: Annotated[
        ResultFormat, typer.Option("--format", help="Output format of rows.")
    ] = ResultFormat.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Context of the query, or of the task of an INSERT or REPLACE; may be repeated.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the rows to this file, in any format but table; - is standard output.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace an existing file.")] = False,
) -> None:
    """Run a query in SQL, or an INSERT or REPLACE as a task.

    Double quotes enclose names, single quotes text; the time column is __time. If the limit of rows
    cuts the result, the exit code is 1, unless --context sqlOuterLimit=NUMBER set the limit. A file
    of --output exists only with the complete result: an error or a cut leaves none.
    """
    if statement is not None and file is not None:
        raise InvalidRequest("give a statement or --file, not both")
    form = ResultFormat.JSON if as_json else output
    chosen = _Wanted(form, _context(context or ()), into, yes)
    _check_output(chosen)
    api = CLI.api(QUERY_TIMEOUT_S)
    if statement is None and file is None and sys.stdin.isatty():
        if into is not None:
            raise InvalidRequest("--output needs a statement: give one, or --file")
        _prompt(api, chosen)
        return
    text = statement if statement is not None else read_text(file or Path("-"))
    if _run(api, text, chosen) and _LIMIT not in chosen.context:
        # A script must notice that rows are missing, unless it asked for a limit.
        raise typer.Exit(exit_codes.FAILED)


def _check_output(wanted: _Wanted) -> None:
    form = wanted.output.value
    if wanted.file is None:
        if wanted.output in _BINARY:
            raise InvalidRequest(
                f"{form} is a format of files: name one with --output, or - for standard output"
            )
        if wanted.replaces:
            raise InvalidRequest("--yes replaces the file of --output: name one")
    elif wanted.output is ResultFormat.TABLE:
        formats = ", ".join(one.value for one in _RESULT_FORMATS)
        raise InvalidRequest(f"--output needs a format: choose --format with one of {formats}")
    elif str(wanted.file) == "-":
        byte_output()  # refuses a terminal
    else:
        # Before the query, which may take long.
        check_new_file(wanted.file, replace=wanted.replaces)


def _context(given: Sequence[str]) -> dict[str, object]:
    """Return names with their values, which are JSON or otherwise text."""
    found: dict[str, object] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise InvalidRequest(
                f"invalid --context {one}: write NAME=VALUE, such as maxParseExceptions=10"
            )
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):  # Python refuses numbers of more than 4,300 digits
            found[name] = value
    return found


def _bare(text: str) -> str:
    """Return a statement without its end; errors count lines and columns from its beginning."""
    statement = text.rstrip().removesuffix(";").rstrip()
    if not statement:
        raise InvalidRequest("the statement is empty")
    try:
        statement.encode()
    except UnicodeEncodeError:
        # Python represents each byte of the command line that is not UTF-8 by a lone surrogate.
        raise InvalidRequest(
            f"{quoted(statement)} has bytes that are not UTF-8: write it in UTF-8"
        ) from None
    return statement


def _run(api: JsonClient, text: str, wanted: _Wanted) -> bool:
    """Run a statement; return whether the limit of rows cut its result."""
    statement, output = _bare(text), wanted.output
    if _WRITES.match(statement):
        if wanted.file is not None:
            raise InvalidRequest("--output is for the rows of a query: a task has none")
        as_json = output in (ResultFormat.JSON, ResultFormat.JSONL)
        _write(api, statement, wanted.context, as_json=as_json)
        return False
    try:
        truncated = _query(api, statement, wanted)
    except InvalidRequest as error:  # narrow: translates
        if _UNKNOWN_TABLE in str(error):
            # As with other names that the server does not have; the API follows Druid's.
            raise NotFound(str(error)) from error
        raise
    except KeyboardInterrupt:  # narrow: warns only
        # The connection is closed already, so the server stops the query.
        warn("penstock: stopped")
        raise
    if truncated:
        warn(_TRUNCATED)
    return truncated


def _query(api: JsonClient, statement: str, wanted: _Wanted) -> bool:
    output = wanted.output
    if output is ResultFormat.TABLE:
        found = ask(api, statement, wanted.context)
        numeric = [
            all(isinstance(row[at], int | float | None) for row in found.rows)
            and any(row[at] is not None for row in found.rows)
            for at in range(len(found.names))
        ]
        # A plan is a text of many lines; other values fit in one line each.
        write = str if _EXPLAINS.match(statement) else _cell
        cells = [[write(value) for value in row] for row in found.rows]
        print_table(found.names, cells, numeric, width=terminal_width())
        echo(f"{len(found.rows):,} {'row' if len(found.rows) == 1 else 'rows'}")
        return found.truncated
    body = {
        "query": statement,
        "resultFormat": _RESULT_FORMATS[output],
        "header": output is ResultFormat.CSV,
        "context": dict(wanted.context),
    }
    with api.stream("POST", "/druid/v2/sql", json_body(body)) as answer:
        if answer.status != 200:
            content = answer.read_all()
            raise error_of_answer(answer.status, content, answer.request, remedies=COMMAND_LINE)
        if wanted.file is None:
            print_result(answer.chunks, is_json=output is not ResultFormat.CSV)
        elif not answer.truncated or _LIMIT in wanted.context:
            chunks = answer.chunks if output in _BINARY else with_one_end(answer.chunks)
            _save(chunks, wanted.file, replaces=wanted.replaces)
        return answer.truncated


def _save(chunks: Iterable[bytes], file: Path, *, replaces: bool) -> None:
    """Write a result to a file, or standard output, as it arrives."""
    if str(file) == "-":
        out = byte_output()
        out.writelines(chunks)
        out.flush()
        return
    size = 0
    with new_file(file, replace=replaces) as written:
        for chunk in chunks:
            written.writev([chunk])
            size += len(chunk)
    echo(f"{counted(size, 'byte')} written to {file}")


def _write(
    api: JsonClient, statement: str, context: Mapping[str, object], *, as_json: bool
) -> None:
    """Run a writing statement as a task, and follow it to its end."""
    task_id = ""
    try:
        answer = api.post("/druid/v2/sql/task", {"query": statement, "context": dict(context)})
        task_id = str(part(answer, "taskId"))
        if not as_json:
            echo(f"submitted task {task_id}")
        follow(task_id, as_json=as_json)
    except KeyboardInterrupt:  # narrow: warns only
        if task_id:
            warn(
                f"penstock: task {task_id} continues; to stop it: penstock task shutdown {task_id}"
            )
        else:
            warn("penstock: its task may have been submitted: check with penstock task list")
        raise


def _cell(value: object) -> str:
    # Unformatted: no thousands separators in a value that may be a year or an id.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "NULL" if value is None else cell(value)


def _prompt(api: JsonClient, wanted: _Wanted) -> None:
    # Imported here, because only the prompt needs them.
    from prompt_toolkit import PromptSession  # noqa: PLC0415
    from prompt_toolkit.history import FileHistory  # noqa: PLC0415

    session: PromptSession[str] = PromptSession(history=FileHistory(str(HISTORY.expanduser())))
    echo(PROMPT_HELP)
    lines: list[str] = []
    while True:
        try:
            typed = session.prompt("sql> " if not lines else "...> ")
        except KeyboardInterrupt:
            lines = []
            continue
        except EOFError:
            return
        line = typed.strip()
        word = line.rstrip("; ")
        if word in ("\\q", "quit", "exit"):
            return
        if word in ("\\?", "help") and not lines:
            echo(PROMPT_HELP)
        elif line.startswith("\\"):
            _attempt(_command, api, word, wanted)
        else:
            if line:
                lines.append(typed)
            if lines and (not line or line.endswith(";")):
                statement = "\n".join(lines)
                lines = []
                _attempt(_run, api, statement, wanted)


def _attempt(
    work: Callable[[JsonClient, str, _Wanted], object], api: JsonClient, text: str, wanted: _Wanted
) -> None:
    """Run a line of the prompt, which continues after any error."""
    try:
        work(api, text, wanted)
    except PenstockError as error:
        warn_lines(f"penstock: {error}")
    except KeyboardInterrupt:
        pass  # For a statement it was reported; other lines change nothing.


def _command(api: JsonClient, line: str, wanted: _Wanted) -> None:
    """Run a backslash command."""
    command, _, name = line.partition(" ")
    if command != "\\d":
        raise InvalidRequest(f"unknown command {command}. {PROMPT_HELP}")
    if name:
        bare = name.strip().strip('"').replace('"', '""')
        _run(api, f'DESCRIBE "{bare}"', wanted)
        return
    found = api.get(DATASOURCES)
    names = [str(one) for one in found] if isinstance(found, list) else []
    for one in names or ["no datasources with data in them yet"]:
        echo(one)
