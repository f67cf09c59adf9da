"""NiFi's content repository, read: the bytes that FlowFiles of its swap files refer to.

    <folder of the container>/<section>/<id>     any claims, one behind the other

Owns where these files are, and copying out of them. Does not own which FlowFiles refer to them.

Invariants: nothing is read outside the folders that were named, whatever a swap file says; content
is copied whole or not at all.
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
    from penstock.storage.content.repository import ContentRepository
    from penstock.storage.filesystem import FileSystem, ReadFile

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_CHUNK_BYTES: Final = 1 << 20


class UnreadableContent(NotFound):
    """The content of a FlowFile is not there, or not all of it.

    Attributes:
        path: The file.
        reason: What is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NifiContent:
    """The content repository of a NiFi. For one thread; a context that closes its file.

    The file that was read last stays open: ask in the order of the files.

    Args:
        fs: The file system.
        folders: Where each container is, by its name.
        others: Where a container is that has no folder of its own; None: nowhere.
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
        """Copy the content of a FlowFile, of at least a byte; return the claim on it.

        The caller commits that, or releases it.

        Raises:
            UnreadableContent: It is not there, or not all of it; nothing was written.
            Unavailable: It cannot be written.
        """
        claim, size = flowfile.claim, flowfile.size
        if claim is None:
            raise UnreadableContent("no file", "the swap file does not say where the content is")
        path = self._path(claim.resource)
        start = claim.offset + flowfile.content_offset
        self._check(path, start, size)
        with target.write() as writer:
            for done in range(0, size, _CHUNK_BYTES):
                writer.write(self._read(path, min(_CHUNK_BYTES, size - done), start + done))
            copied = writer.finish()
        assert copied is not None, "it has a byte"
        return copied

    def close(self) -> None:
        """Let go of the file. Twice is fine."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _path(self, resource: ResourceClaim) -> str:
        folder = self._folders.get(resource.container, self._others)
        shown = f"{resource.container}/{resource.section}/{resource.id}"
        if folder is None:
            raise UnreadableContent(
                shown, f"name the folder of container {resource.container!r}, too"
            )
        if not (_PLAIN_NAME.fullmatch(resource.section) and _PLAIN_NAME.fullmatch(resource.id)):
            raise UnreadableContent(ascii(shown), "is no file of a content repository")
        return f"{folder}/{resource.section}/{resource.id}"

    def _check(self, path: str, start: int, size: int) -> None:
        if start < 0 or size < 1:
            raise UnreadableContent(path, f"{size} bytes from byte {start} cannot be")
        with _reading(path):
            there = self._file(path).size()
        if start + size > there:
            raise UnreadableContent(path, "is too short")

    def _read(self, path: str, length: int, position: int) -> bytes:
        """Return so many bytes; a read may stop short of what is there."""
        parts: list[bytes] = []
        while length:
            with _reading(path):
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
def _reading(path: str) -> Iterator[None]:
    """Tell trouble with NiFi's file from trouble with ours."""
    try:
        yield
    except NotFound:
        raise UnreadableContent(path, "is missing") from None
    except PenstockError as error:
        raise UnreadableContent(path, f"cannot be read: {error}") from error
