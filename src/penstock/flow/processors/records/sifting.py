"""Separates records that fit a schema from those that do not, with the reason for each of these.

Owns the search: a whole batch is checked at once. Only a batch that does not fit is halved,
repeatedly, until the invalid records are found, so that a few invalid records among many cost
little. Does not own the check (`formats`).

Invariants: every record is either good or bad; both kinds keep the order of the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import orjson
import pyarrow as pa

from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.json_lines import line_parser
from penstock.flow.processors.records.formats.protocols import BadRecords

_CHANGED: Final = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+)")
_PREFIX: Final = re.compile(r"^the content is not valid JSON records: (?:JSON parse error: )?")
_ROW: Final = re.compile(r" in row \d+$")


class Unit(Protocol):
    """Several records that are checked together."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...


U = TypeVar("U", bound=Unit)


@dataclass(frozen=True, slots=True)
class Good(Generic[U]):
    """Records that fit: as they came, and with the types of the schema."""

    unit: U
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Bad(Generic[U]):
    """Record that does not fit: as it came, its index in the unit, and the reason."""

    unit: U
    index: int
    reason: str


class Judge(Protocol[U]):
    """Checks whether records fit."""

    def fit(self, unit: U) -> pa.RecordBatch:
        """Return the records with the types of the schema.

        Raises:
            BadRecords: One does not fit.
        """
        ...

    def part(self, unit: U, start: int, end: int) -> U:
        """Return a slice of the records."""
        ...

    def reason(self, unit: U, error: BadRecords) -> str:
        """Return why a single record does not fit."""
        ...


def sift(unit: U, judge: Judge[U], start: int = 0) -> Iterator[Good[U] | Bad[U]]:
    """Yield all records of a unit, checked, in order."""
    try:
        batch = judge.fit(unit)
    except BadRecords as error:
        count = len(unit)
        if count == 1:
            yield Bad(unit, start, judge.reason(unit, error))
            return
        middle = count // 2
        yield from sift(judge.part(unit, 0, middle), judge, start)
        yield from sift(judge.part(unit, middle, count), judge, start + middle)
        return
    yield Good(unit, batch)


class LineJudge:
    """Checks lines of JSON.

    Args:
        schema: Expected schema.
        refuse_others: Whether other fields are an error.

    Raises:
        BadRecords: JSON does not support a type.
    """

    def __init__(self, schema: pa.Schema, *, refuse_others: bool) -> None:
        self._names = frozenset(schema.names)
        self._refuse_others = refuse_others
        self._parse: Callable[[bytes], pa.RecordBatch] = line_parser(
            schema, refuse_others=refuse_others
        )

    def fit(self, unit: Sequence[bytes]) -> pa.RecordBatch:
        """Return lines with the types of the schema.

        Raises:
            BadRecords: One does not fit.
        """
        batch = self._parse(b"\n".join(unit))
        if batch.num_rows != len(unit):
            raise BadRecords("a line must contain exactly one record")
        return batch

    def part(self, unit: Sequence[bytes], start: int, end: int) -> Sequence[bytes]:
        """Return a slice of the lines."""
        return unit[start:end]

    def reason(self, unit: Sequence[bytes], error: BadRecords) -> str:
        """Return why a line does not fit."""
        text = _ROW.sub("", _PREFIX.sub("", str(error)))
        changed = _CHANGED.search(text)
        if changed is not None:
            place = changed[1].replace("/", ".")
            where = f"field {place!r}" if place else "the record"
            return f"{where} is {_a(changed[3])}, but must be {_a(changed[2])}"
        if "unexpected field" in text and self._refuse_others:
            return self._others(unit[0]) or text
        return text

    def _others(self, line: bytes) -> str:
        try:
            record: object = orjson.loads(line)
        except orjson.JSONDecodeError:
            return ""
        others = sorted(record.keys() - self._names) if isinstance(record, dict) else []
        if not others:
            return "a nested object has a field that the schema does not name"
        return f"field {others[0]!r} is not in the schema"


class BatchJudge:
    """Checks batches of columns.

    Args:
        schema: Expected schema.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def fit(self, unit: pa.RecordBatch) -> pa.RecordBatch:
        """Return records with the types of the schema.

        Raises:
            BadRecords: One does not fit.
        """
        return fitted(unit, self._schema)

    def part(self, unit: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
        """Return a slice of the records."""
        return unit.slice(start, end - start)

    def reason(self, unit: pa.RecordBatch, error: BadRecords) -> str:  # noqa: ARG002  # as of lines
        """Return why a record does not fit."""
        return str(error)


def _a(noun: str) -> str:
    if noun in {"null", "boolean"}:
        return noun
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
