"""Unused segments that would be visible if they were used again.

Owns the choice of those that stay unused, because otherwise rows would be visible twice, or the
datasource could not be read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from penstock.core.interval_index import TimeIndex
from penstock.storage.metadata.chunks.chunk import (
    NONE,
    by_chunk,
    chunks_of,
    hull,
    not_hidden,
    roots_of,
)
from penstock.storage.metadata.chunks.reading import rows_of_chunk, used_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.rows import RootRange, SegmentRow


def shown_if_used(connection: Connection, rows: Sequence[SegmentRow]) -> list[str]:
    """Return the ids of unused rows that would be visible, at least in part, if all were used.

    Rows whose time chunks overlap others of their version are left out: see `_clashing`.
    """
    shown: list[str] = []
    of_datasource: dict[str, list[SegmentRow]] = {}
    for row in rows:
        of_datasource.setdefault(row.datasource, []).append(row)
    for datasource, asked in of_datasource.items():
        around = hull(asked)
        chunks = chunks_of(asked)
        there = used_chunks(connection, datasource, around)
        for key in _clashing(chunks, ((one.interval, one.version) for one in there)):
            del chunks[key]
        mine = [row for row in asked if (row.interval, row.version) in chunks]
        rewritten = {key for key, chunk in chunks.items() if chunk.highest_overwrite != NONE}
        for used in there:
            key = used.interval, used.version
            if key in chunks and used.highest_overwrite != NONE:
                rewritten.add(key)
            chunks[key] = used.joined(chunks[key]) if key in chunks else used
        hidden: set[str] = set()
        groups = by_chunk(mine)
        for key in rewritten:
            rows_there = [r for r in rows_of_chunk(connection, datasource, *key) if r.used]
            wanted = groups[key]
            hidden |= _rewritten(rows_there, wanted)
            left = [row for row in wanted if row.id not in hidden]
            chunks |= chunks_of([*rows_there, *left])
        seen = {(chunk.interval, chunk.version) for chunk in not_hidden(chunks.values(), around)}
        shown += [
            row.id for row in mine if (row.interval, row.version) in seen and row.id not in hidden
        ]
    return shown


def _clashing(
    wanted: Iterable[tuple[Interval, str]], there: Iterable[tuple[Interval, str]]
) -> list[tuple[Interval, str]]:
    """Return the time chunks that overlap others of their version: neither would hide the other.

    With both visible the datasource could not be read. Of two unused ones, the longer one is
    allowed. Appends have one version for all times, so a day and an hour of it may overlap. Pending
    segments are ignored: their publish is refused instead (`commits.beside`).
    """
    at: defaultdict[str, TimeIndex[Interval]] = defaultdict(TimeIndex)
    for interval, version in there:
        at[version].add(interval, interval)
    found = []
    for interval, version in sorted(wanted, key=lambda one: (-one[0].length_ms, one)):
        if any(other != interval for other in at[version].overlapping(interval)):
            found.append((interval, version))
        else:
            at[version].add(interval, interval)
    return found


def _rewritten(used: Iterable[SegmentRow], wanted: Iterable[SegmentRow]) -> set[str]:
    """Return the ids of unused segments of one chunk whose root numbers others cover.

    A segment that a newer group has partly rewritten is left out, and so is a group that rewrote a
    part of the used ones: rows would be visible twice.
    """
    kept = Counter(roots_of(row.partition_number, row.payload) for row in used)
    asked: dict[RootRange, list[str]] = {}
    for row in wanted:
        asked.setdefault(roots_of(row.partition_number, row.payload), []).append(row.id)
    standing = [roots for roots, count in kept.items() if count == roots.group_size]
    hidden: set[str] = set()
    for roots, ids in sorted(asked.items(), key=lambda one: one[0].minor_version, reverse=True):
        if any(roots.overlaps(other) and not roots.overshadows(other) for other in standing):
            hidden.update(ids)
        elif kept[roots] + len(ids) == roots.group_size:
            standing.append(roots)
    return hidden
