"""Names in deep storage: where a segment's file lies below the root.

    <datasource>/<start>_<end>/<version>/<partition>/<unique>/part.parquet    what tasks push
    <datasource>/attempts/<task>/<attempt>/…/<any name>                       what Spark writes
    ~projections/<datasource>/<digest>/<name>.parquet                         sums of such files

A batch task gives each call of its engine a folder of its own, an **attempt**; the files that its
publish names are segments where they lie, all others there are leavings. Sums of a projection are
derived from a segment's file, and no segment: no datasource's folder has the name of theirs.
Invariant: every name of ours is one path element of letters, digits and a few signs that no file
system, object store or glob takes for something else.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time

if TYPE_CHECKING:
    from penstock.segments.model import SegmentId

FILE_NAME = "part.parquet"
TEMPORARY_NAME = f"{FILE_NAME}.tmp"
_NAME_BYTES_MAX = 200
_TASK_SIGNS_MAX = 100
# No interval is called so, and no name of ours begins with a sign that hides it from Spark.
_ATTEMPTS = "attempts"
_TIME = r"\d{4,}-\d\d-\d\dT\d\d_\d\d_\d\d\.\d{3}Z"
_SEGMENT_FILE = re.compile(
    rf"[^/]+/{_TIME}_{_TIME}/[^/]+/\d+/[^/]+/(?:{re.escape(FILE_NAME)}|{re.escape(TEMPORARY_NAME)})"
)
_ATTEMPT_FILE = re.compile(rf"[^/]+/{_ATTEMPTS}/[^/]+/[^/]+/.+")
_SIGNS = frozenset("._-=+@")
# A tilde stands in the name of a datasource only around the number of a sign.
PROJECTIONS = "~projections"
# Holds files that a rebuild of the metadata could not name, under their paths from the root.
LEFT_OUT = "~left-out"


def relative_folder(segment_id: SegmentId, unique: str) -> str:
    """Return the folder of one push of a segment.

    Raises:
        InvalidRequest: A part of the id cannot be a name.
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
        InvalidRequest: A part cannot be a name.
    """
    if len(task_id) > _TASK_SIGNS_MAX:
        # A task's name holds its datasource's, and more.
        digest = hashlib.sha256(task_id.encode()).hexdigest()[:16]
        task_id = f"{task_id[:_TASK_SIGNS_MAX]}-{digest}"
    parts = (("datasource", datasource), ("task", task_id), ("attempt", attempt))
    names = [_path_element(what, text) for what, text in parts]
    return "/".join((names[0], _ATTEMPTS, *names[1:]))


def is_attempt_file(relative: str) -> bool:
    """Whether a path below the root is of a batch task's attempt."""
    return _ATTEMPT_FILE.fullmatch(relative) is not None


def projection_folder(datasource: str, digest: str) -> str:
    """Return the folder of one projection's files, from the folder of all projections.

    Args:
        datasource: Whose it is.
        digest: Tells what its files hold, in letters and digits.

    Raises:
        InvalidRequest: The datasource cannot be a name.
    """
    return f"{_path_element('datasource', datasource)}/{digest}"


def projection_file(segment_file: str) -> str:
    """Return the name of the file with the sums of a segment's file, given by its location."""
    return f"{hashlib.sha256(segment_file.encode()).hexdigest()[:32]}.parquet"


def checksum_file(relative: str) -> str:
    """Return where Hadoop keeps a local file's checksums."""
    folder, _, name = relative.rpartition("/")
    return f"{folder}/.{name}.crc"


def is_segment_file(relative: str) -> bool:
    """Whether a path below the root can be of a push or an attempt, or of one that was cut.

    The root may hold files of others; they are none of our business, and least of all to delete.
    """
    if relative.startswith((f"{PROJECTIONS}/", f"{LEFT_OUT}/")):
        return False
    return _SEGMENT_FILE.fullmatch(relative) is not None or is_attempt_file(relative)


def segment_file_of(location: str) -> str | None:
    """Return the path below the root of any deep storage that an absolute location ends with.

    None if no end of it has the shape of a segment's file.
    """
    parts = location.split("/")
    for start in range(len(parts) - 1, 0, -1):
        relative = "/".join(parts[start:])
        if is_segment_file(relative):
            return relative
    return None


def deep_storage_of(location: str) -> str | None:
    """Return the root of the deep storage that a segment's file has in its absolute location.

    None if no end of it has the shape of a segment's file.
    """
    relative = segment_file_of(location)
    return None if relative is None else location.removesuffix(f"/{relative}")


def _path_element(what: str, text: str) -> str:
    """Return a text as a name: ``:`` becomes ``_``, as Druid has it; other signs their number."""
    element = "".join(
        sign
        if (sign.isascii() and sign.isalnum()) or (sign in _SIGNS)
        else ("_" if sign == ":" else f"~{ord(sign):x}~")
        for sign in text
    )
    # Names that begin so are hidden from Spark and from people.
    if element[:1] in {".", "_"}:
        element = f"~{ord(text[0]):x}~{element[1:]}"
    if not element or len(element) > _NAME_BYTES_MAX:
        raise InvalidRequest(
            f"{what} {text!r} cannot be a folder in deep storage: use 1 to {_NAME_BYTES_MAX} signs"
        )
    return element
