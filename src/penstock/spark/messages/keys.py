"""Convert keys of records to one typed column: the first value of each key.

JSON objects are grouped by the name of their first field, which is usually the same, and each group
is parsed like messages. For lines of delimited text, the first column is the value. A missing or
empty key has no value. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.batch.input.schema_casts import rows_of_objects
from penstock.spark.topic.coerce import Json, UnparseableError, object_of
from penstock.spark.topic.parse import BadMessage
from penstock.spark.topic.row_shape import FieldType, RowShape

if TYPE_CHECKING:
    from penstock.spark.messages.formats import TextFormat

# A name without escapes, up to the colon after it.
_FIRST_NAME: Final = r'^\s*\{\s*"(?P<name>[^"\\]*)"\s*:'
_GROUPS_MAX: Final = 16

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Keys with their first value under one name; None: search the name in each key."""

    name: str | None
    places: _Places
    keys: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads keys as values of one type; `column` names them in errors."""

    format: TextFormat
    column: str
    type: FieldType

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Array, tuple[BadMessage, ...]]:
        """Return the value of each key, null if missing, and the bad ones by index."""
        found = np.full(len(keys), -1)
        values: list[pa.Array] = [pa.array([], self.type.arrow)]
        bad: list[BadMessage] = []
        count = 0
        for group in groups(keys, self.format):
            read, wrong = self._read(group)
            bad += [BadMessage(int(group.places[one.index]), f"key: {one.reason}") for one in wrong]
            good = np.delete(group.places, [one.index for one in wrong])
            found[good] = count + np.arange(len(good))
            values.append(read)
            count += len(good)
        joined = pa.concat_arrays(values)
        return joined.take(pa.array(found, mask=found < 0)), tuple(bad)

    def _read(self, group: KeyGroup) -> tuple[pa.Array, tuple[BadMessage, ...]]:
        if group.name is None:
            shape = RowShape(((self.column, self.type),))
            rows, wrong = rows_of_objects(
                [first_value(key, self.column) for key in group.keys.to_pylist()], shape
            )
            return rows.column(0), tuple(BadMessage(index, why) for index, why in wrong)
        parsed = self.format.parser(RowShape(((group.name, self.type),))).parse(group.keys)
        return parsed.rows.column(0), parsed.bad


def groups(keys: pa.BinaryArray, format_: TextFormat) -> Iterator[KeyGroup]:
    """Yield the keys that are neither null nor empty, by the names of their first values."""
    lengths = pc.fill_null(pc.binary_length(keys), 0).to_numpy(zero_copy_only=False)
    there = np.flatnonzero(lengths)
    if not len(there):
        return
    keys = keys.take(pa.array(there))
    if format_.columns:
        yield KeyGroup(format_.columns[0], there, keys)
        return
    names = pc.struct_field(pc.extract_regex(keys, _FIRST_NAME), "name").dictionary_encode()
    numbers = names.indices.fill_null(-1).to_numpy()
    rest = np.ones(len(keys), np.bool_)
    for number, raw in enumerate(names.dictionary[:_GROUPS_MAX].to_pylist()):
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            continue
        same = numbers == number
        places = np.flatnonzero(same)
        rest &= ~same
        yield KeyGroup(name, there[places], keys.take(pa.array(places)))
    if rest.any():
        places = np.flatnonzero(rest)
        yield KeyGroup(None, there[places], keys.take(pa.array(places)))


def first_value(key: bytes, column: str) -> dict[str, Json] | str:
    """Return the first value of a JSON object under the name of a column, or why there is none."""
    try:
        value = object_of(key)
    except UnparseableError as error:
        return error.reason
    return dict(zip([column], value.values(), strict=False))
