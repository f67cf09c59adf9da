"""What a task may ask of the overlord: each action's JSON form and the form of its answer.

Every action may be repeated after a lost answer: its effect is the same as of one. Owns the wire
form only; `penstock.indexing.overlord.actionhandler` does them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.intervals import Interval
from penstock.indexing.engine import DataFile, RowCounts
from penstock.indexing.filejson import (
    counts_from_json,
    counts_to_json,
    data_file_from_json,
    data_file_to_json,
    whole_number,
)
from penstock.indexing.sequences import Offsets, offsets_from_json, offsets_to_json
from penstock.storage.metadata import PublishOutcome, SegmentRow


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A version and a partition number of a time chunk, kept for one part of a sequence."""

    interval: Interval
    version: str
    partition_number: int
    core_partitions: int


@dataclass(frozen=True, slots=True)
class SegmentAllocate:
    """Places for the parts of a sequence: for part n of a chunk, ask for the chunk n + 1 times.

    The same question gets the same answer, so a publish that was cut goes on under the same ids.
    """

    sequence_name: str
    intervals: tuple[Interval, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        intervals = [str(interval) for interval in self.intervals]
        name = self.sequence_name
        return {"type": "segmentAllocate", "sequenceName": name, "intervals": intervals}

    def parse_result(self, value: object) -> tuple[SegmentPlace, ...]:
        """Read the answer: one place for each interval."""
        return tuple(
            SegmentPlace(
                Interval.parse(str(item["interval"])),
                str(item["version"]),
                whole_number(item["partitionNumber"]),
                whole_number(item["corePartitions"]),
            )
            for item in objects(value)
        )


@dataclass(frozen=True, slots=True)
class SegmentTransactionalInsert:
    """Publish a sequence: its segments and the offsets they stand for, both or neither.

    The offsets are of the topic with `topic_id`, if that is known.
    """

    sequence_name: str
    segments: tuple[SegmentRow, ...]
    start: Offsets
    end: Offsets
    counts: RowCounts
    topic_id: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "type": "segmentTransactionalInsert",
            "sequenceName": self.sequence_name,
            "segments": [segment_to_json(segment) for segment in self.segments],
            "startMetadata": offsets_to_json(self.start),
            "endMetadata": offsets_to_json(self.end),
            "counts": counts_to_json(self.counts),
            "topicId": self.topic_id,
        }

    def parse_result(self, value: object) -> PublishOutcome:
        """Read the answer."""
        (item,) = objects([value])
        return PublishOutcome(
            ok=bool(item["success"]),
            retryable=bool(item["retryable"]),
            already_published=bool(item["alreadyPublished"]),
            reason=str(item["errorMsg"]),
            inserted=tuple(str(name) for name in strings(item["segments"])),
        )


@dataclass(frozen=True, slots=True)
class RetrieveSegmentsById:
    """Which of these segments are published."""

    ids: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "retrieveSegmentsById", "segments": list(self.ids)}

    def parse_result(self, value: object) -> tuple[SegmentRow, ...]:
        """Read the answer."""
        return tuple(segment_from_json(item) for item in objects(value))


@dataclass(frozen=True, slots=True)
class AnnounceFiles:
    """All files of a sequence that are persisted and may be queried, in place of those before."""

    sequence_name: str
    files: tuple[DataFile, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        files = [data_file_to_json(file) for file in self.files]
        return {"type": "announceFiles", "sequenceName": self.sequence_name, "files": files}

    def parse_result(self, value: object) -> bool:
        """Read the answer: false when the sequence is published already."""
        return value is True


@dataclass(frozen=True, slots=True)
class UpdateLocation:
    """Where the task's peon answers."""

    host: str
    port: int

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "updateLocation", "host": self.host, "port": self.port}

    def parse_result(self, value: object) -> None:
        """Read the answer, which says nothing."""


@dataclass(frozen=True, slots=True)
class CheckPointDataSourceMetadata:
    """The task's open sequence, which began at `start`, is full: agree on its end."""

    start: Offsets

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        start = offsets_to_json(self.start)
        return {"type": "checkPointDataSourceMetadata", "checkpointMetadata": start}

    def parse_result(self, value: object) -> bool:
        """Read the answer: true when the overlord will see to it."""
        return value is True


AnyAction = (
    SegmentAllocate
    | SegmentTransactionalInsert
    | RetrieveSegmentsById
    | AnnounceFiles
    | UpdateLocation
    | CheckPointDataSourceMetadata
)


def action_from_json(value: object) -> AnyAction:
    """Read an action.

    Raises:
        InvalidRequest: It is of no known kind, or not of the kind's form.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("an action must be a JSON object with a type", place="action")
    kind = value.get("type")
    reader = _READERS.get(str(kind))
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise InvalidRequest(f"{kind!r} is no action: there are {known}", place="action.type")
    try:
        return reader(value)
    except PenstockError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the action {kind} is not well formed: {error!r}") from error


def _read_allocate(value: Mapping[str, object]) -> SegmentAllocate:
    intervals = tuple(Interval.parse(text) for text in strings(value["intervals"]))
    return SegmentAllocate(str(value["sequenceName"]), intervals)


def _read_insert(value: Mapping[str, object]) -> SegmentTransactionalInsert:
    return SegmentTransactionalInsert(
        sequence_name=str(value["sequenceName"]),
        segments=tuple(segment_from_json(item) for item in objects(value["segments"])),
        start=offsets_from_json(value["startMetadata"]),
        end=offsets_from_json(value["endMetadata"]),
        counts=counts_from_json(value["counts"]),
        topic_id=str(value.get("topicId", "")),
    )


def _read_retrieve(value: Mapping[str, object]) -> RetrieveSegmentsById:
    return RetrieveSegmentsById(tuple(strings(value["segments"])))


def _read_announce(value: Mapping[str, object]) -> AnnounceFiles:
    files = tuple(data_file_from_json(item) for item in objects(value["files"]))
    return AnnounceFiles(str(value["sequenceName"]), files)


def _read_location(value: Mapping[str, object]) -> UpdateLocation:
    return UpdateLocation(str(value["host"]), whole_number(value["port"]))


def _read_checkpoint(value: Mapping[str, object]) -> CheckPointDataSourceMetadata:
    return CheckPointDataSourceMetadata(offsets_from_json(value["checkpointMetadata"]))


_READERS: Final[Mapping[str, Callable[[Mapping[str, object]], AnyAction]]] = {
    "segmentAllocate": _read_allocate,
    "segmentTransactionalInsert": _read_insert,
    "retrieveSegmentsById": _read_retrieve,
    "announceFiles": _read_announce,
    "updateLocation": _read_location,
    "checkPointDataSourceMetadata": _read_checkpoint,
}


def place_to_json(place: SegmentPlace) -> dict[str, object]:
    """Return a place's JSON form."""
    return {
        "interval": str(place.interval),
        "version": place.version,
        "partitionNumber": place.partition_number,
        "corePartitions": place.core_partitions,
    }


def outcome_to_json(outcome: PublishOutcome) -> dict[str, object]:
    """Return a publish outcome's JSON form, with Druid's names where it has them."""
    return {
        "success": outcome.ok,
        "retryable": outcome.retryable,
        "alreadyPublished": outcome.already_published,
        "errorMsg": outcome.reason,
        "segments": list(outcome.inserted),
    }


def segment_to_json(row: SegmentRow) -> dict[str, object]:
    """Return a segment row's JSON form."""
    return {
        "id": row.id,
        "dataSource": row.datasource,
        "interval": str(row.interval),
        "version": row.version,
        "partitionNumber": row.partition_number,
        "corePartitions": row.core_partitions,
        "payload": dict(row.payload),
    }


def segment_from_json(value: Mapping[str, object]) -> SegmentRow:
    """Read a segment row."""
    (payload,) = objects([value["payload"]])
    return SegmentRow(
        id=str(value["id"]),
        datasource=str(value["dataSource"]),
        interval=Interval.parse(str(value["interval"])),
        version=str(value["version"]),
        partition_number=whole_number(value["partitionNumber"]),
        core_partitions=whole_number(value["corePartitions"]),
        payload=payload,
    )


def objects(value: object) -> list[dict[str, object]]:
    """Return a list of JSON objects, or raise TypeError."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TypeError("not a list of objects")
    return value


def strings(value: object) -> list[str]:
    """Return a list of texts, or raise TypeError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("not a list of texts")
    return value
