"""Guesses about an input from its first rows: its format, and where its time is. Pure.

Each guess is only a proposal for the parts of a spec that a person then sees, beside the rows that
follow from it. So it may be wrong, but must never fail: a part that cannot be guessed is left open.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.input_formats import (
    AvroFormat,
    CsvFormat,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    TsvFormat,
)
from penstock.spark.batch.input.open_files import codec_of_head
from penstock.spark.batch.input.schema_casts import conformed
from penstock.spark.batch.input.text_lines import BOM
from penstock.spark.topic.row_shape import RowShape, TimeField, time_format

if TYPE_CHECKING:
    from penstock.indexing.specs.input_formats import InputFormat

GUESS_BYTES: Final = 64 << 10
"""Bytes of a file's beginning that its format is guessed from."""
_LINES: Final = 100
_SEPARATORS: Final = (",", "\t", ";", "|")
_COLUMNS_MAX: Final = 10_000

# Magic numbers: of Parquet, ORC and Avro; of old Office files, PDF, and marks of UTF-16.
_BINARY: Final[dict[bytes, InputFormat]] = {
    b"PAR1": ParquetFormat(),
    b"ORC": OrcFormat(),
    b"Obj\x01": AvroFormat(),
}
_REFUSED: Final = {
    b"\xd0\xcf\x11\xe0": "is an Office file: save the sheet as CSV",
    b"%PDF": "is a PDF: it has no rows",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}

VALUES_TRIED: Final = 200
"""Number of values of a column that a format of times is tried on."""
_GOOD_SHARE: Final = 0.6
_PATTERNS: Final = (
    *("dd.MM.yyyy", "dd.MM.yyyy HH:mm", "dd.MM.yyyy HH:mm:ss"),
    *("dd/MM/yyyy", "dd/MM/yyyy HH:mm", "dd/MM/yyyy HH:mm:ss"),
    *("MM/dd/yyyy", "MM/dd/yyyy HH:mm", "MM/dd/yyyy HH:mm:ss"),
    *("yyyy/MM/dd", "yyyy/MM/dd HH:mm", "yyyy/MM/dd HH:mm:ss"),
    *("yyyyMMdd", "yyyyMMddHHmmss", "yyyyMMdd HH:mm:ss"),
    *("d MMM yyyy", "MMM d, yyyy", "dd/MMM/yyyy:HH:mm:ss Z", "EEE, dd MMM yyyy HH:mm:ss Z"),
)
# Digits of the values, and a unit that puts them between 1985 and 2128.
_UNITS: Final = (
    ("posix", 480_000_000, 5_000_000_000),
    ("millis", 480_000_000_000, 5_000_000_000_000),
    ("micro", 480_000_000_000_000, 5_000_000_000_000_000),
    ("nano", 480_000_000_000_000_000, 5_000_000_000_000_000_000),
)
_NAMED: Final = re.compile(r"^(__time|time|timestamp|ts|datetime|date_?time|date|day|@timestamp)$")
_HINTS: Final = re.compile(r"time|date|stamp|(^|_)(ts|at|day|created|updated|when)($|_)")


@dataclass(frozen=True, slots=True)
class TimeGuess:
    """A column that may have the time.

    Attributes:
        column: The column.
        format: The format, as in a `timestampSpec`.
        share: Share of the tried values that have this format.
        also: Another format that fits as well; empty: there is none.
    """

    column: str
    format: str
    share: float
    also: str = ""


def guessed_format(head: bytes, name: str) -> InputFormat:
    """Return the format of a file.

    Args:
        head: Its first bytes, unpacked.
        name: Its name, for messages.

    Raises:
        InvalidRequest: It is known to be something else than rows in a supported format.
    """
    codec_of_head(head, name)
    for magic, format_ in _BINARY.items():
        if head.startswith(magic):
            return format_
    for magic, reason in _REFUSED.items():
        if head.startswith(magic):
            raise InvalidRequest(f"{name} {reason}")
    text = head.removeprefix(BOM)
    if b"\0" in text:
        raise InvalidRequest(
            f"{name} is neither text nor Parquet, ORC or Avro: choose another file, or export it as"
            " CSV"
        )
    if text.lstrip()[:1] in {b"{", b"["}:
        return JsonFormat()
    return _delimited(_whole_lines(text))


def _whole_lines(text: bytes) -> list[str]:
    lines = text.splitlines()
    if len(lines) > 1 and len(text) >= GUESS_BYTES:
        lines.pop()  # The end of the bytes may be within it.
    return [line.decode(errors="replace") for line in lines[:_LINES] if line.strip()]


def _delimited(lines: Sequence[str]) -> CsvFormat | TsvFormat:
    separator, rows = ",", _rows(lines, ",")
    best = 0.0
    for candidate in _SEPARATORS:
        found = _rows(lines, candidate)
        score = _evenness(found)
        if score > best:
            best, separator, rows = score, candidate, found
    header: dict[str, object] = {"find_columns_from_header": True}
    if not rows or not _is_header(rows):
        width = max(map(len, rows), default=1)
        header = {"columns": tuple(f"column_{n + 1}" for n in range(min(width, _COLUMNS_MAX)))}
    elif len(set(rows[0])) < len(rows[0]) or not all(rows[0]):
        header = {"columns": _names(rows[0]), "skip_header_rows": 1}
    if separator == ",":
        return CsvFormat.model_validate(header)
    delimiter = {} if separator == "\t" else {"delimiter": separator}
    return TsvFormat.model_validate(header | delimiter)


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    found = []
    for line in lines:
        try:
            found.append(next(csv.reader([line], delimiter=separator)))
        except (csv.Error, StopIteration):
            continue  # not a line of this format
    return found


def _evenness(rows: Sequence[Sequence[str]]) -> float:
    """Return how well a separator fits: the share of rows with the usual number of columns.

    Among separators that fit equally well, the one that makes more columns is better.
    """
    if not rows:
        return 0.0
    [(width, count)] = Counter(map(len, rows)).most_common(1)
    return 0.0 if width < 2 else count / len(rows) + min(width, 1_000) / 1_000_000


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has names: no value that looks like data, unlike later rows."""
    first = rows[0]
    if any(_is_data(value) for value in first) or not any(first):
        return False
    if len(rows) == 1 or any(_is_data(value) for row in rows[1:] for value in row):
        return True
    # Of text alone, a value that comes again is data.
    return not any(row[:1] == first[:1] and first[:1] != [""] for row in rows[1:])


def _is_data(value: str) -> bool:
    text = value.strip()
    if re.match(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", text):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return text[-1:].isdigit()


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns, each once and none empty."""
    found: dict[str, None] = {}
    for number, name in enumerate(given, 1):
        unique = name or f"column_{number}"
        while unique in found:
            unique = f"{unique}_{number}"
        found[unique] = None
    return tuple(found)


def guessed_times(rows: pa.RecordBatch) -> list[TimeGuess]:
    """Return the columns that may have the time, the best guess first.

    Args:
        rows: Rows with the types of their values; times are text or numbers.
    """
    found: list[tuple[float, int, TimeGuess]] = []
    for index, name in enumerate(rows.schema.names[:_COLUMNS_MAX]):
        values = rows.column(index).drop_null().slice(0, VALUES_TRIED)
        guess = _time_of(name, values) if len(values) else None
        if guess is not None:
            found.append((-_score(guess), index, guess))
    return [guess for _, _, guess in sorted(found, key=lambda one: one[:2])]


def _score(guess: TimeGuess) -> float:
    name = guess.column.lower()
    hint = 2 if _NAMED.match(name) else 1 if _HINTS.search(name) else 0
    return hint + guess.share


def _time_of(name: str, values: pa.Array) -> TimeGuess | None:
    is_named = _HINTS.search(name.lower()) is not None
    if values.type == pa.int64():
        return _number_time(name, values, is_named=is_named)
    if values.type != pa.string():
        return None
    texts = values.to_pylist()
    plausible = sum(any(c.isdigit() for c in text[:40]) for text in texts)
    if plausible < _GOOD_SHARE * len(texts):
        return None
    if all(text.isdigit() for text in texts):
        # Text of digits may be an id with leading zeros: only a name makes it a time.
        return _best(name, values, ("yyyyMMdd", "yyyyMMddHHmmss")) if is_named else None
    return _best(name, values, ("iso", *_PATTERNS))


def _number_time(name: str, values: pa.Array, *, is_named: bool) -> TimeGuess | None:
    numbers = values.to_pylist()
    for unit, least, most in _UNITS:
        share = sum(least <= one < most for one in numbers) / len(numbers)
        # A number of ten digits may be anything.
        if share >= _GOOD_SHARE and (is_named or unit != "posix"):
            return TimeGuess(name, unit, share)
    return _best(name, values, ("yyyyMMdd",)) if is_named else None


def _best(name: str, values: pa.Array, formats: Sequence[str]) -> TimeGuess | None:
    found: list[TimeGuess] = []
    column = pa.RecordBatch.from_arrays([values], names=[name])
    for format_ in formats:
        shape = RowShape((), TimeField(name, time_format(format_)))
        _, bad = conformed(column, shape)
        share = 1 - len(bad) / len(values)
        if share >= _GOOD_SHARE:
            found.append(TimeGuess(name, format_, share))
        if share == 1 and format_ == "iso":
            break
    if not found:
        return None
    best = max(found, key=lambda one: one.share)
    equal = [one.format for one in found if one.share == best.share and one != best]
    return TimeGuess(name, best.format, best.share, equal[0] if equal else "")
