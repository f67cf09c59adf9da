"""Tables on a terminal: what fits, what is cut, and what becomes lines instead."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from penstock.services.cli import output
from penstock.services.cli.entry import run
from penstock.services.cli.tables import as_lines, fitted, print_table

ID = "index_parallel_flights_2013-01-01T00:00:00.000Z_abcdefgh"


def test_what_fits_stays_as_it_is() -> None:
    assert fitted(["task", "rows"], [[ID, "1"]], 80) == [[ID, "1"]]
    assert fitted(["none"], [], 80) == []


def test_a_column_that_may_be_cut_gives_way_to_an_id() -> None:
    rows = [[ID, "a comment\nthat is much too long by far"]]
    (row,) = fitted(["task", "comment"], rows, 80, ("comment",)) or []
    assert row == [ID, "a comment that is mu…"]


def test_an_id_is_never_cut() -> None:
    assert fitted(["task", "group"], [[ID, ID]], 80, ("comment",)) is None
    assert fitted(["task", "comment"], [[ID, "x" * 50]], 60, ("comment",)) is None


def test_rows_that_are_too_wide_become_lines(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[ID, ID], ["b", "two\nlines"]]
    assert as_lines(["task", "group id"], rows) == [
        f"task      {ID}",
        f"group id  {ID}",
        "",
        "task      b",
        "group id  two",
        "          lines",
    ]
    print_table(["task", "group id"], rows, [False, False], width=80)
    assert capsys.readouterr().out.splitlines()[0] == f"task      {ID}"


@given(
    st.lists(
        st.tuples(st.text("ab 字é", max_size=60), st.text("xyz", max_size=40)),
        min_size=1,
        max_size=4,
    ),
    st.integers(20, 100),
)
def test_a_fitting_table_is_no_wider_than_the_terminal(
    rows: list[tuple[str, str]], width: int
) -> None:
    shown = fitted(["text", "id"], rows, width, ("text",))
    if shown is None:
        return
    assert [row[1] for row in shown] == [row[1] for row in rows]
    texts = max(4, *(cell_len(row[0]) for row in shown))
    assert texts + 3 + max(2, *(cell_len(row[1]) for row in shown)) <= width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_of_80_columns_folds_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    rows = [{"task": ID, "datasource": "flights", "status": "RUNNING", "created": "2013-01-01"}]
    output.print_rows(rows, as_json=False)
    said = terminal.getvalue()
    assert ID in said
    assert "datasource  flights" in said
    assert run(["processor", "list"]) == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(cell_len, plain.splitlines())) <= 80


def by_rich(names: list[str], rows: list[tuple[str, ...]], numeric: list[bool]) -> str:
    """The table as Rich lays it out, a cell at a time."""
    said = io.StringIO()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    rich.console.Console(file=said, width=10_000).print(table)
    return said.getvalue()


@given(
    st.lists(
        st.tuples(st.text("ab 字é\n", max_size=20), st.text("12.\n", max_size=5), st.text("x")),
        max_size=5,
    )
)
def test_a_table_looks_as_that_of_rich(rows: list[tuple[str, str, str]]) -> None:
    names, numeric = ["text", "number 字", "é"], [False, True, False]
    with redirect_stdout(io.StringIO()) as said:
        print_table(names, rows, numeric, width=None)
    assert [line.rstrip() for line in said.getvalue().splitlines()] == [
        line.rstrip() for line in by_rich(names, rows, numeric).splitlines()
    ]


@pytest.mark.parametrize("width", [None, 200, 5])
def test_rows_are_printed_without_rich(monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
    """It takes a millisecond for each row, so that 200,000 of them took minutes."""
    printed: list[object] = []
    monkeypatch.setattr(rich.console.Console, "print", lambda *given, **_: printed.append(given))
    with redirect_stdout(io.StringIO()) as said:
        print_table(
            ["n", "text"], [[str(n), "x"] for n in range(5_000)], [True, False], width=width
        )
    assert len(said.getvalue().splitlines()) >= 5_000
    assert len(printed) <= 1


def test_a_row_is_as_wide_as_it_is_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["x" * 20_000, "y"]], [False, False], width=None)
    assert capsys.readouterr().out.splitlines()[-1] == "x" * 20_000 + "   y"


@pytest.mark.parametrize(
    ("encoding", "name", "rule"),
    [("ascii", "\\u00fc", "-"), ("latin-1", "ü", "-"), ("utf-8", "ü", "─")],
)
def test_a_table_in_another_encoding_has_escapes(encoding: str, name: str, rule: str) -> None:
    script = (
        "from penstock.services.cli.output import prepare_streams\n"
        "from penstock.services.cli.tables import print_table\n"
        "prepare_streams()\n"
        "print_table(['ü'], [['\U0001f600 ü']], [False], width=80)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    smiley = "\U0001f600" if encoding == "utf-8" else "\\ud83d\\ude00"
    lines = [line.rstrip() for line in done.stdout.decode(encoding).splitlines()]
    assert lines == [name, rule * 4, f"{smiley} {name}"]
