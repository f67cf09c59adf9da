"""Bombs of full size as a suite of `make soak`: a case is one file, read in one of the ways.

make soak ARGS="bombs --total 14"
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tests.kits import bombs_kit as bombs


class Case(NamedTuple):
    """A file, how it is read, and what the result must contain: rows, bad ones, an error."""

    how: str
    kind: str
    name: str
    make: bombs.Make
    memory_mb: int
    rows: int = 0
    bad: int = 0
    error: str = ""


_MIB: Final = 1 << 20
_FOUR_GIB: Final = 4_096
_KEYS: Final = partial(bombs.json_many_keys, keys=1_000_000)
_COLUMNS: Final = partial(bombs.csv_many_columns, columns=1_000_000)
_QUOTE: Final = partial(bombs.csv_open_quote, mib=200)
_DICTIONARY: Final = partial(bombs.parquet_dictionary, rows=_FOUR_GIB, unit=_MIB)
_STRIPE: Final = partial(bombs.orc_repeated_values, rows=_FOUR_GIB, unit=_MIB)
_PREFIXES: Final = partial(bombs.parquet_prefixes, unit=_MIB)
_VALUES: Final = partial(bombs.parquet_huge_values, unit=_MIB)
_PAGE: Final = partial(bombs.parquet_large_page, unit=_MIB)
_LONG: Final = "record 2 of the CSV, or one of the next, is longer than"
CASES: Final = (
    # It has more keys than a row may have: one for the time.
    Case("batch", "json", "keys.json", _KEYS, 250, bad=1),
    Case("look", "json", "keys.json", _KEYS, 250),
    Case("flow", "json-lines", "keys.json", _KEYS, 250, error="has 1,000,001 fields, more than"),
    Case("batch", "delimited", "a.csv", _COLUMNS, 500, error="a.csv:1: the header names"),
    Case("flow", "csv", "a.csv", _COLUMNS, 250, error="record 1 of the CSV"),
    Case("batch", "delimited", "a.csv", _QUOTE, 250, rows=11_650_801, bad=1),
    Case("flow", "csv", "a.csv", _QUOTE, 250, error=_LONG),
    Case("batch", "parquet", "a.parquet", _DICTIONARY, 500, rows=_FOUR_GIB),
    Case("flow", "parquet", "a.parquet", _DICTIONARY, 500, rows=_FOUR_GIB),
    Case("batch", "orc", "a.orc", _STRIPE, 500, rows=_FOUR_GIB),
    Case("batch", "parquet", "a.parquet", _PREFIXES, 500, rows=bombs.PREFIX_ROWS),
    Case("flow", "parquet", "a.parquet", _PREFIXES, 600, rows=bombs.PREFIX_ROWS),
    Case("flow", "parquet", "a.parquet", _VALUES, 600, error="values of column 'name'"),
    Case("flow", "parquet", "a.parquet", _PAGE, 600, error="takes 1,101,"),
)


def _run(child: bombs.Child, seeds: range) -> tuple[list[str], dict[str, int]]:
    failures: list[str] = []
    for seed in seeds:
        case = CASES[seed % len(CASES)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / case.name
            case.make(path)
            found = child.read(case.how, case.kind, path, memory_mb=case.memory_mb)
        is_error = case.error in found.error if case.error else not found.error
        if not is_error or (found.rows, found.bad) != (case.rows, case.bad):
            failures.append(f"seed {seed}: {case.how} {case.kind} {case.name}: {found}")
    return failures, {"files": len(seeds)}


@contextmanager
def suite() -> Iterator[Callable[[range], tuple[list[str], dict[str, int]]]]:
    """Give what reads files."""
    with bombs.Child() as child:
        yield partial(_run, child)
