"""Conversion of files to segments: their versions, partition numbers and shard specs. Pure.

A task that replaces numbers its files itself: they are the complete time chunks under the version
of its lock. A task that appends uses allocated ids, as streams do; so does one that rewrites
segments that it has locked one by one, and keeps their version.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict
from penstock.core.timeline.chunks import RootRange
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import HashBucket, ShardSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.actions import AllocatedSegment
    from penstock.indexing.batch.batch_engine import Bucket, Partitioning, WrittenFile
    from penstock.indexing.batch.batch_locks import Rewrite
    from penstock.indexing.batch.batch_ports import AttemptStore
    from penstock.indexing.batch.written_files import EngineOutput


@dataclass(frozen=True, slots=True)
class SegmentForm:
    """Properties that all segments of a task share.

    Attributes:
        datasource: Their datasource.
        store: Returns the load specs of their files.
        partitioning: How rows were distributed over files.
        compaction_state: How the segments were created, for automatic compaction; None if it is
            not stored.
        rollup: The roll-up of their rows; None if they were not rolled up.
    """

    datasource: str
    store: AttemptStore
    partitioning: Partitioning
    compaction_state: Mapping[str, object] | None = None
    rollup: Mapping[str, object] | None = None


def replacement_segments(
    form: SegmentForm, written: EngineOutput, version_of: Callable[[Interval], str]
) -> list[Segment]:
    """Return segments that replace their whole time chunks, in order.

    All segments of a chunk are core partitions, so queries see them together or not at all.
    """
    segments = []
    for interval, group in _by_chunk(written.files):
        files = list(group)
        version = version_of(interval)
        for number, file in enumerate(files):
            shard = _shard(number, len(files), file.bucket, form.partitioning)
            segments.append(_segment(form, written, file, interval, version, shard))
    return segments


def appended_segments(
    form: SegmentForm, written: EngineOutput, places: Sequence[AllocatedSegment]
) -> list[Segment]:
    """Return the appended segments, one for each file in the order of the files.

    An id may be of a larger time chunk than the file's: that of the existing segments.
    """
    return [
        _segment(
            form,
            written,
            file,
            place.interval,
            place.version,
            ShardSpec(place.partition_number, place.core_partitions),
        )
        for file, place in zip(written.files, places, strict=True)
    ]


def rewritten_segments(
    form: SegmentForm,
    written: EngineOutput,
    rewrites: Mapping[Interval, Rewrite],
    places: Sequence[AllocatedSegment],
) -> list[Segment]:
    """Return the segments that rewrite others, one for each file in the order of the files.

    All of a time chunk are one atomic update group: they are visible together or not at all.

    Raises:
        Conflict: An id is not in the time chunk and version of the rewritten segments.
    """
    sizes = Counter(file.data.interval for file in written.files)
    minors: dict[Interval, int] = {}
    for place in places:
        minors[place.interval] = max(place.minor_version, minors.get(place.interval, 0))
    segments = []
    for file, place in zip(written.files, places, strict=True):
        interval = file.data.interval
        old = rewrites[interval]
        if (place.interval, place.version) != (interval, old.version):
            raise Conflict(
                f"the segments of {interval} with the version {old.version} were replaced while"
                " they were rewritten: submit the task again"
            )
        roots = RootRange(old.start, old.end, minors[interval], sizes[interval])
        shard = ShardSpec.overwrite(place.partition_number, roots)
        segments.append(_segment(form, written, file, interval, place.version, shard))
    return segments


def tombstones(
    form: SegmentForm, chunks: Iterable[Interval], version_of: Callable[[Interval], str]
) -> list[Segment]:
    """Return segments without rows, which hide older ones in time chunks that got no rows."""
    return [
        Segment(
            form.datasource,
            chunk,
            version_of(chunk),
            {"type": "tombstone"},
            ShardSpec.tombstone(),
            size=1,
            last_compaction_state=form.compaction_state,
        )
        for chunk in chunks
    ]


def empty_chunks(
    chunks: Iterable[Interval], filled: Iterable[Interval], visible: Iterable[Interval]
) -> list[Interval]:
    """Return the chunks that got no rows although segments are visible in them."""
    got = set(filled)
    # Ends of the visible intervals, in order, to be iterated together with the chunks.
    shown = sorted(visible)
    found: list[Interval] = []
    at = 0
    for chunk in sorted(chunks):
        while at < len(shown) and shown[at].end_ms <= chunk.start_ms:
            at += 1
        if chunk not in got and at < len(shown) and shown[at].start_ms < chunk.end_ms:
            found.append(chunk)
    return found


def _by_chunk(
    files: Sequence[WrittenFile],
) -> Iterable[tuple[Interval, Iterable[WrittenFile]]]:
    ordered = sorted(files, key=operator.attrgetter("data.interval"))
    return itertools.groupby(ordered, key=operator.attrgetter("data.interval"))


def _shard(number: int, core: int, bucket: Bucket | None, partitioning: Partitioning) -> ShardSpec:
    if bucket is None or partitioning.kind == "dynamic":
        return ShardSpec(number, core)
    if partitioning.kind == "hashed":
        # Buckets without rows have no file, so numbers and buckets may differ. Rows are distributed
        # by Spark's hash, which equals none of Druid's: with the name of a hash function, a reader
        # would prune the wrong segments.
        spread = HashBucket(bucket.number, bucket.count, partitioning.dimensions, function=None)
        return ShardSpec.hashed(number, core, spread)
    return ShardSpec.range(number, core, partitioning.dimensions, bucket.start, bucket.end)


def _segment(
    form: SegmentForm,
    written: EngineOutput,
    file: WrittenFile,
    interval: Interval,
    version: str,
    shard: ShardSpec,
) -> Segment:
    data = file.data
    return Segment(
        form.datasource,
        interval,
        version,
        form.store.load_spec_of(data.path),
        shard,
        size=data.bytes,
        total_rows=data.rows,
        dimensions=written.dimensions,
        metrics=written.metrics,
        columns=data.columns,
        last_compaction_state=form.compaction_state,
        rollup=form.rollup,
    )
