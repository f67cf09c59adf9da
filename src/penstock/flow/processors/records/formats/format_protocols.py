"""Common interfaces of all formats: source, options, records, writers and errors.

Owns the interfaces and the translation of Arrow's errors. Does not own any format.

Invariant: records are processed as batches of columns. The size of a batch in bytes is limited for
content of any size, except for a single record up to `record_max_bytes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import pyarrow as pa

from penstock.core.out_of_memory import is_out_of_memory, memory_text
from penstock.flow.errors import ProcessError

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK_BYTES: Final = 4 << 20
RECORD_MAX_BYTES: Final = 16 << 20
BATCH_ROWS: Final = 8_192


class BadRecords(ProcessError):
    """The content does not have the format, or does not fit the schema."""


def record_too_long(bytes_max: int) -> BadRecords:
    """Return the error for a record that exceeds the maximum size."""
    return BadRecords(
        f"a record is longer than {bytes_max:,} bytes: raise max_record, or check the format"
    )


def no_memory_left(otherwise: str = "") -> BadRecords:
    """Return the error for a process that runs out of memory while it handles records.

    Args:
        otherwise: Another possible cause, such as `or the content is damaged`.
    """
    return BadRecords(
        f"the process ran out of its {memory_text()} while a processor handled these "
        f"records{otherwise and f', {otherwise}'}. Other processors may have used the memory, so "
        "the content may be intact: free memory or split the content, then send the FlowFile "
        "through the processor again"
    )


class RecordOutput(Protocol):
    """Destination of bytes."""

    def write(self, data: Buffer, /) -> int:
        """Append all the bytes; return their number."""
        ...


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Content that may be read more than once.

    Attributes:
        open: Returns a new stream at the beginning.
        size: Length in bytes.
    """

    open: Callable[[], BinaryIO]
    size: int


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options for reading records.

    Attributes:
        schema: Names and types; None: those of the content, or inferred ones.
        csv_separator: Separator between the fields of a line.
        csv_header: Whether the first line contains the names.
        infer_types: Whether CSV without a schema has numbers and booleans, or only text.
        refuse_others: Whether fields that are missing in the schema are an error; otherwise they
            are dropped.
        record_max_bytes: Maximum size of a record; a longer one is an error.
    """

    schema: pa.Schema | None = None
    csv_separator: str = ","
    csv_header: bool = True
    infer_types: bool = True
    refuse_others: bool = False
    record_max_bytes: int = RECORD_MAX_BYTES

    def without_schema(self) -> ReadingOptions:
        """Return the same options without a schema."""
        return replace(self, schema=None, refuse_others=False)


@dataclass(frozen=True, slots=True)
class WritingOptions:
    """Options for writing records.

    Attributes:
        csv_separator: Separator between the fields of a line.
        csv_header: Whether the first line contains the names.
    """

    csv_separator: str = ","
    csv_header: bool = True


@dataclass(frozen=True, slots=True)
class RecordBatches:
    """Records of one content.

    Attributes:
        schema: Schema of all batches.
        batches: Iterator that may be used once; raises `BadRecords` where the content is invalid.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class RecordWriter(Protocol):
    """Writer of batches with one schema to a stream."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            BadRecords: The format does not support a value.
        """
        ...

    def close(self) -> None:
        """Write the end of the content; the stream stays open."""
        ...


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return all fields, each with a common type; any field may be null.

    Raises:
        BadRecords: A field has incompatible types.
    """
    with translated("their fields have incompatible types"):
        common = pa.unify_schemas(list(schemas), promote_options="permissive")
    return pa.schema([field.with_nullable(nullable=True) for field in common])


class RecordSink:
    """Output for Arrow's writers, which close their output, although the content must stay open.

    Args:
        out: The actual output.
    """

    def __init__(self, out: RecordOutput) -> None:
        self._out = out
        self.closed = False

    def write(self, data: Buffer, /) -> int:
        """Write to the actual output."""
        return self._out.write(data)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Record the close; the actual output stays open."""
        self.closed = True


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Context that converts Arrow's exceptions to `BadRecords`; Penstock errors are passed on.

    Raises:
        BadRecords: Arrow's message after a description of the operation; or a lack of memory.
    """
    try:
        yield
    except (MemoryError, SystemError) as error:
        # Checked first: Arrow's exception for this is also one of the others.
        if not is_out_of_memory(error):
            raise
        raise no_memory_left() from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # The message may contain the invalid value, of any length.
        text = " ".join(str(error).split())[:500] or type(error).__name__
        raise BadRecords(f"{doing}: {text}") from None
