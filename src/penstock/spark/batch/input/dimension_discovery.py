"""Discovery of dimensions that a spec does not list: in all files, in a stable order.

Owns which columns become dimensions, and their types. Whole numbers with decimals become decimals,
anything with text becomes text, nested values are `json`. Without schema discovery every column is
text, as in Druid.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.json as pj

from penstock.core.errors import InvalidRequest
from penstock.core.rate_limited_log import Warn
from penstock.indexing.specs import TIME_COLUMN, DataSchema, Dimension
from penstock.indexing.specs.rows.dimensions import COLUMNS_MAX
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.batch.input.avro_files import avro_columns
from penstock.spark.batch.input.columnar import FOUND_AS, schema_of
from penstock.spark.batch.input.delimited import typed_columns
from penstock.spark.batch.input.documents import read_text
from penstock.spark.batch.input.file_splits import Source, Split
from penstock.spark.batch.input.input_work import InputWork
from penstock.spark.batch.input.open_files import translated
from penstock.spark.batch.input.text_lines import Lines
from penstock.spark.topic.arrow_times import NotCleanError
from penstock.spark.topic.coerce import has_too_many_keys, loads
from penstock.spark.topic.parse import CELLS_MAX, cut_out

if TYPE_CHECKING:
    Run = Callable[[Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], int], list[str]]

FoundType = Literal["long", "double", "string", "json", "null"]
Found = dict[str, FoundType]

_log = logging.getLogger(__name__)
_NO_NAME: Final = (
    "datasource %s: left out %d columns whose names dimensions cannot have, such as %s;"
    " rename them in the data, or add them to dimensionExclusions to avoid this warning"
)
_NAMES_SHOWN: Final = 5
FOUND_MAX: Final = 10 * COLUMNS_MAX
"""Maximum number of columns gathered from the data; most of them must be excluded then."""
# Arrow makes each column as long as there are rows, and both may be many: a piece of 64 KiB whose
# rows have a column of their own each takes 0.3 GB, and one of 1 MiB would take 50 GB.
_PIECE_BYTES: Final = 64 << 10
# If all rows have all columns, such a piece has about 10,000 values.
_WIDE_CELLS: Final = 1 << 20
_SHOWN: Final = 60
_NUMBERS: Final = frozenset({"long", "double"})
_TOLD: Final[Mapping[str, FoundType]] = {"long": "long", "double": "double", "json": "json"}


def discovered(
    schema: DataSchema,
    found: Mapping[str, FoundType],
    *,
    lenient: bool = False,
    warn: Warn = _log.warning,
) -> DataSchema:
    """Return the schema with the discovered dimensions after those that it has.

    Columns that cannot be queried are left out with a warning: names of only white space, and names
    with Penstock's own prefix.

    Args:
        schema: The schema of the spec.
        found: The columns of the data.
        lenient: Columns beyond `COLUMNS_MAX`, and a column that differs from `__time` only in
            case, are left out with a warning: one odd message must not stop a stream.
        warn: Called for values that are left out, as `logging.Logger.warning`.

    Raises:
        InvalidRequest: A column differs from `__time` only in case, or there are too many.
    """
    spec = schema.dimensions_spec
    apart = {TIME_COLUMN, schema.timestamp_spec.column, *spec.dimension_exclusions}
    apart |= {dimension.name for dimension in spec.dimensions}
    apart |= {metric.name for metric in schema.metrics}
    apart |= {name for metric in schema.metrics for name in metric.inputs}
    added: list[Dimension] = []
    unfit: list[str] = []
    for name, type_ in found.items():
        if name in apart:
            continue
        if not name.strip() or name.lower().startswith(OWN_PREFIX):
            unfit.append(name)
            continue
        if name.lower() == TIME_COLUMN:
            if not lenient:
                raise InvalidRequest(
                    f"the column {name!r} differs from {TIME_COLUMN!r} only in case: put it into"
                    " dimensionExclusions"
                )
            text = "datasource %s: column %r is left out, as it differs from %r only in case"
            warn(text, schema.datasource, name, TIME_COLUMN)
            continue
        if len(spec.dimensions) + len(added) == COLUMNS_MAX:
            text = (
                f"the data has more than {COLUMNS_MAX} columns: list the dimensions that you need"
            )
            if not lenient:
                raise InvalidRequest(text)
            warn("datasource %s: %s; the others are left out", schema.datasource, text)
            break
        typed = type_ if spec.use_schema_discovery and type_ != "null" else "string"
        added.append(Dimension(name=name, type=typed))
    if unfit:
        shown = ", ".join(f"{name[:_SHOWN]!r}" for name in unfit[:_NAMES_SHOWN])
        warn(_NO_NAME, schema.datasource, len(unfit), shown)
    update = {"dimensions": (*spec.dimensions, *added)}
    return schema.model_copy(update={"dimensions_spec": spec.model_copy(update=update)})


def read_names(run: Run, work: InputWork) -> Found:
    """Return the columns of all pieces; a Spark worker reads each piece."""
    if not work.pieces:
        return {}
    merged: dict[int, Found] = {}
    for text in run(functools.partial(inspect_pieces, work), len(work.pieces)):
        raw = json.loads(text)
        merged[raw["piece"]] = raw["columns"]
    found: Found = {}
    for _, columns in sorted(merged.items()):
        merge_found(found, columns)
    return found


def inspect_pieces(work: InputWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report the columns of the pieces whose numbers Spark passes in."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            found: Found = {}
            for split in work.pieces[number]:
                source = work.sources[split.file.source]
                with translated(split.file):
                    for place, columns in columns_of_split(split, source, work.line_bytes_max):
                        merge_found(found, columns, f"{split.file.shown}{place}")
            text = json.dumps({"piece": number, "columns": found})
            yield pa.RecordBatch.from_arrays([pa.array([text])], names=["report"])


def columns_of_split(
    split: Split, source: Source, line_bytes_max: int
) -> Iterator[tuple[str, Found]]:
    """Yield columns of a split, each time with the place in the file as it is shown."""
    if source.kind == "avro":
        yield "", dict(avro_columns(split.file))
        return
    if source.kind in {"parquet", "orc"}:
        yield "", {field.name: _declared_type(field) for field in schema_of(split.file, source)}
        return
    skip = 0 if split.start else source.skip
    for lines in read_text(split, source, line_bytes_max=line_bytes_max):
        kept = lines.without_first(skip)
        if not len(kept.starts):
            continue
        if source.kind == "json":
            for last, found in _json_columns(kept):
                yield _place_of(split, int(kept.numbers[last])), found
        else:
            columns = split.file.columns or source.columns
            typed = typed_columns(kept, columns, source.separator)
            place = _place_of(split, int(kept.numbers[0]))
            yield place, {name: type_of(type_) for name, type_ in typed.items()}


def _place_of(split: Split, number: int) -> str:
    return f", line {number + 1} from byte {split.start}" if split.start else f":{number + 1}"


def _declared_type(field: pa.Field) -> FoundType:
    """Return the declared type of a column, if any: rows of a database have more types."""
    told = (field.metadata or {}).get(FOUND_AS, b"").decode(errors="replace")
    return _TOLD.get(told) or type_of(field.type)


def _json_columns(lines: Lines) -> Iterator[tuple[int, Found]]:
    """Yield the columns that Arrow finds in lines, or those of each line if it finds none.

    Each time with the index of the last line to which they belong.
    """
    is_wide = False
    alike = UniformColumns()
    for first, last in small_pieces(lines.starts, lines.text.size):
        begin = int(lines.starts[first])
        if alike.holds(lines.text.slice(begin), len(lines.starts) - first):
            return
        begin, end = int(lines.starts[first]), int(lines.ends[last - 1])
        starts, ends = lines.starts[first:last] - begin, lines.ends[first:last] - begin
        text = lines.text.slice(begin, end - begin)
        columns = None
        if not is_wide:
            with contextlib.suppress(NotCleanError):
                columns = inferred(text, alike=alike)
        if columns is None:
            parts = cut_out(text, starts, ends)
            for index in range(len(parts)):
                for one in found_one_by_one(parts.slice(index, 1)):
                    yield first + index, one
        else:
            is_wide = is_too_wide(columns, last - first)
            yield last - 1, columns


def is_too_wide(columns: Found, rows: int) -> bool:
    """Return whether such rows are faster to parse one by one: most rows lack most columns."""
    return len(columns) * rows > _WIDE_CELLS


def small_pieces(starts: npt.NDArray[np.integer], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of lines, or messages, that begin at these positions of a text.

    A range has at most `_PIECE_BYTES`, unless it is one line.
    """
    first = 0
    while first < len(starts):
        end = int(starts[first]) + _PIECE_BYTES
        last = len(starts) if end >= size else int(np.searchsorted(starts, end, "right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


class UniformColumns:
    """Whether the rest of a block has exactly the columns of its first piece.

    This check is as fast as finding the columns of a whole block, and needs as little memory as
    small pieces.
    """

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self.is_open = True

    def learn(self, schema: pa.Schema) -> None:
        """Store the columns of a piece; only the first piece counts."""
        if self._schema is None:
            self._schema = schema

    def holds(self, text: pa.Buffer, rows: int) -> bool:
        """Return whether lines have the stored columns; tried only once."""
        if self._schema is None or not self.is_open:
            return False
        self.is_open = False
        if rows * (len(self._schema) + 1) > CELLS_MAX:
            return False
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._schema, unexpected_field_behavior="error"
                ),
            )
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return False
        return int(table.num_rows) == rows


def inferred(
    text: pa.Buffer, rows: int | None = None, alike: UniformColumns | None = None
) -> Found:
    """Return the columns that Arrow finds in lines of JSON objects, and store them in `alike`.

    Raises:
        NotCleanError: Arrow finds none, or another number of rows, or the text is too large.
    """
    if text.size > 2 * _PIECE_BYTES:
        raise NotCleanError  # one line, with any number of columns
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
        )
        found = {field.name: type_of(field.type) for field in table.schema}
        if alike is not None:
            alike.learn(table.schema)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise NotCleanError from None
    if rows is not None and table.num_rows != rows:
        raise NotCleanError
    return found


def found_one_by_one(messages: pa.BinaryArray) -> Iterator[Found]:
    """Yield the columns of each JSON object; other values have no columns."""
    for message in messages:
        text = message.as_py() or b""
        if has_too_many_keys(text):
            continue
        try:
            value = loads(text)
        except orjson.JSONDecodeError:
            continue  # not a row: it will be counted, or stored, as bad
        if isinstance(value, dict):
            yield {name: type_of_value(inner) for name, inner in value.items()}


def merge_found(found: Found, columns: Mapping[str, FoundType], place: str | None = None) -> None:
    """Add columns to the found ones, each with a type that fits the values of both.

    Beyond `FOUND_MAX` columns, later ones are left out where there is no `place`.

    Raises:
        InvalidRequest: There are more than `FOUND_MAX` columns at this place of the input.
    """
    for name, type_ in columns.items():
        before = found.get(name, "null")
        if len(found) >= FOUND_MAX and name not in found:
            if place is not None:
                raise InvalidRequest(
                    f"{place}: more than {FOUND_MAX:,} different columns up to here: list the"
                    " dimensions that you need, or check the program that wrote the file"
                )
            continue
        if before in {"null", type_}:
            found[name] = type_
        elif type_ != "null":
            found[name] = "double" if {before, type_} <= _NUMBERS else "string"


def type_of(type_: pa.DataType) -> FoundType:
    """Return the type of a dimension for a type that Arrow found."""
    if pa.types.is_null(type_):
        return "null"
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "long"
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "double"
    return "json" if pa.types.is_nested(type_) else "string"


def type_of_value(value: object) -> FoundType:
    """Return the type of a dimension for a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, int):  # includes booleans
        return "long" if -(2**63) <= value < 2**63 else "double"
    if isinstance(value, float):
        return "double"
    return "string" if isinstance(value, str) else "json"
