"""Data with control characters and markup, from every source that a command prints."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import rich.console

from penstock.core.errors import InvalidRequest
from penstock.core.printable import HIDDEN
from penstock.services.cli import entry, exit_codes, output
from penstock.services.cli.entry import run
from penstock.services.cli.flow.flow_client import FlowDocument
from tests.services.test_cli import THERE, FakeServer, server

__all__ = ["server"]

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "src/penstock"
# Reads like a colour, the title of a window, a link and a new line, if it is not escaped.
EVIL = "[bold]\x1b[31m\x1b]0;t\x07\u202e\x9b2J[link=http://x]\x00"
SHOWN = r"[bold]\x1b[31m\x1b]0;t\x07\u202e\x9b2J[link=http://x]\x00"
LINES = f"{EVIL}\nforged"
D = "/druid/indexer/v1"
C = "/druid/coordinator/v1"

Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(capsys: Capture, *arguments: str, code: int = exit_codes.OK) -> str:
    capsys.readouterr()
    assert run(list(arguments)) == code
    said = capsys.readouterr()
    text = said.out + said.err
    assert not re.search(f"(?![\n\t])[{HIDDEN}]", text), repr(text)
    return text


def test_names_of_an_older_release_are_listed_escaped(server: FakeServer, capsys: Capture) -> None:
    server.answers[f"{C}/rules"] = (200, {LINES: [{"type": EVIL, "period": EVIL}]})
    table = printed(capsys, "rule", "list")
    assert f"{SHOWN}\\nforged" in table
    assert len(table.splitlines()) == 3  # the head, a rule and the row
    found = printed(capsys, "rule", "list", "--json")
    assert json.loads(found) == {LINES: [{"type": EVIL, "period": EVIL}]}


def test_a_narrow_terminal_shows_them_escaped(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[f"{C}/rules"] = (200, {LINES: [{"type": EVIL}]})
    for width in ("200", "40"):
        terminal = Terminal()
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setenv("COLUMNS", width)
        assert run(["rule", "list"]) == exit_codes.OK
        # What Rich itself sends for the head of the table.
        said = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
        assert f"{SHOWN}\\nforged" in said
        assert not re.search(f"(?!\n)[{HIDDEN}]", said)


def test_lines_about_supervisors_tasks_and_segments(server: FakeServer, capsys: Capture) -> None:
    server.answers[f"{D}/supervisor"] = (200, [{"id": LINES, "state": EVIL, "dataSource": EVIL}])
    assert SHOWN in printed(capsys, "supervisor", "list")
    payload = {"detailedState": EVIL, "recentErrors": [{"exceptionMessage": LINES}]}
    server.answers[f"{D}/supervisor/x/status"] = (200, {"id": EVIL, "payload": payload})
    assert SHOWN in printed(capsys, "supervisor", "status", "x")
    server.answers[f"{D}/tasks"] = (200, [{"id": LINES, "statusCode": EVIL, "dataSource": EVIL}])
    assert f"{SHOWN}\\nforged" in printed(capsys, "task", "list")
    status = {"statusCode": "RUNNING", "runnerStatusCode": "WAITING", "id": EVIL}
    waits = [{"kind": EVIL, "text": EVIL}]
    server.answers[f"{D}/task/t/status"] = (200, {"task": "t", "status": status})
    server.answers[f"{D}/task/t/why"] = (200, {"task": "t", "status": status, "waits": waits})
    assert SHOWN in printed(capsys, "task", "why", "t")
    report = {"ingestionState": EVIL, "errorMsg": LINES, "unparseableEvents": {"x": [LINES]}}
    server.answers[f"{D}/task/t/reports"] = (
        200,
        {"ingestionStatsAndErrors": {"payload": report}},
    )
    assert f"error       {SHOWN}\\nforged\n" in printed(capsys, "task", "report", "t")
    base = f"{C}/metadata/datasources"
    server.answers[base] = (200, [LINES])
    where = f"{base}/{quote(LINES, safe='')}/segments"
    server.answers[where] = (200, [{"identifier": LINES, "totalRows": 5, "size": 9}])
    assert f"{SHOWN}\\nforged" in printed(capsys, "segment", "list")


def test_the_log_of_a_task_keeps_its_lines_and_tabs(server: FakeServer, capsys: Capture) -> None:
    server.answers[f"{D}/task/t/log"] = (200, f"one\ttab\r\n{EVIL}\nlast\n")
    assert printed(capsys, "task", "log", "t") == f"one\ttab\n{SHOWN}\nlast\n"


def test_errors_of_the_server_keep_their_lines(server: FakeServer, capsys: Capture) -> None:
    server.answers[f"{D}/supervisor/x/status"] = (400, {"error": f"2 mistakes:\n  {EVIL}"})
    said = printed(capsys, "supervisor", "status", "x", code=exit_codes.USAGE)
    assert said == f"penstock: 2 mistakes:\n  {SHOWN}\n"


def test_the_trace_of_an_error_is_escaped(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(**_: object) -> None:
        raise InvalidRequest(EVIL)

    monkeypatch.setattr(entry, "command_tree", lambda _: raising)
    monkeypatch.setattr(entry.CLI, "debug", True)
    said = printed(capsys, code=exit_codes.USAGE)
    assert "Traceback" in said
    assert said.endswith(f"penstock: {SHOWN}\n")
    assert traceback.format_exc() == "NoneType: None\n"


def test_results_of_sql(
    server: FakeServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "/druid/v2/sql"
    server.answers[sql] = (200, [[LINES, "n"], [LINES, 1]])
    table = printed(capsys, "sql", "SELECT 1")
    assert table.count(f"{SHOWN}\\nforged") == 2
    server.answers[sql] = (200, [["plan"], ["Project\n  Scan"]])
    assert "  Scan" in printed(capsys, "sql", "/* why */ EXPLAIN SELECT 1").splitlines()[3]
    # JSON text of the server, which need not escape these.
    rows = json.dumps([{"a": "\x9b2J\u202e\x7f\n"}], ensure_ascii=False)
    server.answers[sql] = (200, rows)
    assert json.loads(printed(capsys, "sql", "SELECT 1", "--json")) == json.loads(rows)
    assert json.loads(printed(capsys, "sql", "SELECT 1", "--format", "jsonl")) == json.loads(rows)
    # CSV is for programs: exact in a pipe, escaped on a terminal.
    server.answers[sql] = (200, f"a\n\x1b[31m{EVIL}\n")
    capsys.readouterr()
    assert run(["sql", "SELECT 1", "--format", "csv"]) == exit_codes.OK
    assert capsys.readouterr().out == f"a\n\x1b[31m{EVIL}\n"
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert run(["sql", "SELECT 1", "--format", "csv"]) == exit_codes.OK
    assert terminal.getvalue() == f"a\n\\x1b[31m{SHOWN}\n"


def test_messages_that_are_looked_at(server: FakeServer, capsys: Capture) -> None:
    part = {"partition": 0, "earliest": 0, "latest": 4, "folder": ""}
    server.answers["/offsets"] = (200, {**THERE, "partitions": [part]})
    bodies = ["[bold]plain", "\u202ereversed", "\x9b2J"]
    messages = [
        {"partition": 0, "offset": n, "timestamp": 0, "body": body} for n, body in enumerate(bodies)
    ]
    answer = {"messages": messages, "next_offset": 4, "latest": 4}
    server.answers["/peek"] = (200, answer)
    said = printed(capsys, "topic", "peek", "t", "--offset", "0")
    assert said.splitlines()[0] == "[bold]plain"
    assert [line[:7] for line in said.splitlines()[1:]] == ["base64 ", "base64 "]
    assert "[bold]plain" in printed(capsys, "topic", "peek", "t", "--offset", "0", "-c", "c")


def test_messages_that_a_terminal_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    output.write_bodies([f"a\t{EVIL}\nb".encode(), b"\xff"])
    assert terminal.getvalue() == f"a\t{SHOWN}\nb\n\\xff\n"
    with pytest.raises(InvalidRequest, match="redirect the output"):
        output.byte_output()


def test_bars_of_progress_show_text_and_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    real = rich.console.Console

    def console(**_: object) -> rich.console.Console:
        return real(file=shown, force_terminal=True, width=200, color_system=None)

    monkeypatch.setattr("rich.console.Console", console)
    for with_rest in (False, True):
        with output.progress_bars(with_rest=with_rest) as bars:
            bar = bars.add(EVIL, 2)
            bars.advance(bar)
            bars.update(bar, 2, 3, text=f"now {LINES}")
    said = shown.getvalue()
    assert SHOWN in said
    assert f"now {SHOWN}\\nforged" in said
    for hidden in ("\x1b[31m", "\x1b]0", "\u202e", "\x9b", "\x00"):
        assert hidden not in said


# Nothing else writes to the standard streams.

OUTPUT_LAYER = {"services/cli/output.py", "services/cli/tables.py"}
# The demo escapes what it prints itself; it and these print no data of others.
OTHERS = {
    "services/demo/demo_run.py": {"self._console.print"},
    "services/demo/progress.py": {"self._console.print"},
    "services/roles/__main__.py": {"sys.stderr.write"},
    # A program of its own, which runs before the JVM and has only the standard library.
    "services/host/query_jail.py": {"print"},
    # A process of its own, whose standard output the router reads.
    "services/sampler_process.py": {"sys.stdout.buffer.write"},
}
WRITES = re.compile(
    r"print|(typer|click)\.s?echo|.*console\.(print|log|out)|traceback\.print_\w+|"
    r"(sys\.)?(stdout|stderr)(\.buffer)?\.write(lines)?|(rich\.)?Console|logging\.(Formatter|basicConfig)"
)
# A word of each call that matches: a module without them need not be parsed.
WORDS_OF_WRITES = re.compile(
    r"\b(print(_\w+)?|s?echo|stdout|stderr|Formatter|basicConfig)\b|console\.|\bConsole\b"
)
ALLOWED_CONSOLES = {"services/demo/demo_run.py": {"Console"}}
LOGS = {"core/log_format.py", "services/host/up.py"}


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def test_nothing_else_writes_to_the_standard_streams() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name in OUTPUT_LAYER | LOGS or name.startswith("testing/"):
            continue
        text = path.read_text()
        if not WORDS_OF_WRITES.search(text):
            continue
        allowed = OTHERS.get(name, set()) | ALLOWED_CONSOLES.get(name, set())
        found += [
            f"{name}:{line}: {call}"
            for line, call in calls(ast.parse(text))
            if WRITES.fullmatch(call) and call not in allowed
        ]
    assert not found, "print through services/cli/output.py, and log through core/log_format.py"


def test_nothing_else_shows_bars_or_reads_markup() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        text = path.read_text()
        if name not in OUTPUT_LAYER and re.search(
            r"from rich(\.progress)? import.*Progress\b", text
        ):
            found.append(name)
        if re.search(r"from_markup|markup=True|rich_markup_mode=\"", text):
            found.append(name)
    assert not found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sql", "--format", "xml", "SELECT 1"], "'--format': 'xml' is not one of 'table'"),
        (["pub", "--topic", "t", "--batch", "0"], "'--batch': it must be greater than or equal"),
    ],
)
def test_an_invalid_value_is_explained_without_words_of_pydantic(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == exit_codes.USAGE
    shown = capsys.readouterr().err
    assert message in shown
    assert "Value error" not in shown


@pytest.mark.parametrize("read", [output.read_text, FlowDocument.read])
def test_a_named_pipe_or_device_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    """A pipe without a writer stopped the command without end."""
    os.mkfifo(tmp_path / "pipe")
    with monkeypatch.context() as patched:
        for name in ("read_text", "read_bytes"):
            patched.setattr(Path, name, lambda *_, **__: pytest.fail("the file is read"))
        for file in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(InvalidRequest, match="is not a regular file: name one, or write -"):
                read(file)
    reading, writing = os.pipe()  # as the shell opens one for <(command)
    os.write(writing, b"text")
    os.close(writing)
    try:
        assert "text" in str(read(Path(f"/dev/fd/{reading}")))
    finally:
        os.close(reading)


def test_segment_files_of_an_earlier_revision(server: FakeServer, capsys: Capture) -> None:
    path = "/penstock/v1/datasources/x/files"
    cut = {"path": "/a", "rows": 5, "size": 9, "clip": "2024/2025", "announced": False}
    running = {"path": "/b", "rows": 1, "size": 2, "clip": None, "announced": True}
    server.answers[path] = (200, {"revision": 7, "files": [cut, running]})
    assert run(["segment", "files", "x", "--at", "7"]) == exit_codes.OK
    assert server.asked[-1][2] == {"revision": ["7"]}
    out = capsys.readouterr().out
    assert "2024/2025" in out
    assert "/b" not in out
    assert out.endswith("revision 7\n")
    assert run(["segment", "files", "x", "--running", "--json"]) == exit_codes.OK
    assert server.asked[-1][2] == {}
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert run(["segment", "files", "x", "--running", "--at", "7"]) == exit_codes.USAGE
    server.answers[path] = (200, {"revision": 7, "files": []})
    assert run(["segment", "files", "x", "--at", "7"]) == exit_codes.OK
    assert "nothing was visible at revision 7" in capsys.readouterr().out
