"""Tables on a terminal: what fits, what is cut, and what becomes lines instead."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

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
