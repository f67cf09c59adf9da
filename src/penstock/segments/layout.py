"""Names in deep storage: the paths of segments' files below the root.

    <datasource>/<start>_<end>/<version>/<partition>/<unique>/part.parquet    pushed by tasks
    <datasource>/attempts/<task>/<attempt>/…/<any name>                       written by Spark
    ~projections/<datasource>/<digest>/<name>.parquet                         aggregates of files
    ~iceberg/<datasource>/metadata/<name>                                     of Iceberg tables
    <datasource>/_delta_log/<name>                                            of Delta tables
    <datasource>/_delta_rows/<name>.parquet                                   copies for them

A batch task gives each call of its engine its own folder, an **attempt**; the files that its
publish names are segments at that path, all other files there are left over. Aggregates of a
projection are derived from a segment's file and are not segments: no datasource's folder has their
name. A Delta table is the folder of its datasource, because paths in its log are relative to the
table; no interval and no version has a name that begins with an underscore.
Invariant: every name is one path element of letters, digits and a few characters that have no
special meaning in file systems, object stores and globs.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time

if TYPE_CHECKING:
    from penstock.segments.segment import SegmentId

FILE_NAME = "part.parquet"
TEMPORARY_NAME = f"{FILE_NAME}.tmp"
_NAME_BYTES_MAX = 200
_TASK_SIGNS_MAX = 100
# No interval has this name, and it does not begin with a character that hides it from Spark.
_ATTEMPTS = "attempts"
_TIME = r"\d{4,}-\d\d-\d\dT\d\d_\d\d_\d\d\.\d{3}Z"
_SEGMENT_FILE = re.compile(
    rf"[^/]+/{_TIME}_{_TIME}/[^/]+/\d+/[^/]+/(?:{re.escape(FILE_NAME)}|{re.escape(TEMPORARY_NAME)})"
)
_ATTEMPT_FILE = re.compile(rf"[^/]+/{_ATTEMPTS}/[^/]+/[^/]+/.+")
_SIGNS = frozenset("._-=+@")
# In the name of a datasource a tilde occurs only around the number of a character.
PROJECTIONS = "~projections"
# Metadata of datasources as Iceberg tables; like projections, it can be written again.
ICEBERG = "~iceberg"
# Entries and checkpoints of a Delta table; the format has this name.
DELTA_LOG = "_delta_log"
# Copies of the visible rows of files, for Delta tables. Engines do not vacuum such folders.
DELTA_ROWS = "_delta_rows"
# For files that a rebuild of the metadata could not name, under their paths from the root.
LEFT_OUT = "~left-out"


def relative_folder(segment_id: SegmentId, unique: str) -> str:
    """Return the folder of one push of a segment.

    Raises:
        InvalidRequest: A part of the id is not a valid name.
    """
    interval = segment_id.interval
    parts = (
        ("datasource", segment_id.datasource),
        ("interval", f"{format_time(interval.start_ms)}_{format_time(interval.end_ms)}"),
        ("version", segment_id.version),
        ("partition", str(segment_id.partition_number)),
        ("unique", unique),
    )
    return "/".join(_path_element(what, text) for what, text in parts)


def attempt_folder(datasource: str, task_id: str, attempt: str) -> str:
    """Return the folder of one attempt of a batch task.

    Raises:
        InvalidRequest: A part is not a valid name.
    """
    if len(task_id) > _TASK_SIGNS_MAX:
        # A task's id contains the name of its datasource.
        digest = hashlib.sha256(task_id.encode()).hexdigest()[:16]
        task_id = f"{task_id[:_TASK_SIGNS_MAX]}-{digest}"
    parts = (("datasource", datasource), ("task", task_id), ("attempt", attempt))
    names = [_path_element(what, text) for what, text in parts]
    return "/".join((names[0], _ATTEMPTS, *names[1:]))


def is_attempt_file(relative: str) -> bool:
    """Return whether a path below the root is of a batch task's attempt."""
    return _ATTEMPT_FILE.fullmatch(relative) is not None


def is_push_of(relative: str, segment_id: SegmentId) -> bool:
    """Return whether a path below the root is that of a complete push of a segment.

    Raises:
        InvalidRequest: A part of the id is not a valid name.
    """
    folder, _, name = relative.rpartition("/")
    place, _, unique = folder.rpartition("/")
    expected = relative_folder(segment_id, "x").rpartition("/")[0]
    return place == expected and unique not in {"", ".", ".."} and name == FILE_NAME


def is_attempt_of(relative: str, datasource: str, task_id: str) -> bool:
    """Return whether a path below the root is in an attempt of this task.

    Raises:
        InvalidRequest: A part is not a valid name.
    """
    folder = attempt_folder(datasource, task_id, "x").rpartition("/")[0]
    is_normal = posixpath.normpath(relative) == relative
    return is_normal and relative.startswith(f"{folder}/") and is_attempt_file(relative)


def projection_folder(datasource: str, digest: str) -> str:
    """Return the folder of one projection's files, relative to the folder of all projections.

    Args:
        datasource: The datasource.
        digest: Identifies the content of its files, in letters and digits.

    Raises:
        InvalidRequest: The datasource is not a valid name.
    """
    return f"{_path_element('datasource', datasource)}/{digest}"


def table_folder(datasource: str) -> str:
    """Return the folder of a datasource as an Iceberg table, relative to the root.

    Raises:
        InvalidRequest: The datasource is not a valid name.
    """
    return f"{ICEBERG}/{_path_element('datasource', datasource)}"


def datasource_folder(datasource: str) -> str:
    """Return the folder of a datasource, relative to the root.

    Raises:
        InvalidRequest: The datasource is not a valid name.
    """
    return _path_element("datasource", datasource)


def projection_file(segment_file: str) -> str:
    """Return the name of the file with the aggregates of a segment's file, from its location."""
    return f"{hashlib.sha256(segment_file.encode()).hexdigest()[:32]}.parquet"


def checksum_file(relative: str) -> str:
    """Return the path of Hadoop's checksums of a local file."""
    folder, _, name = relative.rpartition("/")
    return f"{folder}/.{name}.crc"


def is_segment_file(relative: str) -> bool:
    """Return whether a path below the root has the form of a push or an attempt, complete or not.

    The root may contain files of other programs, which must not be deleted.
    """
    if relative.startswith((f"{PROJECTIONS}/", f"{ICEBERG}/", f"{LEFT_OUT}/")):
        return False
    return _SEGMENT_FILE.fullmatch(relative) is not None or is_attempt_file(relative)


def segment_file_of(location: str) -> str | None:
    """Return the path below the root that an absolute location in any deep storage ends with.

    None if no end of it has the form of a segment's file.
    """
    parts = location.split("/")
    for start in range(len(parts) - 1, 0, -1):
        relative = "/".join(parts[start:])
        if is_segment_file(relative):
            return relative
    return None


def deep_storage_of(location: str) -> str | None:
    """Return the root of the deep storage in the absolute location of a segment's file.

    None if no end of it has the form of a segment's file.
    """
    relative = segment_file_of(location)
    return None if relative is None else location.removesuffix(f"/{relative}")


def _path_element(what: str, text: str) -> str:
    """Return a text as a name: ``:`` becomes ``_``, as in Druid; other characters their number."""
    element = "".join(
        sign
        if (sign.isascii() and sign.isalnum()) or (sign in _SIGNS)
        else ("_" if sign == ":" else f"~{ord(sign):x}~")
        for sign in text
    )
    # Names with this prefix are hidden from Spark and from users.
    if element[:1] in {".", "_"}:
        element = f"~{ord(text[0]):x}~{element[1:]}"
    if not element or len(element) > _NAME_BYTES_MAX:
        raise InvalidRequest(
            f"{what} {text!r} cannot be a folder in deep storage: use 1 to {_NAME_BYTES_MAX} signs"
        )
    return element
