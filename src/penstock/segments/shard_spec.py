"""Shard specs: a segment's place among those of its interval and version, in Druid's forms.

Owns the kinds, their JSON, and which may share a time chunk. The timeline decides visibility, from
`number`, `core_partitions`, and for a few kinds the `layout`.

    none                 alone in its chunk
    numbered             0 to core - 1 belong together; higher numbers were appended
    linear               each is independent
    hashed               numbered; the rows of one bucket of a hash
    single, range        numbered; the rows of a range of one or more dimensions. Old ones do not
                         have a core count: their ranges must form a chain
    dim_value_set        numbered; lists the values of some dimensions
    numbered_overwrite   replaces a range of root numbers once its atomic update group is full
    tombstone            no rows; hides older segments

Invariants: everything here is immutable and hashable; a spec that was read from JSON is written as
the same JSON. The kinds that exist only while Druid ingests (``building_*``, ``bucket_*``) are
refused: a published segment never has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from penstock.core.errors import InvalidRequest
from penstock.core.timeline.chunks import (
    OVERWRITE_END,
    OVERWRITE_START,
    UNKNOWN_CORE,
    Key,
    KeyRange,
    RootRange,
)
from penstock.segments.json_fields import JsonFields

ShardKind: TypeAlias = Literal[
    "none",
    "numbered",
    "linear",
    "hashed",
    "single",
    "range",
    "dim_value_set",
    "numbered_overwrite",
    "tombstone",
]
HASH_FUNCTION: Final = "murmur3_32_abs"

_PLACE: Final = "segment.shardSpec"
# Former names, and the current name of each.
_ALIASES: Final = {"single_dim": "single"}


@dataclass(frozen=True, slots=True)
class HashBucket:
    """Rows whose hash of `dimensions` (empty means all) is `bucket` of `buckets`.

    `function` is None in segments from before Druid 0.21, which cannot be pruned.
    """

    bucket: int
    buckets: int
    dimensions: tuple[str, ...] = ()
    function: str | None = HASH_FUNCTION


@dataclass(frozen=True, slots=True)
class ValueSets:
    """The values that some dimensions have; other dimensions may have any.

    `types` has the types of values that are not texts, in Druid's form.
    """

    values: tuple[tuple[str, Key], ...]
    types: tuple[tuple[str, str], ...] = ()


Layout: TypeAlias = HashBucket | KeyRange | ValueSets | RootRange | None


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A segment's place among those of its interval and version.

    The numbers 0 to `core_partitions` - 1 belong together: none is visible before all exist.
    Higher numbers were appended later. `layout` has the additional fields of the kind.
    """

    partition_number: int = 0
    core_partitions: int = 0
    kind: ShardKind = "numbered"
    layout: Layout = None

    @classmethod
    def none(cls) -> ShardSpec:
        """Return the spec of a segment that is alone in its chunk."""
        return cls(0, 1, "none")

    @classmethod
    def linear(cls, number: int) -> ShardSpec:
        """Return the spec of an independent segment."""
        return cls(number, 0, "linear")

    @classmethod
    def tombstone(cls) -> ShardSpec:
        """Return the spec of a segment without rows or core, so that appends become visible."""
        return cls(0, 0, "tombstone")

    @classmethod
    def hashed(cls, number: int, core: int, bucket: HashBucket | None = None) -> ShardSpec:
        """Return the spec of a hash bucket, by default the `number`-th of `core` over all rows."""
        return cls(number, core, "hashed", bucket or HashBucket(number, max(core, 1)))

    @classmethod
    def single(
        cls, number: int, core: int, dimension: str, start: str | None, end: str | None
    ) -> ShardSpec:
        """Return the spec of a range of one dimension."""
        keys = KeyRange(
            (dimension,), None if start is None else (start,), None if end is None else (end,)
        )
        return cls(number, core, "single", keys)

    @classmethod
    def range(
        cls, number: int, core: int, dimensions: Sequence[str], start: Key | None, end: Key | None
    ) -> ShardSpec:
        """Return the spec of a range of several dimensions."""
        return cls(number, core, "range", KeyRange(tuple(dimensions), start, end))

    @classmethod
    def overwrite(cls, number: int, roots: RootRange) -> ShardSpec:
        """Return the spec of a segment that replaces a range of root numbers.

        Raises:
            InvalidRequest: A number is out of its bounds.
        """
        if not OVERWRITE_START <= number < OVERWRITE_END:
            raise InvalidRequest(
                f"partition {number} cannot overwrite: its number must be from {OVERWRITE_START} "
                f"to {OVERWRITE_END - 1}",
                place=f"{_PLACE}.partitionId",
            )
        if not 0 <= roots.start < roots.end or roots.minor_version < 1 or roots.group_size < 1:
            raise InvalidRequest(
                f"partition {number} cannot overwrite {roots}: the range must not be empty, and "
                "minor version and group size must be at least 1",
                place=_PLACE,
            )
        return cls(number, 0, "numbered_overwrite", roots)

    @property
    def is_chained(self) -> bool:
        """Whether its set is complete when the ranges have no gap: its core count is unknown."""
        return self.core_partitions == UNKNOWN_CORE

    @property
    def roots(self) -> RootRange:
        """Its root numbers: its own number, unless it overwrites others."""
        if isinstance(self.layout, RootRange):
            return self.layout
        return RootRange.of(self.partition_number)

    @property
    def place(self) -> RootRange | KeyRange | None:
        """Additional information for the timeline; None for nearly all kinds."""
        if isinstance(self.layout, RootRange) or (
            self.is_chained and isinstance(self.layout, KeyRange)
        ):
            return self.layout
        return None

    @property
    def minor_version(self) -> int:
        """How many times its root numbers were overwritten; 0 unless it overwrites."""
        return self.layout.minor_version if isinstance(self.layout, RootRange) else 0

    def renumbered(self, number: int, core: int | None = None) -> ShardSpec:
        """Return this spec with another number and, unless None, another core count.

        It keeps the fields for pruning. The kinds that have no number among others (none,
        tombstone, overwriting), and linear with a core, become numbered.
        """
        core = self.core_partitions if core is None else core
        if self.kind in {"none", "tombstone", "numbered_overwrite"} or (
            self.kind == "linear" and core
        ):
            return ShardSpec(number, core)
        return replace(self, partition_number=number, core_partitions=core)

    def to_json(self) -> dict[str, object]:
        """Return Druid's JSON form."""
        number, core = self.partition_number, self.core_partitions
        match self.layout:
            case HashBucket() as hashed:
                return {
                    "type": self.kind,
                    "partitionNum": number,
                    "partitions": core,
                    "bucketId": hashed.bucket,
                    "numBuckets": hashed.buckets,
                    "partitionDimensions": list(hashed.dimensions),
                    "partitionFunction": hashed.function,
                }
            case KeyRange() as keys:
                return {
                    "type": self.kind,
                    **_keys_to_json(keys, one=self.kind == "single"),
                    "partitionNum": number,
                    # Druid reads and writes the unknown count as the number.
                    "numCorePartitions": core,
                }
            case ValueSets(values, types):
                return {
                    "type": self.kind,
                    "partitionNum": number,
                    "partitions": core,
                    "partitionDimensionValues": {name: list(found) for name, found in values},
                    **({"dimensionColumnTypes": dict(types)} if types else {}),
                }
            case RootRange() as roots:
                return {
                    "type": self.kind,
                    "partitionId": number,
                    "startRootPartitionId": roots.start,
                    "endRootPartitionId": roots.end,
                    "minorVersion": roots.minor_version,
                    "atomicUpdateGroupSize": roots.group_size,
                }
        if self.kind == "none":
            return {"type": self.kind}
        if self.kind == "linear":
            return {"type": self.kind, "partitionNum": number}
        return {"type": self.kind, "partitionNum": number, "partitions": core}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> ShardSpec:
        """Parse Druid's JSON form.

        Raises:
            InvalidRequest: Its kind is not one of published segments, or a field is invalid.
        """
        fields = JsonFields(value, _PLACE)
        kind = fields.text("type")
        read = _READERS.get(_ALIASES.get(kind, kind))
        if read is None:
            raise fields.wrong(
                "type",
                f"shard spec {kind!r} is not supported: no published segment has it; use "
                f"{', '.join(sorted(_READERS))}",
            )
        return read(fields)


def _keys_to_json(keys: KeyRange, *, one: bool) -> dict[str, object]:
    if one:
        return {
            "dimension": keys.dimensions[0],
            "start": None if keys.start is None else keys.start[0],
            "end": None if keys.end is None else keys.end[0],
        }
    return {
        "dimensions": list(keys.dimensions),
        "start": None if keys.start is None else list(keys.start),
        "end": None if keys.end is None else list(keys.end),
    }


def _read_numbered(fields: JsonFields) -> ShardSpec:
    return ShardSpec(fields.whole("partitionNum", 0), fields.whole("partitions", 0))


def _read_hashed(fields: JsonFields) -> ShardSpec:
    number, core = fields.whole("partitionNum", 0), fields.whole("partitions", 0)
    bucket = HashBucket(
        fields.whole("bucketId", number),
        fields.whole("numBuckets", core),
        fields.texts("partitionDimensions"),
        fields.optional_text("partitionFunction"),
    )
    return ShardSpec(number, core, "hashed", bucket)


def _read_single(fields: JsonFields) -> ShardSpec:
    return ShardSpec.single(
        fields.whole("partitionNum", 0),
        _read_core(fields),
        fields.text("dimension"),
        fields.optional_text("start"),
        fields.optional_text("end"),
    )


def _read_range(fields: JsonFields) -> ShardSpec:
    dimensions = fields.texts("dimensions")
    if not dimensions:
        raise fields.wrong("dimensions", "names no dimension: a range needs one or more")
    if fields.mapping("virtualColumns"):
        raise fields.wrong(
            "virtualColumns", "ranges of expressions are not supported: compact by plain dimensions"
        )
    start, end = fields.texts_or_nulls("start"), fields.texts_or_nulls("end")
    for key, bound in (("start", start), ("end", end)):
        if bound is not None and len(bound) != len(dimensions):
            raise fields.wrong(key, f"must have one value for each of {list(dimensions)}")
    return ShardSpec.range(
        fields.whole("partitionNum", 0), _read_core(fields), dimensions, start, end
    )


def _read_core(fields: JsonFields) -> int:
    count = fields.signed("numCorePartitions", UNKNOWN_CORE)
    return max(count, UNKNOWN_CORE)


def _read_value_sets(fields: JsonFields) -> ShardSpec:
    named = fields.mapping("partitionDimensionValues")
    inner = JsonFields(named, f"{_PLACE}.partitionDimensionValues")
    values = tuple((name, inner.texts_or_nulls(name) or ()) for name in named)
    types = fields.mapping("dimensionColumnTypes")
    kinds = JsonFields(types, f"{_PLACE}.dimensionColumnTypes")
    return ShardSpec(
        fields.whole("partitionNum", 0),
        fields.whole("partitions", 0),
        "dim_value_set",
        ValueSets(values, tuple((name, kinds.text(name)) for name in types)),
    )


def _read_overwrite(fields: JsonFields) -> ShardSpec:
    roots = RootRange(
        fields.whole("startRootPartitionId"),
        fields.whole("endRootPartitionId"),
        fields.whole("minorVersion"),
        fields.whole("atomicUpdateGroupSize"),
    )
    return ShardSpec.overwrite(fields.whole("partitionId"), roots)


_READERS: Final[dict[str, Callable[[JsonFields], ShardSpec]]] = {
    "none": lambda _: ShardSpec.none(),
    "numbered": _read_numbered,
    "linear": lambda fields: ShardSpec.linear(fields.whole("partitionNum", 0)),
    "hashed": _read_hashed,
    "single": _read_single,
    "range": _read_range,
    "dim_value_set": _read_value_sets,
    "numbered_overwrite": _read_overwrite,
    # Old ones have a core of 1, which hid segments that were appended to their chunk.
    "tombstone": lambda _: ShardSpec.tombstone(),
}
