"""Deletion of the files of segments whose rows are gone: what kill tasks and the overlord share.

A file that cannot be deleted stays for the janitor, which finds it as an orphan.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.storage.metadata import SegmentRow

_log = logging.getLogger(__name__)


class FileKiller(Protocol):
    """Deep storage, as far as files are deleted there."""

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file; one that is gone is fine."""
        ...


def delete_files(store: FileKiller, free: Iterable[SegmentRow]) -> Iterator[str]:
    """Delete the files of killed segments, one by one; yield the id of each whose file is gone.

    Args:
        store: Where the files are.
        free: Killed segments whose files no row names any more.
    """
    for row in free:
        load_spec = row.payload.get("loadSpec")
        if not isinstance(load_spec, dict) or load_spec.get("type") == "tombstone":
            continue
        try:
            store.kill(load_spec)
        except PenstockError as error:
            _log.warning("the file of %s stays for the janitor: %s", row.id, error)
        else:
            yield row.id
