"""LookupAttribute and LookupRecord: processors that add values of a lookup, found by a key.

Owns the processors. Does not own the lookups (`storage.lookup_rows`).

A trigger uses one version. A newer one is noticed within `CHECKED_EVERY_S`; while the metadata does
not answer, the last one is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import Dependency, Unavailable
from penstock.core.printable import quoted
from penstock.flow.flowfile import UUID
from penstock.flow.processor import (
    STR,
    DynamicProperties,
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    PropertyValue,
    Relationship,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.records.base import RecordProcessor, record_attributes
from penstock.flow.processors.records.formats.record_formats import RecordFormat
from penstock.flow.processors.routing.named_relationships import BATCH_FLOWFILES
from penstock.flow.processors.service_lookups import SERVICE_LOOKUPS

if TYPE_CHECKING:
    from penstock.storage.lookup_rows import LookupTable

CHECKED_EVERY_S: Final = 1.0
_UNMATCHED: Final = "unmatched"
_NOTHING: Final = "nothing to do: add properties, each with a name and a column of the lookup"


class _Version:
    """A version of a lookup, and its rows by key, which are found at the first need."""

    def __init__(self, table: LookupTable) -> None:
        self.table = table

    @cached_property
    def row_numbers(self) -> Mapping[str, int]:
        """The number of the row of each key."""
        return {key: at for at, key in enumerate(self.table.rows.column(0).to_pylist())}

    def columns_of(self, wanted: Mapping[str, str]) -> Mapping[str, pa.ChunkedArray]:
        """Return columns by the names under which they are added.

        Raises:
            ProcessError: A column does not exist.
        """
        found = {}
        for name, column in wanted.items():
            if column not in self.table.rows.schema.names:
                raise ProcessError(
                    f"{name}: the lookup {self.table.name} has no column {quoted(column)}: its"
                    f" columns are {', '.join(self.table.values)}"
                )
            found[name] = self.table.rows.column(column)
        return found


class _UsedVersion:
    """The version that a processor uses. Threads replace it in one step."""

    def __init__(self) -> None:
        self._last: tuple[float, _Version] | None = None

    def of(self, name: str, context: ProcessContext) -> _Version:
        """Return the version for a trigger. Raises as `ServiceLookups.current`."""
        now_s = context.clock.monotonic_s()
        checked_s, version = self._last or (-math.inf, None)
        if version is not None and now_s < checked_s + CHECKED_EVERY_S:
            return version
        try:
            table = SERVICE_LOOKUPS.current(name)
        except Unavailable as error:
            if version is None or error.dependency is not Dependency.METADATA:
                raise
            return version
        if version is None or version.table is not table:
            version = _Version(table)
        self._last = now_s, version
        return version


class LookupAttribute(Processor):
    """Adds attributes from the row of a lookup that has a key.

    Each dynamic property sets the attribute with its name to the value of a column. A value that is
    null sets nothing. FlowFiles wait in the queue while the lookup does not exist.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("attributes", "lookup", "enrich", "join")
    reads_attributes: ClassVar[Mapping[str, str]] = {"of the key": "Attributes in `key`."}
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "of each property": "Value of the column.",
        **WRITES_REASON,
    }

    lookup_name = Property(STR, required=True, about="Name of the lookup.")
    key = ExpressionProperty(STR, about="The key, such as `${country}`.")
    columns = DynamicProperties(STR, about="Name of an attribute, and the column with its value.")

    matched = Relationship("The lookup has the key; the attributes are set.")
    unmatched = Relationship("The lookup does not have the key; the FlowFile is unchanged.")
    failure = Relationship("The key or a column is wrong; the FlowFile is unchanged.")

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._used = _UsedVersion()

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        if not self.columns:
            yield Problem("", _NOTHING)
        if UUID in self.columns:
            yield Problem(UUID, "never changes: use another name")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Change the attributes of a batch."""
        version = self._used.of(self.lookup_name, context)
        now_ms = context.clock.now_ms()
        matched: list[FlowFile] = []
        unmatched: list[FlowFile] = []
        for flowfile in session.get_many(BATCH_FLOWFILES):
            try:
                at = version.row_numbers.get(self.key.of(flowfile, now_ms=now_ms))
                columns = version.columns_of(self.columns)
            except ProcessError as error:
                fail(context, session, flowfile, self.failure, error)
                continue
            if at is None:
                unmatched.append(flowfile)
                continue
            values = {name: column[at].as_py() for name, column in columns.items()}
            added = {name: str(value) for name, value in values.items() if value is not None}
            matched.append(session.put_attributes(flowfile, added))
        session.transfer(matched, self.matched)
        session.transfer(unmatched, self.unmatched)


class LookupRecord(RecordProcessor):
    """Adds fields to records from the rows of a lookup, found by a field with the key.

    Each dynamic property adds a field of its name with the value of a column, or replaces it. It is
    null if the lookup does not have the key. Only batches of columns are in memory, never the whole
    content. FlowFiles wait in the queue while the lookup does not exist.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("records", "lookup", "enrich", "join")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "MIME type of the new content.",
        "record.count": "Number of records.",
        "lookup.unmatched": "Number of records whose key the lookup does not have.",
        **WRITES_REASON,
    }

    lookup_name = Property(STR, required=True, about="Name of the lookup.")
    key_field = Property(STR, required=True, about="The field of the records with the key.")
    output_format = Property(
        RecordFormat, about="Format of the new content; by default that of the old one."
    )
    columns = DynamicProperties(STR, about="Name of a field, and the column with its value.")

    success = Relationship("The fields are added.")
    failure = Relationship(
        "The content does not have the format, or the key field or a column does not exist; the"
        " FlowFile is unchanged."
    )

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._used = _UsedVersion()

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties."""
        yield from super().check()
        if not self.columns:
            yield Problem("", _NOTHING)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Add the fields to the records of one FlowFile."""
        version = self._used.of(self.lookup_name, context)
        flowfile = session.get()
        if flowfile is None:
            return
        try:
            count, unmatched = self._extend(session, flowfile, version)
        except ProcessError as error:
            fail(context, session, flowfile, self.failure, error)
            return
        attributes = record_attributes(self.output_format or self.input_format, count)
        session.put_attributes(flowfile, {**attributes, "lookup.unmatched": str(unmatched)})
        session.counters.add("records", count)
        session.counters.add(_UNMATCHED, unmatched)
        session.transfer(flowfile, self.success)

    def _extend(
        self, session: ProcessSession, flowfile: FlowFile, version: _Version
    ) -> tuple[int, int]:
        """Write the records with the fields; return their number, and how many have none."""
        columns = version.columns_of(self.columns)
        records = self.records(session, flowfile, self.reading_options())
        if self.key_field not in records.schema.names:
            raise ProcessError(
                f"the records have no field {quoted(self.key_field)}: correct key_field"
            )
        schema = records.schema
        for name, column in columns.items():
            schema = _with_field(schema, pa.field(name, column.type))
        keys = version.table.rows.column(0)
        count = unmatched = 0
        with session.write(flowfile) as out:
            writer = self.writer(self.output_format or self.input_format, out, schema)
            for batch in records.batches:
                row_numbers = pc.index_in(_texts(batch, self.key_field), value_set=keys)
                unmatched += row_numbers.null_count
                found = {name: column.take(row_numbers) for name, column in columns.items()}
                arrays = [
                    found[name].combine_chunks() if name in found else batch.column(name)
                    for name in schema.names
                ]
                writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
                count += batch.num_rows
            writer.close()
        return count, unmatched


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        return pc.cast(batch.column(name), pa.string())
    except pa.ArrowException:
        raise ProcessError(
            f"the field {quoted(name)} is of type {batch.schema.field(name).type}, which is not a"
            " key: name a field with texts or numbers"
        ) from None


def _with_field(schema: pa.Schema, field: pa.Field) -> pa.Schema:
    at = schema.get_field_index(field.name)
    return schema.append(field) if at < 0 else schema.set(at, field)
