"""ListFiles, GetFile and FetchFile: create FlowFiles from files.

Owns the processing of listed or named files. Does not own the listing (`list_source`).

Invariant: a source is deleted or moved only when its FlowFile survives a power loss, and only if it
did not change since it was read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.flow.errors import ProcessError
from penstock.flow.processor import (
    BOOL,
    INT,
    STR,
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.files.folders import (
    PIECE_BYTES,
    FoundFile,
    NotAllowed,
    OpenFolder,
    change_problems,
    open_folder,
    read_options,
    read_problems,
)
from penstock.flow.processors.files.list_source import (
    FolderSource,
    TrackingMode,
    attributes_of,
    check_batch,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ListFiles(FolderSource):
    """Lists a folder, on this machine or at a URL: one FlowFile without content for each file.

    Connect it to FetchFile, which reads the files and can use several threads. Writers should give
    unfinished files a name with a leading dot; otherwise set `minimum_age`.
    """

    tags = ("file", "list", "s3", "hdfs", "source")

    batch_size = Property(
        INT, default=1_000, about="Maximum number of files per trigger.", validator=check_batch
    )

    def take(
        self,
        files: Sequence[FoundFile],
        context: ProcessContext,  # noqa: ARG002 - needed by other sources
        session: ProcessSession,
    ) -> Sequence[FoundFile]:
        """Create a FlowFile for each file."""
        made = [session.create(attributes=attributes_of(found)) for found in files]
        session.transfer(made, self.success)
        return files


class GetFile(FolderSource):
    """Takes the files of a folder, on this machine or at a URL, with their content; each once.

    Unless sources are kept, each file is deleted when its FlowFile is durable. If a file
    could not be deleted, or a crash prevented that, it is deleted later and not taken again. If
    `keep_source` changes from true to false, files that were taken before are deleted, too.
    """

    tags = ("file", "get", "s3", "hdfs", "source")

    batch_size = Property(
        INT, default=10, about="Maximum number of files per trigger.", validator=check_batch
    )
    keep_source = Property(BOOL, default=False, about="Whether source files are kept.")

    def check(self) -> Iterator[Problem]:
        """Yield combinations of properties that are not allowed."""
        yield from super().check()
        if not self.keep_source and self.tracking is not TrackingMode.FILES:
            yield Problem(
                "tracking",
                "tracking by times does not record which files were taken, so none could be "
                "deleted safely: track files, or keep sources",
            )
        if not self.keep_source:
            yield from change_problems("folder", self.folder)

    @property
    def is_durable(self) -> bool:
        """Whether source files are deleted."""
        return not self.keep_source

    def take(
        self, files: Sequence[FoundFile], context: ProcessContext, session: ProcessSession
    ) -> Sequence[FoundFile]:
        """Read the files; files that fail or change meanwhile are retried later."""
        done = []
        for found in files:
            if not context.is_scheduled:
                break
            flowfile = session.create(attributes=attributes_of(found))
            try:
                source = self.open_found(found)
                _read_unchanged(source, found, flowfile, session)
            except (NotFound, Unavailable, InvalidRequest) as error:
                context.log.warning("%s: retried later: %s", found.place, error)
                session.remove(flowfile)
            else:
                session.transfer(flowfile, self.success)
                done.append(found)
        return done

    def committed(self, files: Sequence[FoundFile], context: ProcessContext) -> None:
        """Delete the source files."""
        for found in files if not self.keep_source else ():
            self._delete(found, context)

    def left_behind(self, found: FoundFile, context: ProcessContext) -> None:
        """Delete a source file that an earlier trigger should have deleted."""
        if not self.keep_source:
            self._delete(found, context)

    def _delete(self, found: FoundFile, context: ProcessContext) -> None:
        source = self.open_found(found)
        try:
            if _is_unchanged(source.inspect(), found):
                source.delete()
        except NotFound:
            return
        except PenstockError as error:
            context.log.warning("%s: taken, but could not be deleted; this is retried", error)


class FetchFile(Processor):
    """Reads the file that a FlowFile names, on this machine or at a URL, into its content.

    The source is moved or deleted after the FlowFile is durable. If a crash occurs between the two,
    the source stays where it is.
    """

    input = InputRequirement.REQUIRED
    tags = ("file", "fetch", "s3", "hdfs")
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "file.path": "Path of the file, unless `file` is set; ListFiles sets it."
    }
    writes_attributes: ClassVar[Mapping[str, str]] = WRITES_REASON

    success = Relationship("FlowFiles with the content of the file.")
    not_found = Relationship("The file does not exist.", name="not.found")
    permission_denied = Relationship(
        "The file exists, but this user has no permission for it.", name="permission.denied"
    )
    failure = Relationship("The file could not be read for another reason; a retry may help.")

    file = ExpressionProperty(STR, default="${file.path}", about="Path or URL of the file.")
    options = Property(
        STR,
        default="",
        sensitive=True,
        about="Options of the file system of a URL, as a JSON object.",
        validator=read_options,
    )
    completion = Property(
        choice("none", "delete", "move"), default="none", about="Action on the source file."
    )
    move_to = ExpressionProperty(
        STR, default="", about="Folder to which sources are moved, on the same file system."
    )

    def check(self) -> Iterator[Problem]:
        """Yield combinations of properties that are not allowed."""
        yield from read_problems("file", self.file.text)
        if self.completion == "move" and not self.move_to.text:
            yield Problem("move_to", "is required with completion move: write a folder")
        if self.completion == "move":
            yield from change_problems("move_to", self.move_to.text)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Read the file of one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        now_ms = context.clock.now_ms()
        try:
            where = self.file.of(flowfile, now_ms=now_ms)
            folder = self.move_to.of(flowfile, now_ms=now_ms)
            source = open_folder(where, read_options(self.options))
            found = source.inspect()
            _read_unchanged(source, found, flowfile, session)
        except NotFound as error:
            fail(context, session, flowfile, self.not_found, error)
        except NotAllowed as error:
            fail(context, session, flowfile, self.permission_denied, error)
        except (InvalidRequest, Unavailable, ProcessError) as error:
            fail(context, session, flowfile, self.failure, error)
        else:
            session.transfer(flowfile, self.success)
            if self.completion != "none":
                session.commit(durable=True)
                self._complete(source, found, folder, context)

    def _complete(
        self, source: OpenFolder, found: FoundFile, folder: str, context: ProcessContext
    ) -> None:
        try:
            if not _is_unchanged(source.inspect(), found):
                context.log.warning("%s changed after it was read, so it is kept", found.place)
            elif self.completion == "delete":
                source.delete()
            else:
                target = open_folder(folder, read_options(self.options))
                source.move(posixpath.join(target.path, found.name))
        except PenstockError as error:
            context.log.warning("the source was read, but could not be moved or deleted: %s", error)


def _read_unchanged(
    source: OpenFolder, found: FoundFile, flowfile: FlowFile, session: ProcessSession
) -> None:
    """Copy a file into the content of a FlowFile.

    Raises:
        NotFound: The file does not exist.
        Unavailable: It changed meanwhile, or cannot be read.
    """
    session.import_from(flowfile, _bounded(source, found))
    if not _is_unchanged(source.inspect(), found):
        raise Unavailable(f"{found.place}: changed while it was read; try again")


def _bounded(source: OpenFolder, found: FoundFile) -> Iterator[Buffer]:
    """Yield the bytes of a file; stop at a file that grows, which may have no end."""
    size = 0
    for piece in source.pieces():
        size += memoryview(piece).nbytes
        # The size at a URL may be unknown, and the kernel's files in /proc have no size.
        if source.is_local and size > max(found.size, PIECE_BYTES):
            raise Unavailable(f"{found.place}: grows while it is read; try again")
        yield piece


def _is_unchanged(now: FoundFile, before: FoundFile) -> bool:
    return (now.size, now.modified_ms, now.mark) == (before.size, before.modified_ms, before.mark)
