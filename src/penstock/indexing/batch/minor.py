"""Minor compaction: some segments are rewritten, the others in their time chunks are kept. Pure.

New segments get the version of the task's REPLACE lock, which would hide all others in their time
chunks; so the publish lists the kept ones again under that version, with the same files. Invariant:
a kept segment is entirely visible before and after, because its file is read completely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval, condensed
from penstock.indexing.batch.input_segments import touches
from penstock.indexing.specs.batch import aligned
from penstock.segments.model import SegmentId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.batch.input_segments import VisibleSegment
    from penstock.indexing.specs.batch import CompactSpec, MinorInput

_SEGMENTS = "ioConfig.inputSpec.segments"


def parted(
    spec: CompactSpec, minor: MinorInput, found: Sequence[VisibleSegment]
) -> tuple[list[VisibleSegment], set[str]]:
    """Return the segments to rewrite, and the ids of the others in the same time chunks.

    Args:
        spec: The task.
        minor: The segments that it names.
        found: The visible segments in its interval.

    Raises:
        InvalidRequest: A named segment is not visible, or another one cannot be kept: the message
            has the reason.
    """
    named = {
        str(SegmentId(spec.datasource, Interval.parse(one.itvl), one.ver, one.part))
        for one in minor.segments
    }
    chosen = [one for one in found if str(one.segment.id) in named]
    if missing := named - {str(one.segment.id) for one in chosen}:
        raise InvalidRequest(
            f"segment {min(missing)} is not visible: name segments that `segment timeline` shows",
            place=_SEGMENTS,
        )
    granularity = spec.segment_granularity
    chunks = {
        one.segment.interval if granularity is None else aligned(one.interval, granularity)
        for one in chosen
    }
    written, kept = condensed(chunks), set()
    for one in found:
        whole, name = one.segment.interval, str(one.segment.id)
        if name in named or not touches(one.interval, written):
            continue
        if one.interval != whole:
            raise InvalidRequest(
                f"segment {name} would be kept, but newer ones hide a part of it: name it, too",
                place=_SEGMENTS,
            )
        if granularity is None:
            fits = whole in chunks or any(chunk.covers(whole) for chunk in chunks)
        else:
            fits = granularity.bucket(whole.start_ms).covers(whole)
        if not fits:
            raise InvalidRequest(
                f"segment {name} would be kept, but its time chunk is larger than the new ones:"
                " name it, too, or set a coarser segmentGranularity",
                place=_SEGMENTS,
            )
        kept.add(name)
    return chosen, kept
