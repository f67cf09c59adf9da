"""The publish action: segments and the offsets that they contain, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.indexing.actions.action_json import (
    intervals,
    objects,
    segment_from_json,
    segment_to_json,
    strings,
)
from penstock.indexing.engine import RowCounts
from penstock.indexing.engine_json import counts_from_json, counts_to_json
from penstock.indexing.sequences import Offsets, offsets_to_json, range_from_json
from penstock.storage.metadata import PublishBasis, PublishOutcome, SegmentRow
from penstock.storage.metadata.rows.publish import PublishKind

PUBLISH_TYPES: Final[Mapping[str, PublishKind]] = {
    "segmentTransactionalInsert": "insert",
    "segmentTransactionalAppend": "append",
    "segmentTransactionalReplace": "replace",
}
_TYPE_OF: Final = {kind: name for name, kind in PUBLISH_TYPES.items()}


@dataclass(frozen=True, slots=True)
class PublishSegments:
    """Publish a sequence: its segments and the offsets that they contain, both or neither.

    Attributes:
        sequence_name: The sequence to publish; a batch task's id. The answer to a second publish
            is that it is already published.
        segments: The segments that become visible.
        start: Start offsets of a stream's sequence; None for a batch task, as `end`.
        end: Exclusive end offsets of the sequence.
        counts: Row counts to add to the datasource's.
        topic_id: The id of the topic, if known.
        kind: `insert` under exclusive or shared locks, `append` under APPEND locks, `replace` under
            a REPLACE lock.
        basis: The segments that the task listed and read, if it replaces them. The publish is
            refused if any of them were hidden, or others shown again, since then.
        overwritten: The ids of segments that some of `segments` rewrite under their version.
    """

    sequence_name: str
    segments: tuple[SegmentRow, ...]
    start: Offsets | None
    end: Offsets | None
    counts: RowCounts
    topic_id: str = ""
    kind: PublishKind = "insert"
    basis: PublishBasis | None = None
    overwritten: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "type": _TYPE_OF[self.kind],
            "sequenceName": self.sequence_name,
            "segments": [segment_to_json(segment) for segment in self.segments],
            "startMetadata": None if self.start is None else offsets_to_json(self.start),
            "endMetadata": None if self.end is None else offsets_to_json(self.end),
            "counts": counts_to_json(self.counts),
            "topicId": self.topic_id,
            "basis": None if self.basis is None else _basis_to_json(self.basis),
            "segmentsToBeOverwritten": list(self.overwritten),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> PublishSegments:
        """Read the JSON form."""
        basis, is_batch = value.get("basis"), value["startMetadata"] is value["endMetadata"] is None
        start, end = (
            (None, None)
            if is_batch
            else range_from_json(value["startMetadata"], value["endMetadata"])
        )
        return cls(
            sequence_name=str(value["sequenceName"]),
            segments=tuple(segment_from_json(item) for item in objects(value["segments"])),
            start=start,
            end=end,
            counts=counts_from_json(value["counts"]),
            topic_id=str(value.get("topicId", "")),
            kind=PUBLISH_TYPES[str(value["type"])],
            basis=None if basis is None else _basis_from_json(basis),
            overwritten=tuple(strings(value.get("segmentsToBeOverwritten", []))),
        )

    def parse_result(self, value: object) -> PublishOutcome:
        """Read the answer."""
        (item,) = objects([value])
        return PublishOutcome(
            ok=bool(item["success"]),
            retryable=bool(item["retryable"]),
            already_published=bool(item["alreadyPublished"]),
            reason=str(item["errorMsg"]),
            inserted=tuple(strings(item["segments"])),
            outdated_by=tuple(strings(item.get("outdatedBy", []))),
            earlier_task=str(item.get("earlierTask", "")),
        )


def outcome_to_json(outcome: PublishOutcome) -> dict[str, object]:
    """Return a publish outcome's JSON form, with Druid's names where Druid has them."""
    return {
        "success": outcome.ok,
        "retryable": outcome.retryable,
        "alreadyPublished": outcome.already_published,
        "errorMsg": outcome.reason,
        "segments": list(outcome.inserted),
        "outdatedBy": list(outcome.outdated_by),
        "earlierTask": outcome.earlier_task,
    }


def _basis_to_json(basis: PublishBasis) -> dict[str, object]:
    return {
        "intervals": [str(interval) for interval in basis.intervals],
        "shown": sorted(basis.shown),
        "hidden": sorted(basis.hidden),
    }


def _basis_from_json(value: object) -> PublishBasis:
    (item,) = objects([value])
    shown, hidden = strings(item["shown"]), strings(item["hidden"])
    return PublishBasis(intervals(item["intervals"]), frozenset(shown), frozenset(hidden))
