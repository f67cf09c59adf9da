"""Files of projections: their locations, which exist, and which are no longer needed.

    <deep storage>/~projections/<datasource>/<plan's digest>/<digest of the file's path>.parquet

They are derived from segments' files and belong to no segment: a missing or damaged file is
created again. Owns this process's list of existing files. Other processes may create the same files
with the same content. Thread-safe: a mutex guards the known files, and is not held during calls to
the store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.segments.deep_storage import files_below
from penstock.segments.layout import PROJECTIONS, projection_file, projection_folder
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem

UNNEEDED_S: Final = 3_600.0
"""A file is deleted after its segment's file was not visible for this time."""
# The smallest possible Parquet file; Spark reads an empty file as no rows, without an error.
_BYTES_MIN: Final = 12


class ProjectionFiles:
    """The files of all projections below one deep storage.

    Args:
        deep_storage: A path or a URL.
        clock: Measures how long files were not needed.
        fs: File system for local files.

    Raises:
        InvalidRequest: The deep storage cannot be used.
    """

    def __init__(self, deep_storage: str, clock: Clock, *, fs: FileSystem | None = None) -> None:
        url = f"{deep_storage.rstrip('/')}/{PROJECTIONS}"
        self.root, self._files = files_below(url, fs or OsFileSystem())
        self._clock = clock
        self._mutex = threading.Lock()
        self._made: dict[str, dict[str, int]] = {}  # by folder and name: bytes, 0 if not known
        self._begun: set[str] = set()  # under temporary names, of any process
        self._unneeded_since_s: dict[str, float] = {}
        self._listed = False
        self._version = 0

    @property
    def version(self) -> int:
        """Return a number that grows when files are added or removed."""
        return self._version

    @property
    def is_empty(self) -> bool:
        """Return whether this process has no file."""
        with self._mutex:
            return not (self._begun or any(self._made.values()))

    def made(self, datasource: str, digest: str) -> Mapping[str, int]:
        """Return the names of a projection's files with their sizes in bytes; 0 if unknown."""
        with self._mutex:
            return dict(self._made.get(projection_folder(datasource, digest), {}))

    def location(self, datasource: str, digest: str, name: str) -> str:
        """Return the location of a file, as an engine opens it."""
        return f"{self.root}/{projection_folder(datasource, digest)}/{name}"

    def list_once(self) -> None:
        """List the existing files once; blocks on the store.

        Raises:
            Unavailable: The store does not answer.
        """
        if self._listed:
            return
        found = [relative for relative, _ in self._files.walk()]
        with self._mutex:
            for relative in found:
                folder, _, name = relative.rpartition("/")
                if name.endswith(".parquet") and not name.startswith("."):
                    self._made.setdefault(folder, {}).setdefault(name, 0)
                else:
                    self._begun.add(relative)
            self._listed = True
            self._version += 1

    def find(self, datasource: str, digest: str, segment_file: str) -> bool:
        """Return whether the projection of a segment's file exists; blocks on the store.

        Raises:
            Unavailable: The store does not answer.
        """
        folder, name = projection_folder(datasource, digest), projection_file(segment_file)
        size = self._files.size(f"{folder}/{name}")
        if size is None or size < _BYTES_MIN:
            return False
        self.add(datasource, digest, {name: size})
        return True

    def add(self, datasource: str, digest: str, sizes: Mapping[str, int]) -> None:
        """Record files that were made: sizes in bytes by name."""
        with self._mutex:
            known = self._made.setdefault(projection_folder(datasource, digest), {})
            if any(known.get(name) != size for name, size in sizes.items()):
                known.update(sizes)
                self._version += 1

    def damaged(self, datasource: str, digest: str, names: Iterable[str]) -> list[str]:
        """Return the files whose sizes differ from the written sizes."""
        if "://" in self.root:
            return []
        made, found = self.made(datasource, digest), []
        for name in names:
            path = Path(self.location(datasource, digest, name))
            try:
                size = path.stat().st_size if path.is_file() else 0
            except OSError:
                size = 0
            if size < _BYTES_MIN or size != (made.get(name) or size):
                found.append(name)
        return found

    def forget(self, datasource: str, digest: str, names: Iterable[str]) -> None:
        """Forget and delete files, so that they are built again."""
        folder = projection_folder(datasource, digest)
        for name in names:
            with self._mutex:
                self._made.get(folder, {}).pop(name, None)
                self._version += 1
            with suppress(PenstockError):  # the file will be found damaged again
                self._files.delete(f"{folder}/{name}")

    def delete_unneeded(self, needed: Mapping[str, Iterable[str]]) -> int:
        """Delete files that were unneeded at each call for an hour; return how many.

        Unfinished files of a killed worker are known only from this process's start on.

        Args:
            needed: The folders of the existing projections, with the names of the files that belong
                to visible files.

        Raises:
            Unavailable: The store does not answer.
        """
        now_s = self._clock.monotonic_s()
        kept = {f"{folder}/{name}" for folder, names in needed.items() for name in names}
        with self._mutex:
            there = {f"{folder}/{name}" for folder, names in self._made.items() for name in names}
            unneeded = (there | self._begun) - kept
            since_s = {one: self._unneeded_since_s.get(one, now_s) for one in unneeded}
            self._unneeded_since_s = since_s
        old = [one for one, begun_s in since_s.items() if now_s - begun_s >= UNNEEDED_S]
        for relative in old:
            folder, _, name = relative.rpartition("/")
            with self._mutex:
                self._made.get(folder, {}).pop(name, None)
                self._begun.add(relative)  # until it is deleted
                self._version += 1
            self._files.delete(relative)
            with self._mutex:
                self._begun.discard(relative)
        return len(old)
