"""Task actions: requests of a task to the overlord, their JSON forms and the forms of the answers.

Every action may be repeated after a lost answer: repeating it has no further effect. Defines the
wire form only; `penstock.indexing.overlord.action_handler` performs the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.indexing.actions.action_json import segment_from_json, segment_to_json
from penstock.indexing.actions.locks import (
    LockAnswer,
    LockedSegment,
    LockList,
    LockRelease,
    LockTryAcquire,
    TaskLockView,
)
from penstock.indexing.actions.segment_allocation import (
    AllocatedSegment,
    SegmentAllocate,
    SegmentDivision,
    allocated_to_json,
)
from penstock.indexing.actions.segment_publish import (
    PUBLISH_TYPES,
    PublishSegments,
    outcome_to_json,
)
from penstock.indexing.actions.segments import (
    DatasourceList,
    MarkSegmentsAsUnused,
    MarkSegmentsToUpgrade,
    RetrieveSegmentsById,
    SegmentListUnused,
    SegmentListUsed,
    SegmentNuke,
)
from penstock.indexing.actions.streams import (
    AnnounceFiles,
    CheckPointDataSourceMetadata,
)

__all__ = [
    "AllocatedSegment",
    "AnnounceFiles",
    "AnyAction",
    "CheckPointDataSourceMetadata",
    "DatasourceList",
    "LockAnswer",
    "LockList",
    "LockRelease",
    "LockTryAcquire",
    "LockedSegment",
    "MarkSegmentsAsUnused",
    "MarkSegmentsToUpgrade",
    "PublishSegments",
    "RetrieveSegmentsById",
    "SegmentAllocate",
    "SegmentDivision",
    "SegmentListUnused",
    "SegmentListUsed",
    "SegmentNuke",
    "TaskLockView",
    "action_from_json",
    "allocated_to_json",
    "outcome_to_json",
    "segment_from_json",
    "segment_to_json",
]

AnyAction = (
    AnnounceFiles
    | CheckPointDataSourceMetadata
    | DatasourceList
    | LockList
    | LockRelease
    | LockTryAcquire
    | MarkSegmentsAsUnused
    | MarkSegmentsToUpgrade
    | PublishSegments
    | RetrieveSegmentsById
    | SegmentAllocate
    | SegmentDivision
    | SegmentListUnused
    | SegmentListUsed
    | SegmentNuke
)

_READERS: Final[Mapping[str, Callable[[Mapping[str, object]], AnyAction]]] = {
    "announceFiles": AnnounceFiles.from_json,
    "checkPointDataSourceMetadata": CheckPointDataSourceMetadata.from_json,
    "datasourceList": DatasourceList.from_json,
    "lockList": LockList.from_json,
    "lockRelease": LockRelease.from_json,
    "lockTryAcquire": LockTryAcquire.from_json,
    "markSegmentsAsUnused": MarkSegmentsAsUnused.from_json,
    "markSegmentsToUpgrade": MarkSegmentsToUpgrade.from_json,
    "retrieveSegmentsById": RetrieveSegmentsById.from_json,
    "segmentAllocate": SegmentAllocate.from_json,
    "segmentDivision": SegmentDivision.from_json,
    "segmentListUnused": SegmentListUnused.from_json,
    "segmentListUsed": SegmentListUsed.from_json,
    "segmentNuke": SegmentNuke.from_json,
    **dict.fromkeys(PUBLISH_TYPES, PublishSegments.from_json),
}


def action_from_json(value: object) -> AnyAction:
    """Read an action.

    Raises:
        InvalidRequest: Its type is unknown, or its form does not match the type.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("an action must be a JSON object with a type", place="action")
    kind = value.get("type")
    reader = _READERS.get(str(kind))
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise InvalidRequest(f"unknown action {kind!r}: use one of {known}", place="action.type")
    try:
        return reader(value)
    except PenstockError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the action {kind} is not well formed: {error!r}") from error
