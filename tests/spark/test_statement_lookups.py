"""The versions of lookups that a statement reads, and the text of its maps. Without Spark."""

from __future__ import annotations

import json
import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.sql.lookup_calls import LookupRead
from penstock.spark.sql.lookup_tables import LookupSource, StatementLookups
from penstock.storage.lookup_rows import LookupTable

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


class Source:
    """A lookup that has another version at each look."""

    def __init__(self, entries: dict[str, str | None]) -> None:
        self.entries = entries
        self.looks: list[str] = []

    def names(self) -> list[str]:
        return ["A"]

    def current(self, name: str) -> LookupTable:
        self.looks.append(name)
        columns = [list(self.entries), pa.array(self.entries.values(), pa.string())]
        rows = pa.table([pa.array(columns[0], pa.string()), columns[1]], names=["k", "v"])
        return LookupTable("A", len(self.looks), rows)

    def described(self) -> object:
        raise NotImplementedError


def of(source: Source, *reads: LookupRead) -> StatementLookups:
    typed: LookupSource = source  # type: ignore[assignment]  # as much of it as is used
    return StatementLookups.of(reads, typed)


def test_a_statement_chooses_each_version_once() -> None:
    source = Source({"a": "A"})
    reads = (LookupRead("a"), LookupRead("a", is_map=True), LookupRead("a", "v", is_map=True))
    found = of(source, *reads)
    assert source.looks == ["a"]
    assert found.tables["a"].version == 1
    assert found.empty_tables().keys() == {"lookup/a", "lookup/a/map/", "lookup/a/map/v"}
    assert found.maps().keys() == {"lookup/a/map/", "lookup/a/map/v"}
    assert all("'{}'" in sql for sql in found.maps(is_shown=True).values())


@given(st.dictionaries(KEYS | st.just("${spark.app.name}'\\"), st.none() | KEYS, max_size=5))
def test_no_entry_of_a_map_ends_the_text_or_is_a_variable(entries: dict[str, str | None]) -> None:
    (sql,) = of(Source(entries), LookupRead("a", is_map=True)).maps().values()
    found = re.fullmatch(r"SELECT from_json\('(.*)', 'MAP<STRING, string>'\) AS `map`", sql)
    assert found is not None
    text = found[1]
    # As Spark's lexer reads a text: it ends at a quote, and a backslash keeps what follows.
    assert re.fullmatch(r"(?:[^'\\]|\\\\)*", text) is not None
    assert "$" not in text
    assert "?" not in text
    assert "\n" not in text
    assert json.loads(text.replace("\\\\", "\\")) == entries
