"""ConvertRecord: writes records in another format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.flow.processor import (
    FlowFile,
    InputRequirement,
    ProcessContext,
    ProcessError,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.records.base import RecordProcessor, record_attributes
from penstock.flow.processors.records.formats.record_formats import RecordFormat


class ConvertRecord(RecordProcessor):
    """Writes the records of a FlowFile in another format, or with another schema.

    Only batches of columns are in memory, never the whole content.
    """

    input = InputRequirement.REQUIRED
    supports_batching = True
    tags = ("records", "convert", "csv", "json", "parquet", "avro", "arrow")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "MIME type of the new content.",
        "record.count": "Number of records.",
        **WRITES_REASON,
    }

    output_format = Property(RecordFormat, required=True, about="Format of the new content.")
    refuse_others = Property(
        bool,
        default=False,
        about="Whether fields that are missing in the schema are an error; otherwise they are "
        "dropped.",
    )

    success = Relationship("Converted.")
    failure = Relationship(
        "The content does not have the format, or does not fit the schema; it is unchanged."
    )

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Convert one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        try:
            count = self._convert(session, flowfile)
        except ProcessError as error:
            fail(context, session, flowfile, self.failure, error)
            return
        session.put_attributes(flowfile, record_attributes(self.output_format, count))
        session.counters.add("records", count)
        session.transfer(flowfile, self.success)

    def _convert(self, session: ProcessSession, flowfile: FlowFile) -> int:
        records = self.records(
            session, flowfile, self.reading_options(refuse_others=self.refuse_others)
        )
        count = 0
        with session.write(flowfile) as out:
            writer = self.writer(self.output_format, out, records.schema)
            for batch in records.batches:
                writer.write(batch)
                count += batch.num_rows
            writer.close()
        return count
