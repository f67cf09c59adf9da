"""Checks of the segments and files that a task publishes or announces: only its own.

A request of a task comes from its peon, or from a thief of its token. Queries read the files that
published segments and announcements name. So without these checks, the token of one task would show
every file that queries can read as rows of the task's datasource.

| a task names | it must be |
|---|---|
| a segment | of its datasource, in one form everywhere in the request |
| the file of a segment | a push of this segment, or in an attempt of this task |
| an announced file | a data file in a folder of this task on a registered worker |
| the type of a column | the name of a type, without other SQL: queries have it in their text |

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.indexing.task.task_folder import is_data_file_of
from penstock.segments.deep_storage import LOAD_SPEC_TYPE
from penstock.segments.layout import is_attempt_of, is_push_of
from penstock.segments.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.indexing.engine import DataFile
    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.metadata import SegmentRow

_TYPE: Final = re.compile(
    r"(?P<open>(?:array<)*)[a-z][a-z0-9_]*(?:\(\d{1,3}(?:, ?\d{1,3})?\))?(?P<close>>*)",
    re.ASCII | re.IGNORECASE,
)
_ARRAY: Final = len("array<")
_TYPE_CHARACTERS_MAX: Final = 200


def require_own_segments(task: TaskSpec, rows: Iterable[SegmentRow]) -> None:
    """Return if a task may publish these segments.

    Raises:
        InvalidRequest: A segment, its file or a type of its columns is not as above.
    """
    for row in rows:
        place = f"action.segments {row.id}"
        segment = Segment.from_json(row.payload)
        if segment.datasource != task.datasource:
            raise InvalidRequest(
                f"task {task.id} publishes to datasource {task.datasource}, and not to"
                f" {quoted(segment.datasource)}",
                place=place,
            )
        if segment.to_row() != row:
            raise InvalidRequest(
                "the segment and its payload differ in their id, interval, version or partition:"
                " send the same in both",
                place=place,
            )
        _require_types(segment.columns, place)
        if not _is_own(task, segment):
            raise InvalidRequest(
                f"the load spec {quoted(str(dict(segment.load_spec)))} does not name a file of this"
                f" segment that task {task.id} wrote: push the file to the deep storage first",
                place=place,
            )


def require_own_files(task: TaskSpec, files: Iterable[DataFile], bases: Collection[str]) -> None:
    """Return if a task may announce these files.

    Args:
        task: The task.
        files: The files.
        bases: The folders of all workers that have folders of tasks.

    Raises:
        InvalidRequest: A file or a type of its columns is not as above.
    """
    for file in files:
        _require_types(file.columns, f"action.files {quoted(file.path)}")
        if not any(is_data_file_of(file.path, base, task.id) for base in bases):
            raise InvalidRequest(
                f"{quoted(file.path)} is not a data file in the folder of task {task.id} on a"
                " worker: start the worker again if its folders were moved",
                place="action.files",
            )


def _is_own(task: TaskSpec, segment: Segment) -> bool:
    if segment.is_tombstone:
        return segment.load_spec == {"type": "tombstone"}
    path = segment.load_spec.get("path")
    if segment.load_spec != {"type": LOAD_SPEC_TYPE, "path": path} or not isinstance(path, str):
        return False
    return is_push_of(path, segment.id) or is_attempt_of(path, task.datasource, task.id)


def _require_types(columns: Iterable[tuple[str, str]], place: str) -> None:
    for name, kind in columns:
        found = _TYPE.fullmatch(kind) if len(kind) <= _TYPE_CHARACTERS_MAX else None
        if found is None or len(found["open"]) != _ARRAY * len(found["close"]):
            raise InvalidRequest(
                f"column {quoted(name)} has the type {quoted(kind)}: use the name of a type of"
                " Spark SQL, such as bigint or array<string>",
                place=place,
            )
