"""PutFile: the content of FlowFiles as files.

Owns the names that files get and what happens when one is there already. Does not own the bytes.

Invariant: under its name a file is whole and, on this machine, durable, or it is not there; what
comes from an attribute cannot lead out of the folder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.core.errors import Conflict, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.flow.errors import ContentMissing, ProcessError
from penstock.flow.flowfile import FILENAME, UUID
from penstock.flow.processor import (
    BOOL,
    STR,
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)
from penstock.flow.processors.failing import WRITES_REASON, fail
from penstock.flow.processors.files.listing import FILE_PATH
from penstock.flow.processors.files.places import PIECE_BYTES, Place, open_place, read_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.filesystem import FileSystem

_TEMPORARY: Final = ".part"


class PutFile(Processor):
    """Writes the content of FlowFiles to files, of this machine or behind a URL.

    A file appears under its name when it is whole and durable. A crash before the FlowFile's commit
    has it written again: `replace` then makes no difference, `fail` finds its own file.
    """

    input = InputRequirement.REQUIRED
    tags = ("file", "put", "s3", "hdfs", "sink")
    reads_attributes: ClassVar[Mapping[str, str]] = {"filename": "The name of the file."}
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "file.path": "Where it was written.",
        **WRITES_REASON,
    }

    success = Relationship("Written; or not, where a file that is there is to be kept.")
    failure = Relationship("Not written; penalized where a retry may help.")

    folder = ExpressionProperty(STR, about="The folder, or a URL such as s3://bucket/folder.")
    options = Property(
        STR,
        default="",
        sensitive=True,
        about="Options of the file system behind a URL, as a JSON object.",
        validator=read_options,
    )
    conflict = Property(
        choice("fail", "replace", "ignore"),
        default="fail",
        about="What to do where there is a file of this name: judged right before it appears.",
    )
    create_folders = Property(BOOL, default=True, about="Whether missing folders are made.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Write one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        try:
            folder = self.folder.of(flowfile, now_ms=context.clock.now_ms())
            _check_folder(folder)
            place = open_place(folder, read_options(self.options))
            target = place.at(posixpath.join(place.path, _name_of(flowfile)))
            temporary = posixpath.join(place.path, f".{flowfile.attributes[UUID]}{_TEMPORARY}")
            if place.is_local:
                self._write_here(context.fs, flowfile, target.path, temporary, session)
            else:
                self._write_there(target, flowfile, temporary, session)
        except ContentMissing:
            raise  # of no file: the session takes the FlowFile out
        except Unavailable as error:
            session.penalize(flowfile)
            fail(context, session, flowfile, self.failure, error)
        except (Conflict, InvalidRequest, NotFound, ProcessError) as error:
            fail(context, session, flowfile, self.failure, error)
        else:
            where = {FILE_PATH: place.shown(target.path)}
            session.transfer(session.put_attributes(flowfile, where), self.success)

    def _write_here(
        self,
        fs: FileSystem,
        flowfile: FlowFile,
        path: str,
        temporary: str,
        session: ProcessSession,
    ) -> None:
        folder = posixpath.dirname(path)
        if self.create_folders:
            fs.mkdir(folder)
        if not self._is_wanted(exists=fs.exists(path), path=path):
            return
        file = fs.create(temporary, replace=True)
        try:
            try:
                for piece in _pieces(session, flowfile):
                    file.writev([piece])
                file.sync()
            finally:
                file.close()
            if self._is_wanted(exists=fs.exists(path), path=path):
                fs.rename(temporary, path)
            else:
                fs.unlink(temporary)
        except PenstockError:
            with suppress(PenstockError):  # a full disk needs the room
                fs.unlink(temporary)
            raise
        fs.fsync_folder(folder)

    def _write_there(
        self, target: Place, flowfile: FlowFile, temporary: str, session: ProcessSession
    ) -> None:
        if not self._is_wanted(exists=target.exists(), path=target.path):
            return
        try:
            target.write(_pieces(session, flowfile), temporary)
        except PenstockError:
            with suppress(PenstockError):
                target.at(temporary).delete()
            raise

    def _is_wanted(self, *, exists: bool, path: str) -> bool:
        if exists and self.conflict == "fail":
            raise Conflict(f"{path}: is there already; move it away, or set `conflict`")
        return not exists or self.conflict == "replace"


def _check_folder(folder: str) -> None:
    if ".." in folder.split("/"):
        raise InvalidRequest(f"folder {folder!r} leads upwards: it is not used")


def _name_of(flowfile: FlowFile) -> str:
    name = flowfile.attributes.get(FILENAME, "")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidRequest(f"filename {name!r} is no name of a file: set attribute `filename`")
    return name


def _pieces(session: ProcessSession, flowfile: FlowFile) -> Iterator[bytes]:
    with session.read(flowfile) as content:
        while piece := content.read(PIECE_BYTES):
            yield piece
