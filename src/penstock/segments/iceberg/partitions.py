"""Partitions of an Iceberg table, and the division of its files among manifests. Pure.

A table has two partition specs: one without fields, and one with a part of the time, such as its
day, for files whose interval lies in one such part. Engines skip manifests by these values. Source
of the transforms: the Iceberg table specification, "Partition Transforms".
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.instants import month_of
from penstock.core.intervals import Interval
from penstock.segments.iceberg.manifest_files import PartitionField, PartitionSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNPARTITIONED: Final = PartitionSpec(0)
MANIFEST_FILES_MIN: Final = 1_000
"""Manifests have at least this many files on average, if the table has as many."""
MANIFEST_FILES_MAX: Final = 8_000

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_WIDTH_MAX: Final = 1 << 30
_SLACK: Final = 2
"""A division in use is kept until it has this many times too few or too many files."""
_KEY: Final = re.compile(
    r"(?P<width>\d{1,10})(?P<bucket>[xm]\d+)(?:\.\d+of(?P<parts>\d{1,10}))?", re.ASCII
)

# From the finest to the coarsest: hours, days, months, years since 1970.
_TRANSFORMS: Final[Mapping[str, Callable[[int], int]]] = {
    "hour": lambda ms: ms // _HOUR_MS,
    "day": lambda ms: ms // _DAY_MS,
    "month": month_of,
    "year": lambda ms: month_of(ms) // 12,
}


def _partition_name(transform: str) -> str:
    return f"__time_{transform}"


PARTITION_NAMES: Final = frozenset(map(_partition_name, _TRANSFORMS))
"""The names that partitions may have; no column of a table has the name of a partition."""


def chosen_spec(intervals: Sequence[Interval], time_id: int) -> PartitionSpec:
    """Return the spec with the finest part of time that holds half of the files, or none."""
    for name in _TRANSFORMS:
        spec = PartitionSpec(1, PartitionField(time_id, _partition_name(name), name))
        fitting = sum(value_of(spec, interval) is not None for interval in intervals)
        if intervals and 2 * fitting >= len(intervals):
            return spec
    return UNPARTITIONED


def value_of(spec: PartitionSpec, interval: Interval) -> int | None:
    """Return the partition of the rows of an interval; None: they are in several, or in none.

    Times before 1970 are in none: DuckDB rounds them up, and would skip files that have rows.
    """
    if spec.field is None or interval.start_ms < 0:
        return None
    transform = _TRANSFORMS[spec.field.transform]
    first, last = transform(interval.start_ms), transform(interval.end_ms - 1)
    return first if first == last else None


def may_have_rows(spec: PartitionSpec, values: tuple[int, int], time: Interval) -> bool:
    """Return whether files with values of a spec between two ones may have rows in an interval."""
    if spec.field is None or time.is_empty:
        return not time.is_empty
    transform = _TRANSFORMS[spec.field.transform]
    low, high = values
    return high >= transform(time.start_ms) and low <= transform(time.end_ms - 1)


def manifest_groups(
    spec: PartitionSpec,
    intervals: Sequence[Interval],
    paths: Sequence[str],
    previous: Iterable[str] = (),
) -> dict[str, list[int]]:
    """Return the files of each manifest, as places in the given order, by the manifest's key.

    Files that are near to each other in time share a manifest, so that a publish rewrites few and a
    query reads few. All files of a manifest have a value of the spec, or none has one. A division
    that is in use is kept until it is clearly worse than another one: each change of it rewrites
    manifests.

    Args:
        spec: The spec of files that have a value of it.
        intervals: The intervals of the files.
        paths: The paths of the files.
        previous: The keys of the manifests in use, without the number of the spec.
    """
    count = len(intervals)
    if not count:
        return {}
    known = [match for key in previous if (match := _KEY.fullmatch(key))]
    starts = np.fromiter((one.start_ms for one in intervals), np.int64, count)
    ends = np.fromiter((one.end_ms for one in intervals), np.int64, count)
    hours = starts // _HOUR_MS
    width = _width(hours, {int(match["width"]) for match in known})
    parts_before = {
        match["bucket"]: int(match["parts"] or 1) for match in known if int(match["width"]) == width
    }
    buckets, bucket_of, counts = np.unique(hours // width, return_inverse=True, return_counts=True)
    # Each bucket has the files with a value, and those without one.
    places = 2 * bucket_of + _have_values(spec, starts, ends)
    order = np.argsort(places, kind="stable")
    bounds = np.flatnonzero(np.diff(places[order])) + 1
    found: dict[str, list[int]] = {}
    for members in np.split(order, bounds):
        place = int(places[members[0]])
        bucket, files = int(buckets[place // 2]), int(counts[place // 2])
        id_ = spec.id if place % 2 else UNPARTITIONED.id
        sign = f"x{bucket}" if bucket >= 0 else f"m{-bucket}"
        key = f"{id_}s{width}{sign}"
        parts = _parts(files, parts_before.get(sign, 0))
        if parts == 1:
            found[key] = members.tolist()
            continue
        for member in members.tolist():
            part = zlib.crc32(paths[member].encode()) % parts
            found.setdefault(f"{key}.{part}of{parts}", []).append(member)
    return found


def _width(hours: NDArray[np.int64], before: Collection[int]) -> int:
    """Return the width of buckets: the smallest with enough files, or the one in use."""

    def files_per_bucket(width: int) -> float:
        return len(hours) / len(np.unique(hours // width))

    if len(before) == 1:
        (width,) = before
        is_too_fine = files_per_bucket(width) * _SLACK < MANIFEST_FILES_MIN
        is_too_coarse = width > 1 and (files_per_bucket(width // 2) >= MANIFEST_FILES_MIN * _SLACK)
        if not is_too_coarse and (not is_too_fine or len(np.unique(hours // width)) == 1):
            return width
    distinct, width = np.unique(hours), 1
    while (
        width < _WIDTH_MAX and len(distinct) > 1 and len(hours) < MANIFEST_FILES_MIN * len(distinct)
    ):
        distinct, width = np.unique(distinct // 2), width * 2
    return width


def _parts(files: int, before: int) -> int:
    """Return the number of manifests of a bucket, a power of two."""
    if before and files <= before * MANIFEST_FILES_MAX < files * 2 * _SLACK:
        return before
    return 1 << max(0, int(np.ceil(np.log2(files / MANIFEST_FILES_MAX))))


def _have_values(
    spec: PartitionSpec, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return whether each interval lies in one part of time, as `value_of` does."""
    if spec.field is None:
        return np.zeros(len(starts), np.bool_)
    unit = {"hour": "h", "day": "D", "month": "M", "year": "Y"}[spec.field.transform]
    firsts, lasts = (
        found.astype("datetime64[ms]").astype(f"datetime64[{unit}]") for found in (starts, ends - 1)
    )
    found: NDArray[np.bool_] = (firsts == lasts) & (starts >= 0)
    return found
