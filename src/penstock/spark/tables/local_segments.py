"""Files of a remote deep storage as queries read them: from the cache on this host, if possible.

Owns which files of a datasource have a local path. Both engines read the same copies: the embedded
one reads only local files, and Spark's JVM needs no driver for the store then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.segments.segment_cache import SegmentCache, StoredFile
from penstock.spark.tables.table_files import TableFile, TableSource


class LocalSegments:
    """The files of queries, and their copies in a cache. Any thread.

    Args:
        cache: The cache.
        spark_is_here: Returns whether all of Spark runs on this host, so that it can read copies.
    """

    def __init__(
        self, cache: SegmentCache, spark_is_here: Callable[[], bool] = lambda: True
    ) -> None:
        self._cache = cache
        self.spark_is_here = spark_is_here
        # By datasource: its files, and the same with local paths. Replaced in one step.
        self._known: dict[str, tuple[Sequence[TableFile], tuple[TableFile, ...]]] = {}

    def paths(self, datasource: str, files: Sequence[TableFile]) -> tuple[TableFile, ...]:
        """Return the files with the paths of their copies, which may be missing.

        A file that is never copied keeps its path.
        """
        known = self._known.get(datasource)
        if known is not None and known[0] is files:
            return known[1]
        found = tuple(
            file if path is None else replace(file, path=path)
            for file in files
            for path in [self._cache.path_of(_stored(file))]
        )
        if known is not None and known[1] == found:
            found = known[1]  # the same object, which others recognize
        self._known[datasource] = files, found
        return found

    @contextlib.contextmanager
    def leased(
        self, files: Sequence[TableFile], check: Callable[[], object], until_s: float
    ) -> Iterator[None]:
        """Keep the copies of files for a block.

        Args:
            files: The files, as the deep storage has them.
            check: Called while files are fetched; an exception ends the wait.
            until_s: When the wait ends, as a time of the clock's monotonic seconds.

        Raises:
            NotCached: A copy is missing, and cannot be made in time.
        """
        stored = [one for one in map(_stored, files) if self._cache.path_of(one) is not None]
        if not stored:
            yield
            return
        with self._cache.leased(stored, check, until_s):
            yield

    def discard(self, path: str) -> bool:
        """Forget a copy that cannot be read; return whether the path is that of one."""
        return self._cache.discard(path)


def named_files(source: TableSource) -> Iterator[StoredFile]:
    """Yield the files of all datasources.

    Raises:
        PenstockError: They cannot be listed.
    """
    for files in source.tables().files.values():
        yield from map(_stored, files)


def _stored(file: TableFile) -> StoredFile:
    return StoredFile(file.path, file.size_bytes)
