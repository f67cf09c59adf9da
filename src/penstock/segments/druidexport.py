"""Segments out of another Druid: what its `export-metadata` tool writes of the segments table.

Owns the form of that file. It copies no data: a segment names its file, and whether Spark can read
that is for `Segment.is_parquet` to say.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.segments.model import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage.metadata import SegmentRow

_USED: Final = 7
_PAYLOAD: Final = 8
# How the tool writes them, and how Derby's own export does.
_BOOLEANS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def read_export(lines: Iterable[str]) -> Iterator[SegmentRow]:
    """Yield the segments of ``druid_segments.csv``, with payloads as JSON or in hexadecimal.

    Args:
        lines: The lines of the file, which has no heading: id, dataSource, created_date, start,
            end, partitioned, version, used, payload, and whatever follows.

    Raises:
        InvalidRequest: A line is something else; the message names it by its number, from 1.
    """
    # A payload may have tens of thousands of dimensions.
    csv.field_size_limit(2**27)
    reader = csv.reader(lines)
    for fields in reader:
        if not fields:
            continue
        place = f"line {reader.line_num}"
        if len(fields) <= _PAYLOAD:
            raise InvalidRequest(
                f"has {len(fields)} fields, not {_PAYLOAD + 1} or more: give the druid_segments.csv"
                " of Druid's export-metadata tool",
                place=place,
            )
        used = _BOOLEANS.get(fields[_USED].strip().lower())
        if used is None:
            raise InvalidRequest(f"used is {fields[_USED]!r}, not true or false", place=place)
        segment = _segment(fields[_PAYLOAD], place)
        if str(segment.id) != fields[0]:
            raise InvalidRequest(
                f"the payload is of {segment.id}, not of {fields[0]}: export the table again",
                place=place,
            )
        yield segment.to_row(used=used)


def _segment(payload: str, place: str) -> Segment:
    try:
        text = payload if payload.lstrip().startswith("{") else bytes.fromhex(payload).decode()
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(
            f"the payload is no JSON, plain or in hexadecimal ({error}): export the table again",
            place=place,
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequest("the payload is no object: export the table again", place=place)
    try:
        return Segment.from_json(value)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=place) from error
