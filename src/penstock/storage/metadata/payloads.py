"""JSON text of payloads and offsets, one form for both databases.

Keys are sorted, so equal values have equal text and a row can be compared by its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
import orjson

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

JsonObject: TypeAlias = Mapping[str, object]
Offsets: TypeAlias = Mapping[int, int]
"""The offset of each stream partition."""


class _Placed(msgspec.Struct, gc=False, rename="camel"):
    """The field of a segment's payload that locates its file."""

    load_spec: object = None


_read_placed = msgspec.json.Decoder(_Placed).decode


def dump(payload: JsonObject) -> str:
    """Return the text of a JSON object.

    Raises:
        InvalidRequest: It holds a value that JSON cannot represent.
    """
    try:
        return orjson.dumps(dict(payload), option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise InvalidRequest(f"a payload must be plain JSON: {error}") from error


def load(text: str) -> dict[str, object]:
    """Parse the text of `dump`."""
    return cast("dict[str, object]", orjson.loads(text))


def load_spec(text: str) -> dict[str, object] | None:
    """Return the load spec in a segment's payload, None if it is absent; skips other fields."""
    spec = _read_placed(text).load_spec
    return cast("dict[str, object]", spec) if isinstance(spec, dict) else None


def dump_list(items: Sequence[JsonObject]) -> str:
    """Return the text of a list of JSON objects, in this order. Raises as `dump`."""
    return dump({"items": [dict(item) for item in items]})


def load_list(text: str) -> list[dict[str, object]]:
    """Parse the text of `dump_list`."""
    return cast("list[dict[str, object]]", load(text)["items"])


def dump_offsets(offsets: Mapping[int, int]) -> str:
    """Return the text of offsets by stream partition."""
    return dump({str(int(partition)): int(offset) for partition, offset in offsets.items()})


def load_offsets(text: str) -> dict[int, int]:
    """Return offsets with their stream partitions as numbers, in order."""
    found = cast("dict[str, int]", orjson.loads(text))
    return dict(sorted((int(partition), offset) for partition, offset in found.items()))
