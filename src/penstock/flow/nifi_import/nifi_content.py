"""Reader of NiFi's content repository: the bytes to which FlowFiles of its swap files refer.

    <folder of the container>/<section>/<id>     any number of claims, one after the other

Owns the paths of these files, and copying from them. Does not own the FlowFiles that refer to them.

Invariants: nothing is read outside the given folders, even for a forged swap file. Content is
copied completely or not at all.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.flow.flowfile import FlowFile
    from penstock.storage.content.claims import ContentClaim, ResourceClaim
    from penstock.storage.content.content_repository import ContentRepository
    from penstock.storage.filesystem import FileSystem, ReadFile

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_CHUNK_BYTES: Final = 1 << 20


class UnreadableContent(NotFound):
    """The content of a FlowFile is missing or incomplete.

    Attributes:
        path: The file.
        reason: Reason of the error.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NifiContent:
    """Content repository of a NiFi. Not thread-safe; a context manager that closes its file.

    The file that was read last stays open: read in the order of the files.

    Args:
        fs: The file system.
        folders: Folder of each container, by its name.
        others: Folder of containers that are not in `folders`; None: there is none.
    """

    def __init__(
        self, fs: FileSystem, folders: Mapping[str, str], others: str | None = None
    ) -> None:
        self._fs = fs
        self._folders = dict(folders)
        self._others = others
        self._open: tuple[str, ReadFile] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy(self, flowfile: FlowFile, target: ContentRepository) -> ContentClaim:
        """Copy the content of a FlowFile, of at least one byte; return its claim.

        The caller commits or releases the claim.

        Raises:
            UnreadableContent: The content is missing or incomplete; nothing was written.
            Unavailable: The content cannot be written.
        """
        claim, size = flowfile.claim, flowfile.size
        if claim is None:
            raise UnreadableContent(
                "no file", "the swap file does not contain the location of the content"
            )
        path = self._path(claim.resource)
        start = claim.offset + flowfile.content_offset
        self._check(path, start, size)
        with target.write() as writer:
            for done in range(0, size, _CHUNK_BYTES):
                writer.write(self._read(path, min(_CHUNK_BYTES, size - done), start + done))
            copied = writer.finish()
        assert copied is not None, "has at least one byte"
        return copied

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _path(self, resource: ResourceClaim) -> str:
        folder = self._folders.get(resource.container, self._others)
        shown = f"{resource.container}/{resource.section}/{resource.id}"
        if folder is None:
            raise UnreadableContent(
                shown, f"unknown container {resource.container!r}: specify its folder, too"
            )
        if not (_PLAIN_NAME.fullmatch(resource.section) and _PLAIN_NAME.fullmatch(resource.id)):
            raise UnreadableContent(ascii(shown), "is not a file of a content repository")
        return f"{folder}/{resource.section}/{resource.id}"

    def _check(self, path: str, start: int, size: int) -> None:
        if start < 0 or size < 1:
            raise UnreadableContent(path, f"invalid range: {size} bytes from byte {start}")
        with _translate_read_errors(path):
            there = self._file(path).size()
        if start + size > there:
            raise UnreadableContent(path, "is too short")

    def _read(self, path: str, length: int, position: int) -> bytes:
        """Return `length` bytes; a single read may return fewer."""
        parts: list[bytes] = []
        while length:
            with _translate_read_errors(path):
                data = self._file(path).pread(length, position)
            if not data:
                raise UnreadableContent(path, "is too short")
            parts.append(data)
            length -= len(data)
            position += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _file(self, path: str) -> ReadFile:
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self.close()
        file = self._fs.open_read(path)
        self._open = (path, file)
        return file


@contextmanager
def _translate_read_errors(path: str) -> Iterator[None]:
    """Distinguish errors of NiFi's file from those of Penstock's."""
    try:
        yield
    except NotFound:
        raise UnreadableContent(path, "is missing") from None
    except PenstockError as error:
        raise UnreadableContent(path, f"cannot be read: {error}") from error
