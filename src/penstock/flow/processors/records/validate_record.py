"""ValidateRecord: a processor that separates records that match a schema from others.

Owns the two outputs and the search for invalid records (`separate`): a batch is validated as a
whole, and an invalid batch is halved repeatedly until the invalid records are found, so a few
invalid records among many cost little. `LineValidator` validates lines of JSON, `BatchValidator`
columnar batches. The matching rules belong to `formats`.

Invariants: every record is either valid or invalid, with the reason; the order within each
output is that of the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import orjson
import pyarrow as pa

from penstock.core.errors import counted
from penstock.flow.processor import (
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.failure import ERROR_REASON, REASON_MAX_CHARS, WRITES_REASON, fail
from penstock.flow.processors.records.base import RecordProcessor, record_attributes, source_of
from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.csv_text import csv_names, csv_texts
from penstock.flow.processors.records.formats.format_protocols import (
    BadRecords,
    RecordOutput,
    RecordWriter,
)
from penstock.flow.processors.records.formats.json_array import list_chunks
from penstock.flow.processors.records.formats.json_lines import (
    bounded,
    chunks,
    line_parser,
    pieces,
)
from penstock.flow.processors.records.formats.record_formats import RecordFormat

_CHANGED: Final = re.compile(r"Column\(/?(.*)\) changed from (\w+) to (\w+)")
_PREFIX: Final = re.compile(r"^the content is not valid JSON records: (?:JSON parse error: )?")
_ROW: Final = re.compile(r" in row \d+$")


class RecordGroup(Protocol):
    """Several records that are checked together."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...


U = TypeVar("U", bound=RecordGroup)


@dataclass(frozen=True, slots=True)
class ValidRecords(Generic[U]):
    """Records that fit: unchanged, and with the types of the schema."""

    unit: U
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class InvalidRecord(Generic[U]):
    """Record that does not fit: unchanged, its index in the unit, and the reason."""

    unit: U
    index: int
    reason: str


class Validator(Protocol[U]):
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


def separate(
    unit: U, validator: Validator[U], start: int = 0
) -> Iterator[ValidRecords[U] | InvalidRecord[U]]:
    """Yield all records of a unit, checked, in order."""
    try:
        batch = validator.fit(unit)
    except BadRecords as error:
        count = len(unit)
        if count == 1:
            yield InvalidRecord(unit, start, validator.reason(unit, error))
            return
        middle = count // 2
        yield from separate(validator.part(unit, 0, middle), validator, start)
        yield from separate(validator.part(unit, middle, count), validator, start + middle)
        return
    yield ValidRecords(unit, batch)


class LineValidator:
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


class BatchValidator:
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


_REASONS_MAX: Final = 5
_Lines: TypeAlias = Sequence[bytes]


class ValidateRecord(RecordProcessor):
    """Separates records that fit a schema from those that do not.

    In JSON, text is not accepted as a number. In CSV and in typed formats, a value fits if it can
    be converted without loss. If all records of a FlowFile fit, it goes to `valid` as a whole.
    Otherwise the invalid records go to `invalid`, unchanged, and the valid ones to `valid`. Invalid
    records of a JSON list are written as JSON lines. JSON lines that stay JSON lines are unchanged,
    byte for byte.
    """

    input = InputRequirement.REQUIRED
    tags = ("records", "validate", "schema", "quality")
    supports_batching = True
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "MIME type of the content.",
        "record.count": "Number of records of the FlowFile.",
        **WRITES_REASON,
        ERROR_REASON: "Number of invalid records, and reasons for the first ones; or the reason "
        "of the failure.",
    }

    output_format = Property(
        RecordFormat, about="Format of valid records; by default, the format of the input."
    )
    refuse_others = Property(
        bool, default=False, about="Whether a field that is missing in the schema is an error."
    )

    valid = Relationship("Records that fit the schema.")
    invalid = Relationship("Records that do not fit the schema.")
    failure = Relationship("The content does not have the format, so records cannot be separated.")

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if self.schema is None:
            yield Problem("schema", "is required: give one such as `id long not null, name string`")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Validate one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        good, bad = session.create(flowfile), session.create(flowfile)
        try:
            with session.write(good) as good_out, session.write(bad) as bad_out:
                result = self._sifted(session, flowfile, good_out, bad_out)
        except ProcessError as error:
            session.remove([good, bad])
            fail(context, session, flowfile, self.failure, error)
            return
        session.remove(flowfile)
        if result.good or not result.bad:
            target = self.output_format or self.input_format
            session.put_attributes(good, record_attributes(target, result.good))
            session.transfer(good, self.valid)
        else:
            session.remove(good)
        if result.bad:
            target = self.input_format
            target = RecordFormat.JSON_LINES if target is RecordFormat.JSON else target
            reasons = {**record_attributes(target, result.bad), ERROR_REASON: result.text()}
            session.put_attributes(bad, reasons)
            session.transfer(bad, self.invalid)
        else:
            session.remove(bad)
        session.counters.add("valid records", result.good)
        session.counters.add("invalid records", result.bad)

    def _sifted(
        self, session: ProcessSession, flowfile: FlowFile, good: RecordOutput, bad: RecordOutput
    ) -> _Result:
        if self.input_format in {RecordFormat.JSON_LINES, RecordFormat.JSON}:
            return self._lines(session, flowfile, good, bad)
        if self.input_format is RecordFormat.CSV:
            return self._csv(session, flowfile, good, bad)
        return self._columns(session, flowfile, good, bad)

    def _lines(
        self, session: ProcessSession, flowfile: FlowFile, good: RecordOutput, bad: RecordOutput
    ) -> _Result:
        validator = LineValidator(self._wanted(), refuse_others=self.refuse_others)
        target = self.output_format or self.input_format
        as_they_came = self.input_format is target is RecordFormat.JSON_LINES
        writer = None if as_they_came else self.writer(target, good, self._wanted())
        source = source_of(session, flowfile)
        found = (
            list_chunks(source, self.max_record)
            if self.input_format is RecordFormat.JSON
            else chunks(pieces(source.open), self.max_record)
        )
        result = _Result()
        for chunk in bounded(found, self._wanted()):
            lines: _Lines = [line for line in chunk.split(b"\n") if line and not line.isspace()]
            for part in separate(lines, validator) if lines else ():
                if isinstance(part, InvalidRecord):
                    result.count_bad(part.index, part.reason)
                    bad.write(part.unit[0].strip() + b"\n")
                elif writer is None:
                    good.write(b"\n".join(part.unit) + b"\n")
                else:
                    writer.write(part.batch)
            result.next(len(lines))
        if writer is not None:
            writer.close()
        return result

    def _csv(
        self, session: ProcessSession, flowfile: FlowFile, good: RecordOutput, bad: RecordOutput
    ) -> _Result:
        source, options = source_of(session, flowfile), self.reading_options()
        names = csv_names(source, options)
        self._check_others(names)
        odd: list[str] = []
        result = _Result()

        def on_odd_row(row: object) -> str:
            text = getattr(row, "text", "")
            fields = getattr(row, "actual_columns", 0)
            odd.append(text)
            result.count_odd(f"{fields} fields instead of {len(names)}: {text[:100]!r}")
            return "skip"

        batches = csv_texts(source, options, names, on_odd_row)
        schema = pa.schema([(name, pa.string()) for name in names])
        self._sift_batches(batches, schema, result, good, bad)
        if odd and result.bad == len(odd):
            self.writer(RecordFormat.CSV, bad, schema).close()  # writes the header
        for text in odd:
            bad.write(text.encode() + b"\n")
        return result

    def _columns(
        self, session: ProcessSession, flowfile: FlowFile, good: RecordOutput, bad: RecordOutput
    ) -> _Result:
        options = self.reading_options()
        found = self.records(session, flowfile, options.without_schema())
        self._check_others(found.schema.names)
        result = _Result()
        self._sift_batches(found.batches, found.schema, result, good, bad)
        return result

    def _sift_batches(
        self,
        batches: Iterator[pa.RecordBatch],
        schema: pa.Schema,
        result: _Result,
        good: RecordOutput,
        bad: RecordOutput,
    ) -> None:
        validator = BatchValidator(self._wanted())
        writer = self.writer(self.output_format or self.input_format, good, self._wanted())
        bad_writer: RecordWriter | None = None
        for batch in batches:
            for part in separate(batch, validator) if batch.num_rows else ():
                if isinstance(part, ValidRecords):
                    writer.write(part.batch)
                    continue
                result.count_bad(part.index, part.reason)
                if bad_writer is None:
                    bad_writer = self.writer(self.input_format, bad, schema)
                bad_writer.write(part.unit)
            result.next(batch.num_rows)
        writer.close()
        if bad_writer is not None:
            bad_writer.close()

    def _wanted(self) -> pa.Schema:
        if self.schema is None:
            raise AssertionError("check() requires a schema")
        return self.schema

    def _check_others(self, names: Sequence[str]) -> None:
        known = self._wanted().names
        others = [name for name in names if name not in known] if self.refuse_others else []
        if others:
            raise BadRecords(f"all records have a field {others[0]!r} that is not in the schema")


class _Result:
    """Counts and reasons, while content is processed."""

    def __init__(self) -> None:
        self.good = 0
        self.bad = 0
        self._seen = 0
        self._bad_here = 0
        self._reasons: list[str] = []

    def count_bad(self, index: int, reason: str) -> None:
        """Count an invalid record, by its index in the current unit."""
        self._bad_here += 1
        self.bad += 1
        if len(self._reasons) < _REASONS_MAX:
            self._reasons.append(f"record {self._seen + index + 1}: {reason}")

    def count_odd(self, reason: str) -> None:
        """Count an invalid record outside of the current unit."""
        self.bad += 1
        if len(self._reasons) < _REASONS_MAX:
            self._reasons.append(f"a record has {reason}")

    def next(self, count: int) -> None:
        """Continue after `count` records."""
        self.good += count - self._bad_here
        self._seen += count
        self._bad_here = 0

    def text(self) -> str:
        """Return the reasons as text."""
        more = "; …" if self.bad > len(self._reasons) else ""
        text = f"{counted(self.bad, 'invalid record')}: {'; '.join(self._reasons)}{more}"
        return text if len(text) <= REASON_MAX_CHARS else f"{text[: REASON_MAX_CHARS - 1]}…"
