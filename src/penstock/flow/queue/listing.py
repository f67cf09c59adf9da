"""Queue listing: lists, searches and counts, without taking FlowFiles; includes swap files.

Owns iterating over memory and columns. Does not own the state of the queue. Concurrent changes may
be included or not. A swap file that cannot be read is skipped; the next poll handles it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.core.errors import PenstockError
from penstock.flow.flowfile import FlowFile

if TYPE_CHECKING:
    from penstock.flow.queue.queue_state import QueueState
    from penstock.flow.swap.swap_pages import SwapPage

Mask = npt.NDArray[np.bool_]
Predicate = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class AttributeIs:
    """Predicate that needs one column of a swap file instead of all."""

    name: str
    value: str

    def __call__(self, attributes: Mapping[str, str]) -> bool:
        """Return whether the attribute has the value."""
        return attributes.get(self.name) == self.value


def match_mask(page: SwapPage, predicate: Predicate) -> Mask:
    """Return a mask of the rows of a page that match a predicate."""
    if isinstance(predicate, AttributeIs):
        value = predicate.value
        likes = [one == value for one in page.attribute(predicate.name)]
    else:
        likes = [bool(predicate(one)) for one in page.attributes()]
    return np.array(likes, np.bool_)


class QueueListing:
    """Listing of one queue; may be used from any thread.

    Args:
        queue_state: State of the queue.
    """

    def __init__(self, queue_state: QueueState) -> None:
        self._queue_state = queue_state

    def first(self, limit: int = 100, skip: int = 0) -> Sequence[FlowFile]:
        """Return the first FlowFiles in the order of polling, penalized ones last.

        Args:
            limit: Maximum number of FlowFiles.
            skip: Number of FlowFiles to leave out at the beginning. They are read, too.
        """
        queue_state = self._queue_state
        with queue_state.mutex:
            queue_state.admit_due()
            for store in queue_state.stores:
                while store.cursors.resolve_one():
                    pass
            lines = chain(queue_state.main.in_order(), queue_state.penalized.in_order())
            found = list(islice(lines, skip, skip + limit))
        queue_state.report_damages()
        return found

    def search(self, predicate: Predicate, limit: int = 100) -> Sequence[FlowFile]:
        """Return FlowFiles whose attributes match a predicate, in no order.

        Args:
            predicate: `AttributeIs` reads one column of swap files; any other reads all attributes.
            limit: Maximum number of FlowFiles.
        """
        found = [one for one in self._in_memory() if predicate(one.attributes)][:limit]
        for page, left in self._pages():
            if len(found) >= limit:
                break
            rows = np.flatnonzero(match_mask(page, predicate) & left)[: limit - len(found)]
            if len(rows):
                found += page.flowfiles(rows)
        return found

    def find(self, flowfile_id: int) -> FlowFile | None:
        """Return the FlowFile with this id; None if it is not in the queue.

        FlowFiles that sessions took are not in the queue.
        """
        for one in self._in_memory():
            if one.id == flowfile_id:
                return one
        for page, left in self._pages():
            rows = np.flatnonzero((page.integers("id")[0] == flowfile_id) & left)
            if len(rows):
                return page.flowfiles(rows)[0]
        return None

    def count_by(self, attribute: str) -> Mapping[str | None, int]:
        """Return the number of FlowFiles for each value of an attribute; None: without it."""
        counts: Counter[str | None] = Counter(
            one.attributes.get(attribute) for one in self._in_memory()
        )
        for page, left in self._pages():
            values = page.attribute(attribute)
            counts.update(
                values if left.all() else [values[row] for row in np.flatnonzero(left).tolist()]
            )
        return counts

    def _in_memory(self) -> list[FlowFile]:
        queue_state = self._queue_state
        with queue_state.mutex:
            queue_state.sort_returned()
            return [one for store in queue_state.stores for one in store.memory.flowfiles()]

    def _pages(self) -> Iterator[tuple[SwapPage, Mask]]:
        """Yield the pages of all swap files, with a mask of their remaining rows."""
        queue_state = self._queue_state
        with queue_state.mutex:
            files = [
                (cursor.file, cursor.remaining())
                for store in queue_state.stores
                for cursor in store.cursors
            ]
        for file, left in files:
            with suppress(PenstockError):
                reader = queue_state.swap_store.open(file)
                try:
                    for page in reader.pages():
                        yield page, left[page.start : page.start + page.count]
                finally:
                    reader.close()
