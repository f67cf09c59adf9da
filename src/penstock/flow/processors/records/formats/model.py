"""What all formats have: where bytes come from, how records are read and written, what goes wrong.

Owns the interfaces and the one place where Arrow's errors become ours. Does not own any format.

Invariant: records move as batches of columns; a batch is bounded in bytes, whatever the content's
size, but for a single record that is as large as `record_max_bytes` allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import pyarrow as pa

from penstock.core.outofmemory import is_out_of_memory, memory_text
from penstock.flow.errors import ProcessError

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK_BYTES: Final = 4 << 20
RECORD_MAX_BYTES: Final = 16 << 20
BATCH_ROWS: Final = 8_192


class BadRecords(ProcessError):
    """The content is not of the format, or does not fit the schema."""


def record_too_long(bytes_max: int) -> BadRecords:
    """Return the error of a record that is longer than it may be."""
    return BadRecords(
        f"a record is longer than {bytes_max:,} bytes: raise max_record, or check the format"
    )


def no_memory_left(otherwise: str = "") -> BadRecords:
    """Return the error of a process that runs out of memory while it handles records.

    Args:
        otherwise: Another cause that is possible, such as `or the content is damaged`.
    """
    return BadRecords(
        f"the process ran out of its {memory_text()} while a processor handled these records"
        f"{otherwise and f', {otherwise}'}. Other processors may have used the memory, so the"
        " content may be whole: free memory or split the content, then send the FlowFile through"
        " the processor again"
    )


class Output(Protocol):
    """Where bytes are written to."""

    def write(self, data: Buffer, /) -> int:
        """Append all of some bytes; return how many."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """Content that may be read more than once.

    Attributes:
        open: Returns a new stream, from the beginning.
        size: Its length in bytes.
    """

    open: Callable[[], BinaryIO]
    size: int


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How records are read.

    Attributes:
        schema: Names and types; None: as the content has them, or as they look like.
        csv_separator: Between the fields of a line.
        csv_header: Whether the first line has the names.
        infer_types: Whether CSV without a schema has numbers and booleans, or only text.
        refuse_others: Whether fields that the schema does not name are an error, not left out.
        record_max_bytes: A longer record is an error.
    """

    schema: pa.Schema | None = None
    csv_separator: str = ","
    csv_header: bool = True
    infer_types: bool = True
    refuse_others: bool = False
    record_max_bytes: int = RECORD_MAX_BYTES

    def without_schema(self) -> ReadingOptions:
        """Return the same for records of any fields."""
        return replace(self, schema=None, refuse_others=False)


@dataclass(frozen=True, slots=True)
class WritingOptions:
    """How records are written.

    Attributes:
        csv_separator: Between the fields of a line.
        csv_header: Whether the names are the first line.
    """

    csv_separator: str = ","
    csv_header: bool = True


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one content.

    Attributes:
        schema: Of all batches.
        batches: To be gone through once; raises `BadRecords` where the content is broken.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class RecordWriter(Protocol):
    """Writes batches of one schema to a stream."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            BadRecords: The format has no place for such values.
        """
        ...

    def close(self) -> None:
        """Write what belongs to the end; the stream stays open."""
        ...


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the fields of all, each with a type that fits all; any may be missing.

    Raises:
        BadRecords: A field has types that do not fit together.
    """
    with translated("they have fields of types that do not fit together"):
        common = pa.unify_schemas(list(schemas), promote_options="permissive")
    return pa.schema([field.with_nullable(nullable=True) for field in common])


class Sink:
    """What Arrow's writers write to: they close what they are given, and the content is ours.

    Args:
        out: Where to.
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self.closed = False

    def write(self, data: Buffer, /) -> int:
        """Pass on."""
        return self._out.write(data)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Remember; the stream stays open."""
        self.closed = True


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Have what Arrow raises leave the block as `BadRecords`; errors of ours pass.

    Raises:
        BadRecords: What Arrow said, after what was being done; or that memory ran out.
    """
    try:
        yield
    except (MemoryError, SystemError) as error:
        # Before the others: Arrow's error of this kind is one of those, too.
        if not is_out_of_memory(error):
            raise
        raise no_memory_left() from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # A message may hold the value at fault, however long.
        text = " ".join(str(error).split())[:500] or type(error).__name__
        raise BadRecords(f"{doing}: {text}") from None
