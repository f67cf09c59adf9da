"""Lists as sets: what `sorted_set` makes of the lists of a dimension of text. Pure.

A list is kept as JSON text, so text that is a JSON list is taken for one; all other text stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.topic.coerce import UnparseableError, text_of

if TYPE_CHECKING:
    from penstock.spark.topic.coerce import Json


def as_sets(values: pa.Array) -> pa.Array:
    """Return text in which each list has its values sorted, every one once.

    The values are text, as Druid's are, and so they are compared: by code points, which is the
    order of their bytes; null comes first. Each distinct list is looked at once.
    """
    is_list = pc.and_(pc.starts_with(values, "["), pc.ends_with(values, "]"))
    if not pc.any(is_list).as_py():
        return values
    found = values.filter(is_list).dictionary_encode()
    sets = pa.array([_as_set(text) for text in found.dictionary.to_pylist()], values.type)
    return pc.replace_with_mask(values, is_list.fill_null(False), sets.take(found.indices))  # noqa: FBT003


def _as_set(text: str) -> str:
    """Return a list of different values in order; the same text if it is no JSON list."""
    try:
        found: list[Json] = orjson.loads(text)
        values = {None if one is None else text_of(one, "") for one in found}
    except (orjson.JSONDecodeError, UnparseableError):
        return text
    ordered = sorted(one for one in values if one is not None)
    return orjson.dumps([None, *ordered] if None in values else ordered).decode()
