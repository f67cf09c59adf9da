"""Minor compaction: some segments are written anew, the others beside them stay as they are. Pure.

What is written gets the version of the task's REPLACE lock, which would hide all else in its time
chunks; so the publish lists what stays again under that version, by the same files. Invariant: a
segment that stays is seen whole before and after, as its file is read whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval, condensed
from penstock.indexing.batch.visible import touches
from penstock.indexing.spec.batch import aligned
from penstock.segments.model import SegmentId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.batch.visible import VisibleSegment
    from penstock.indexing.spec.batch import CompactSpec, MinorInput

_SEGMENTS = "ioConfig.inputSpec.segments"


def parted(
    spec: CompactSpec, minor: MinorInput, found: Sequence[VisibleSegment]
) -> tuple[list[VisibleSegment], set[str]]:
    """Return what is written anew, and the ids of what else is visible in the same time chunks.

    Args:
        spec: The task.
        minor: Which segments it names.
        found: What is visible in its interval.

    Raises:
        InvalidRequest: A named segment is not visible, or one that would stay cannot: the message
            says why.
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
                f"segment {name} would stay, but newer ones hide a part of it: name it, too",
                place=_SEGMENTS,
            )
        if granularity is None:
            fits = whole in chunks or any(chunk.covers(whole) for chunk in chunks)
        else:
            fits = granularity.bucket(whole.start_ms).covers(whole)
        if not fits:
            raise InvalidRequest(
                f"segment {name} would stay, but its time chunk is larger than those that are"
                " written: name it, too, or a coarser segmentGranularity",
                place=_SEGMENTS,
            )
        kept.add(name)
    return chosen, kept
