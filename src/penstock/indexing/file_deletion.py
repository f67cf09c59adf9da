"""Deletion of the files of killed segments, for kill tasks and the overlord.

If a file cannot be deleted, the janitor finds it as an orphan.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.storage.metadata import SegmentRow

_log = logging.getLogger(__name__)


class FileDeleter(Protocol):
    """Deep storage, as used for deletions."""

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file; a missing one is ignored."""
        ...


def delete_files(store: FileDeleter, free: Iterable[SegmentRow]) -> Iterator[str]:
    """Delete the files of killed segments, one by one; yield the id of each whose file is deleted.

    Args:
        store: The store of the files.
        free: Killed segments whose files no row names any longer.
    """
    for row in free:
        load_spec = row.payload.get("loadSpec")
        if not isinstance(load_spec, dict) or load_spec.get("type") == "tombstone":
            continue
        try:
            store.kill(load_spec)
        except PenstockError as error:
            _log.warning("cannot delete the file of %s, the janitor will: %s", row.id, error)
        else:
            yield row.id
