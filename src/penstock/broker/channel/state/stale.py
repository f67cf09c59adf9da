"""Deliveries from before a seek, whose answers must have no effect.

After a seek a message may be delivered again under the same id, to a consumer that still has it
from before. It will answer twice; the first answer belongs to the earlier delivery, and must not
finish the new one.

Invariant: an entry ends with its answer or at its deadline; so in the worst case a finished message
is delivered once more, and no message is finished without being delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.broker.channel.in_flight import Held


class StaleDeliveries:
    """The stale deliveries of one channel; few, and only until their deadlines."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, int]] = {}  # client -> id -> deadline
        self._earliest = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, held: Held, first: int) -> None:
        """Add stale deliveries; only ids from `first` on can be delivered again."""
        rows = zip(held.owners.tolist(), held.ids.tolist(), held.deadlines.tolist(), strict=True)
        for client, number, deadline in rows:
            if number >= first:
                known = self._of.setdefault(client, {})
                known[number] = max(deadline, known.get(number, 0))
        self._earliest = 0

    def take(self, client: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of a client's answers are for stale deliveries; each counts once."""
        known = self._of.get(client)
        if not known:
            return np.zeros(len(ids), np.bool_)
        taken = [known.pop(number, None) is not None for number in ids.tolist()]
        if not known:
            del self._of[client]
        return np.array(taken, np.bool_)

    def release(self, client: int) -> None:
        """Remove a client that has disconnected."""
        self._of.pop(client, None)

    def expire(self, now_ms: int) -> None:
        """Remove entries whose deadline has passed."""
        if not self._of or now_ms < self._earliest:
            return
        left = {
            client: {number: deadline for number, deadline in known.items() if deadline > now_ms}
            for client, known in self._of.items()
        }
        self._of = {client: known for client, known in left.items() if known}
        deadlines = (min(known.values()) for known in self._of.values())
        self._earliest = min(deadlines, default=0)
