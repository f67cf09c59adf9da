"""Base of the processors that list new files in a folder: ListFiles and GetFile.

`FolderSource` owns the properties of a listing and its filters. `SeenFiles` records which files
were taken, so that each file is taken once; it is pure and stored as text in the processor's
state. `TrackingMode` selects one of two methods:

    files   a digest of path, size and modification time of each taken file that still exists
    times   the newest modification time of the taken files, and the files that have it

Does not own the processing of a file. Invariant: a changed file counts as a new file; a file that
is no longer recorded was deleted (files) or is older than the recorded ones (times). `SeenFiles` is
not thread-safe.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar, Final

from penstock.core.errors import Conflict, InvalidRequest
from penstock.flow.flowfile import FILENAME, PATH
from penstock.flow.processor import (
    BOOL,
    INT,
    PERIOD,
    REGEX,
    SIZE,
    STR,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.files.folders import (
    FoundFile,
    OpenFolder,
    open_folder,
    read_options,
    read_problems,
)

DIGEST_CHARS: Final = 12
TAKEN_MAX: Final = 80_000  # as many as fit into a state

_FOLDER: Final = "folder"
_TAKEN: Final = "taken"
_NEWEST: Final = "newest.ms"


class TrackingMode(enum.Enum):
    """How taken files are tracked."""

    FILES = "files"
    TIMES = "times"


class SeenFiles:
    """Files that were taken. Not thread-safe.

    Args:
        tracking: How they are tracked.
        folder: The listed folder; the state of another folder is ignored.
        state: Result of `state`, or empty.
    """

    def __init__(self, tracking: TrackingMode, folder: str, state: Mapping[str, str]) -> None:
        self._tracking = tracking
        self._folder = folder
        if state.get(_FOLDER) != folder:
            state = {}
        text = state.get(_TAKEN, "")
        places = range(0, len(text), DIGEST_CHARS)
        self._digests = {text[place : place + DIGEST_CHARS] for place in places}
        self._newest_ms = int(state.get(_NEWEST, "-1"))

    def is_new(self, found: FoundFile) -> bool:
        """Return whether a file was not taken yet."""
        if self._is_remembered(found):
            return digest(found) not in self._digests
        return found.modified_ms is None or found.modified_ms > self._newest_ms

    def add(self, files: Iterable[FoundFile]) -> None:
        """Record files as taken.

        Raises:
            Conflict: They are more than can be remembered; nothing was added.
        """
        given = list(files)
        if self._tracking is TrackingMode.TIMES:
            self._move_on(given)
        added = self._digests | {digest(found) for found in given if self._is_remembered(found)}
        if len(added) > TAKEN_MAX:
            raise Conflict(
                f"{self._folder}: more than {TAKEN_MAX:,} files that were taken still exist: "
                "remove them, or track by times"
            )
        self._digests = added

    def keep_only(self, present: Iterable[FoundFile]) -> None:
        """Forget files that no longer exist; tracking by times has nothing to forget."""
        if self._tracking is TrackingMode.FILES:
            self._digests &= {digest(found) for found in present}

    def state(self) -> dict[str, str]:
        """Return the state."""
        return {
            _FOLDER: self._folder,
            _TAKEN: "".join(sorted(self._digests)),
            _NEWEST: str(self._newest_ms),
        }

    def _move_on(self, files: Iterable[FoundFile]) -> None:
        newest_ms = max((f.modified_ms for f in files if f.modified_ms is not None), default=-1)
        if newest_ms > self._newest_ms:
            self._newest_ms = newest_ms
            self._digests = set()

    def _is_remembered(self, found: FoundFile) -> bool:
        return self._tracking is TrackingMode.FILES or found.modified_ms in {None, self._newest_ms}


def digest(found: FoundFile) -> str:
    """Return a digest of a file's current version."""
    text = f"{found.place}\n{found.size}\n{found.modified_ms}\n{found.mark}"
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=9).digest()
    return base64.urlsafe_b64encode(hashed).decode("ascii")


FILE_PATH: Final = "file.path"
FILE_SIZE: Final = "file.size"
FILE_MODIFIED: Final = "file.lastModifiedTime"
FILE_FOLDER: Final = "absolute.path"

_PENDING_MAX: Final = 100_000
_BATCH_MAX: Final = 10_000
# Files and folders that are left out and reported, each once after a start.
_REPORTED_MAX: Final = 1_000

WRITES_FILE: Final[Mapping[str, str]] = {
    "filename": "Name of the file.",
    "path": "Its folder relative to the listed one, such as `./` or `a/b/`.",
    "absolute.path": "Full path of its folder.",
    "file.path": "Full path or URL of the file, as FetchFile expects it.",
    "file.size": "Its size in bytes.",
    "file.lastModifiedTime": "Time of its last change, ISO 8601 in UTC, if known.",
}


def check_batch(count: int) -> None:
    """Check a batch size.

    Raises:
        InvalidRequest: The batch size is out of range.
    """
    if not 0 < count <= _BATCH_MAX:
        raise InvalidRequest(f"{count:,} files at once: use 1 to {_BATCH_MAX:,}")


class FolderSource(Processor):
    """Base class of processors that take the files of a folder, each once.

    A trigger lists the whole folder, keeps the new files in memory, and takes them in batches, the
    oldest first. The state changes with the commit of each batch.
    """

    input = InputRequirement.FORBIDDEN
    triggers_serially = True
    state = (
        "Files that were taken (a digest for each, as long as the file exists), or the time of "
        "change up to which files were taken. The state is reset for another folder."
    )
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_FILE

    success = Relationship("One FlowFile for each file.")

    folder = Property(
        STR, required=True, about="A folder of this machine, or a URL such as s3://bucket/folder."
    )
    options = Property(
        STR,
        default="",
        sensitive=True,
        about="Options of the file system of a URL, as a JSON object.",
        validator=read_options,
    )
    recurse = Property(BOOL, default=True, about="Whether files in subfolders are included.")
    file_filter = Property(
        REGEX,
        default=r"(?s)[^.].*",
        about="Regular expression that the whole name of a file must match.",
    )
    path_filter = Property(
        REGEX,
        default=r"(?s).*",
        about="Regular expression that the whole path of a subfolder, such as a/b, must match.",
    )
    minimum_age = Property(
        PERIOD,
        default="2 sec",
        about="Files that changed more recently are taken later: they may still be being written.",
    )
    maximum_age = Property(PERIOD, about="Files whose last change is older are ignored.")
    minimum_size = Property(SIZE, default="0 B", about="Smaller files are ignored.")
    maximum_size = Property(SIZE, about="Larger files are ignored.")
    tracking = Property(
        TrackingMode,
        default="files",
        about="Remember each existing file (up to 80,000), or only the newest time of change: "
        "then files that arrive with an older time are never taken.",
    )
    batch_size = Property(
        INT, default=100, about="Maximum number of files per trigger.", validator=check_batch
    )
    polling_interval = Property(
        PERIOD, default="1 sec", about="Pause after a listing that found nothing new."
    )

    _pending: deque[FoundFile]
    _listed: OpenFolder
    _reported: set[str]

    def check(self) -> Iterator[Problem]:
        """Yield reasons why the folder cannot be read."""
        yield from read_problems("folder", self.folder)

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Start with a new listing."""
        self._pending = deque()
        self._listed = self.open(self.folder)
        self._reported = set()

    def open(self, where: str) -> OpenFolder:
        """Open a path or URL with the configured options.

        Raises:
            InvalidRequest: It cannot be opened.
        """
        return open_folder(where, read_options(self.options))

    def open_found(self, found: FoundFile) -> OpenFolder:
        """Open a file that the listing found."""
        if self._listed.is_local:
            return self._listed.at(found.place)  # its name may look like a URL
        return self.open(found.place)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Take a batch of new files.

        Raises:
            ProcessError: There are more files than can be remembered.
        """
        taken = SeenFiles(self.tracking, self._listed.path, session.state.get())
        if not self._pending:
            self._list(context, taken)
        batch = [self._pending.popleft() for _ in range(min(self.batch_size, len(self._pending)))]
        if not batch:
            context.yield_(self.polling_interval)
            return
        done = self.take(batch, context, session)
        try:
            taken.add(done)
        except Conflict as error:
            raise ProcessError(str(error)) from None
        session.state.set(taken.state())
        session.commit(durable=self.is_durable)
        self.committed(done, context)

    @property
    def is_durable(self) -> bool:
        """Whether a batch must survive a power loss before `committed` is called."""
        return False

    @abstractmethod
    def take(
        self, files: Sequence[FoundFile], context: ProcessContext, session: ProcessSession
    ) -> Sequence[FoundFile]:
        """Create FlowFiles for files; return the files that count as taken."""

    def committed(self, files: Sequence[FoundFile], context: ProcessContext) -> None:
        """Handle files whose FlowFiles are committed."""

    def left_behind(self, found: FoundFile, context: ProcessContext) -> None:
        """Handle a file that was taken before and still exists."""

    def _list(self, context: ProcessContext, taken: SeenFiles) -> None:
        now_ms = context.clock.now_ms()
        new: list[FoundFile] = []
        present: list[FoundFile] = []
        skipped: list[InvalidRequest] = []
        for found in self._listed.walk(recurse=self.recurse, skipped=skipped.append):
            if not taken.is_new(found):
                present.append(found)
                self.left_behind(found, context)
            elif self._is_wanted(found, now_ms) and self._has_a_name(found, context):
                new.append(found)
            if len(new) >= _PENDING_MAX:
                break
        else:
            if not skipped:  # else files of those folders may still exist
                taken.keep_only(present)
        for error in skipped:
            self._report(f"the files of a folder are left out: {error}", context)
        self._pending = deque(sorted(new, key=lambda found: (found.modified_ms or 0, found.place)))

    def _has_a_name(self, found: FoundFile, context: ProcessContext) -> bool:
        try:
            found.place.encode()
        except UnicodeEncodeError:
            text = f"{found.place!r}: the name is not valid UTF-8, so the file is ignored"
            self._report(f"{text}; rename it", context)
            return False
        return True

    def _report(self, text: str, context: ProcessContext) -> None:
        if text not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(text)
            context.log.warning("%s", text)

    def _is_wanted(self, found: FoundFile, now_ms: int) -> bool:
        if not _matches(self.file_filter, found.name):
            return False
        if not _matches(self.path_filter, found.folder):
            return False
        if found.size < self.minimum_size:
            return False
        if self.maximum_size is not None and found.size > self.maximum_size:
            return False
        if found.modified_ms is None:
            return True
        age_ms = now_ms - found.modified_ms
        if age_ms < self.minimum_age:
            return False
        return self.maximum_age is None or age_ms <= self.maximum_age


def attributes_of(found: FoundFile) -> dict[str, str]:
    """Return the attributes of the FlowFile for a file."""
    attributes = {
        FILENAME: found.name,
        PATH: f"{found.folder}/" if found.folder else "./",
        FILE_FOLDER: found.place.rpartition("/")[0] or "/",
        FILE_PATH: found.place,
        FILE_SIZE: str(found.size),
    }
    if found.modified_ms is not None:
        changed = datetime.fromtimestamp(found.modified_ms / 1000, UTC)
        attributes[FILE_MODIFIED] = changed.isoformat(timespec="milliseconds")
    return attributes


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None
