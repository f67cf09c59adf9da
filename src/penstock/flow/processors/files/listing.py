"""Finding files that are new in a folder: what ListFiles and GetFile have in common.

Owns the properties of a listing and its filters. Does not own the memory of what was taken
(`taken`), nor what is done with a file.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
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
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processors.files.places import FoundFile, Place, open_place, read_options
from penstock.flow.processors.files.taken import Taken, Tracking

FILE_PATH: Final = "file.path"
FILE_SIZE: Final = "file.size"
FILE_MODIFIED: Final = "file.lastModifiedTime"
FILE_FOLDER: Final = "absolute.path"

_PENDING_MAX: Final = 100_000
_BATCH_MAX: Final = 10_000

WRITES_FILE: Final[Mapping[str, str]] = {
    "filename": "The file's name.",
    "path": "Its folder below the listed one, such as `./` or `a/b/`.",
    "absolute.path": "Its folder, whole.",
    "file.path": "Its path or URL, whole: what FetchFile takes.",
    "file.size": "Its size in bytes.",
    "file.lastModifiedTime": "When it changed last, ISO 8601 in UTC, if that is known.",
}


def check_batch(count: int) -> None:
    """Refuse a batch that is none.

    Raises:
        InvalidRequest: It is.
    """
    if not 0 < count <= _BATCH_MAX:
        raise InvalidRequest(f"{count:,} files at once: write 1 to {_BATCH_MAX:,}")


class FolderSource(Processor):
    """The base of what takes the files of a folder, each once.

    A trigger lists the folder whole, remembers what is new in memory, and takes it in batches, the
    oldest first. State changes with the commit of each batch.
    """

    input = InputRequirement.FORBIDDEN
    triggers_serially = True
    state = (
        "Which files were taken (a digest each, for as long as the file is there), or up to which "
        "time of change. Another folder begins anew."
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
        about="Options of the file system behind a URL, as a JSON object.",
        validator=read_options,
    )
    recurse = Property(BOOL, default=True, about="Whether folders below count, too.")
    file_filter = Property(
        REGEX, default=r"[^.].*", about="Names of wanted files match this whole."
    )
    path_filter = Property(
        REGEX,
        default=r".*",
        about="Folders below the listed one, such as a/b, with wanted files match this whole.",
    )
    minimum_age = Property(
        PERIOD,
        default="2 sec",
        about="Files that changed since are left for later: they may be written still.",
    )
    maximum_age = Property(PERIOD, about="Files that were not changed for longer are left out.")
    minimum_size = Property(SIZE, default="0 B", about="Smaller files are left out.")
    maximum_size = Property(SIZE, about="Larger files are left out.")
    tracking = Property(
        Tracking,
        default="files",
        about="Remember each file that is there (up to 80,000), or only the newest time of change: "
        "then files that come with an older time are never taken.",
    )
    batch_size = Property(INT, default=100, about="Files of one trigger.", validator=check_batch)
    polling_interval = Property(
        PERIOD, default="1 sec", about="Pause after a listing that found nothing new."
    )

    _pending: deque[FoundFile]
    _listed: Place

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Begin with a new listing."""
        self._pending = deque()
        self._listed = self.open(self.folder)

    def open(self, where: str) -> Place:
        """Open a path or URL with the options given.

        Raises:
            InvalidRequest: It cannot be.
        """
        return open_place(where, read_options(self.options))

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Take a batch of new files.

        Raises:
            ProcessError: There are more than can be remembered.
        """
        taken = Taken(self.tracking, self._listed.path, session.state.get())
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
        """Whether a batch must survive a power loss before `committed`."""
        return False

    @abstractmethod
    def take(
        self, files: Sequence[FoundFile], context: ProcessContext, session: ProcessSession
    ) -> Sequence[FoundFile]:
        """Make FlowFiles of files; return those that count as taken."""

    def committed(self, files: Sequence[FoundFile], context: ProcessContext) -> None:
        """Learn that files were taken for good."""

    def left_behind(self, found: FoundFile, context: ProcessContext) -> None:
        """Learn of a file that was taken before and is still there."""

    def _list(self, context: ProcessContext, taken: Taken) -> None:
        now_ms = context.clock.now_ms()
        new: list[FoundFile] = []
        present: list[FoundFile] = []
        for found in self._listed.walk(recurse=self.recurse):
            if not taken.is_new(found):
                present.append(found)
                self.left_behind(found, context)
            elif self._is_wanted(found, now_ms) and _has_a_name(found, context):
                new.append(found)
            if len(new) >= _PENDING_MAX:
                break
        else:
            taken.keep_only(present)
        self._pending = deque(sorted(new, key=lambda found: (found.modified_ms or 0, found.place)))

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


def _has_a_name(found: FoundFile, context: ProcessContext) -> bool:
    try:
        found.place.encode()
    except UnicodeEncodeError:
        context.log.warning("%r: the name is no UTF-8: it is left out; rename it", found.place)
        return False
    return True
