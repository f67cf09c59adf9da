"""PutFile: writes the content of FlowFiles to files.

Owns the names of files and the handling of existing ones. Does not own the bytes.

Invariant: a file with its final name is complete and, on this machine, durable. A value of an
attribute cannot lead out of the folder.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
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
    OpenFolder,
    change_problems,
    open_folder,
    read_options,
)
from penstock.flow.processors.files.list_source import FILE_PATH
from penstock.flow.write_guard import WRITE_GUARD
from penstock.storage.disk_errors import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.filesystem import FileSystem

_TEMPORARY: Final = ".part"
_PRIVATE: Final = 0o600


def _read_mode(text: str) -> int:
    if not (len(text) == 3 and set(text) <= set("01234567")):
        raise InvalidRequest(f"{text!r} is not a file mode: write three octal digits such as 640")
    return int(text, 8)


def _make_folders(fs: FileSystem, folder: str, mode: int) -> None:
    """Create a folder; users who may read its files may enter it and new folders above it."""
    missing: list[str] = []
    above = folder
    while mode != _PRIVATE and not fs.exists(above):
        missing.append(above)
        above = posixpath.dirname(above)
    fs.mkdir(folder)
    for one in missing:
        _set_mode(one, mode | (mode & 0o444) >> 2)


def _set_mode(path: str, mode: int) -> None:
    if mode != _PRIVATE:  # the files of the service have this mode
        try:
            Path(path).chmod(mode)
        except OSError as error:
            raise translate_error(error, path, "set the permissions") from error


class PutFile(Processor):
    """Writes the content of FlowFiles to files, on this machine or at a URL.

    A file appears under its name when it is complete and durable. After a crash before the
    FlowFile's commit it is written again: with `replace`, the result is the same file; with `fail`,
    the processor recognizes the file that it wrote itself.
    """

    input = InputRequirement.REQUIRED
    tags = ("file", "put", "s3", "hdfs", "sink")
    reads_attributes: ClassVar[Mapping[str, str]] = {"filename": "Name of the file."}
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "file.path": "Path or URL of the written file.",
        **WRITES_REASON,
    }

    success = Relationship("Written, or skipped because an existing file must be kept.")
    failure = Relationship("Not written; penalized if a retry may help.")

    folder = ExpressionProperty(STR, about="Folder, or a URL such as s3://bucket/folder.")
    options = Property(
        STR,
        default="",
        sensitive=True,
        about="Options of the file system of a URL, as a JSON object.",
        validator=read_options,
    )
    conflict = Property(
        choice("fail", "replace", "ignore"),
        default="fail",
        about="Action if a file with this name exists; checked just before the new file appears.",
    )
    permissions = Property(
        STR,
        default="600",
        about="Permissions of files on this machine, three octal digits; users who may read "
        "them may also enter new folders.",
        validator=_read_mode,
    )
    create_folders = Property(BOOL, default=True, about="Whether missing folders are created.")

    def check(self) -> Iterator[Problem]:
        """Yield errors of a folder that is the same for all FlowFiles."""
        yield from change_problems("folder", self.folder.text)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Write one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        try:
            folder = self.folder.of(flowfile, now_ms=context.clock.now_ms())
            _check_folder(folder)
            place = open_folder(folder, read_options(self.options))
            target = place.at(posixpath.join(place.path, _name_of(flowfile)))
            temporary = posixpath.join(place.path, _temporary_name(flowfile))
            if place.is_local:
                path = target.check_changeable()
                self._write_here(context.fs, flowfile, path, session)
            else:
                self._write_there(target, flowfile, temporary, session)
        except ContentMissing:
            raise  # the session removes the FlowFile
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
        session: ProcessSession,
    ) -> None:
        folder = posixpath.dirname(path)
        temporary = posixpath.join(folder, _temporary_name(flowfile))
        if self.create_folders:
            _make_folders(fs, folder, _read_mode(self.permissions))
        if not self._is_wanted(exists=_exists(fs, path), path=path):
            return
        file = fs.create(temporary, replace=True)
        try:
            try:
                for piece in _pieces(session, flowfile):
                    file.writev([piece])
                _set_mode(temporary, _read_mode(self.permissions))
                file.sync()
            finally:
                file.close()
            if self._is_wanted(exists=_exists(fs, path), path=path):
                _check_unmoved(path)
                fs.rename(temporary, path)
            else:
                fs.unlink(temporary)
        except BaseException:
            with suppress(PenstockError):  # frees space on a full disk
                fs.unlink(temporary)
            raise
        fs.fsync_folder(folder)

    def _write_there(
        self, target: OpenFolder, flowfile: FlowFile, temporary: str, session: ProcessSession
    ) -> None:
        if not self._is_wanted(exists=target.exists(), path=target.path):
            return
        try:
            target.write(_pieces(session, flowfile), temporary)
        except BaseException:
            with suppress(PenstockError):
                target.at(temporary).delete()
            raise

    def _is_wanted(self, *, exists: bool, path: str) -> bool:
        if exists and self.conflict == "fail":
            raise Conflict(f"{path}: already exists; move it away, or set `conflict`")
        return not exists or self.conflict == "replace"


def _exists(fs: FileSystem, path: str) -> bool:
    """Return whether a file has this name; a link without a target counts, too."""
    # Unlike `Path.is_symlink`, it does not raise for a name that is too long.
    return fs.exists(path) or os.path.islink(path)  # noqa: PTH114


def _check_folder(folder: str) -> None:
    if ".." in folder.split("/"):
        raise InvalidRequest(f"folder {folder!r} contains '..' and is not used: write it without")


def _check_unmoved(path: str) -> None:
    """Refuse a path whose folder became a symbolic link since it was checked."""
    if WRITE_GUARD.check(path) != path:
        raise InvalidRequest(
            f"{path}: its folder was replaced while the file was written; try again"
        )


def _name_of(flowfile: FlowFile) -> str:
    name = flowfile.attributes.get(FILENAME, "")
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidRequest(
            f"filename {name!r} is not a valid file name: set attribute `filename`"
        )
    return name


def _temporary_name(flowfile: FlowFile) -> str:
    return f".{flowfile.attributes[UUID].replace('/', '_')}{_TEMPORARY}"


def _pieces(session: ProcessSession, flowfile: FlowFile) -> Iterator[bytes]:
    with session.read(flowfile) as content:
        while piece := content.read(PIECE_BYTES):
            yield piece
