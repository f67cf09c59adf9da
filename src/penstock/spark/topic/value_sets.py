"""Sorted lists: the results of `sorted_array` and `sorted_set` for a dimension of text. Pure.

A list is stored as JSON text. Text that is a valid JSON list is therefore treated as a list; other
text is unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.topic.coerce import UnparseableError, text_of

if TYPE_CHECKING:
    from penstock.spark.topic.coerce import Json


def in_order(values: pa.Array, *, sets: bool) -> pa.Array:
    """Return text in which each list is sorted; with `sets`, without duplicates.

    Values are compared as text, by code points (the order of their bytes), as in Druid; null comes
    first. Each distinct list is sorted once.
    """
    is_list = pc.and_(pc.starts_with(values, "["), pc.ends_with(values, "]"))
    if not pc.any(is_list).as_py():
        return values
    found = values.filter(is_list).dictionary_encode()
    ordered = [_ordered(text, sets=sets) for text in found.dictionary.to_pylist()]
    made = pa.array(ordered, values.type).take(found.indices)
    return pc.replace_with_mask(values, is_list.fill_null(fill_value=False), made)


def _ordered(text: str, *, sets: bool) -> str:
    """Return a list with its values in order; the same text if it is not a JSON list."""
    try:
        found: list[Json] = orjson.loads(text)
        values = [None if one is None else text_of(one, "") for one in found]
    except (orjson.JSONDecodeError, UnparseableError):
        return text
    kept = list(dict.fromkeys(values)) if sets else values
    # Nulls come first, as equal keys: they cannot be compared with each other.
    return orjson.dumps(sorted(kept, key=lambda one: (one is not None, one or ""))).decode()
