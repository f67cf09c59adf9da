"""Actions of streaming tasks: announce unpublished files and full sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.indexing.actions.action_json import objects
from penstock.indexing.engine import DataFile
from penstock.indexing.engine_json import data_file_from_json, data_file_to_json
from penstock.indexing.sequences import Offsets, offsets_from_json, offsets_to_json, range_from_json


@dataclass(frozen=True, slots=True)
class AnnounceFiles:
    """Announce all persisted, queryable files of a sequence, replacing earlier announcements.

    They hold the events from `start` to `end` of the topic with this id; an empty id is any topic.
    """

    sequence_name: str
    files: tuple[DataFile, ...]
    start: Offsets
    end: Offsets
    topic_id: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        files = [data_file_to_json(file) for file in self.files]
        return {
            "type": "announceFiles",
            "sequenceName": self.sequence_name,
            "files": files,
            "startMetadata": offsets_to_json(self.start),
            "endMetadata": offsets_to_json(self.end),
            "topicId": self.topic_id,
        }

    def parse_result(self, value: object) -> bool:
        """Read the answer: false if the sequence is already published."""
        return value is True

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> AnnounceFiles:
        """Read the JSON form."""
        files = tuple(data_file_from_json(item) for item in objects(value["files"]))
        # Peons of an earlier release do not send offsets.
        start, end = range_from_json(value.get("startMetadata", {}), value.get("endMetadata", {}))
        return cls(str(value["sequenceName"]), files, start, end, str(value.get("topicId", "")))


@dataclass(frozen=True, slots=True)
class CheckPointDataSourceMetadata:
    """Report that the open sequence, which started at `start`, is full, to agree on its end."""

    start: Offsets

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        start = offsets_to_json(self.start)
        return {"type": "checkPointDataSourceMetadata", "checkpointMetadata": start}

    def parse_result(self, value: object) -> bool:
        """Read the answer: true if the overlord accepts the request."""
        return value is True

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> CheckPointDataSourceMetadata:
        """Read the JSON form."""
        return cls(offsets_from_json(value["checkpointMetadata"]))
