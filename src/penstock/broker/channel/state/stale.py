"""Deliveries from before a seek: what their consumers still say of them counts for nothing.

After a seek a message may be delivered again under the same id, to a consumer that still has it
from before. It will answer twice; the first answer is for the delivery that was forgotten, and must
not finish the new one.

Invariant: an answer takes its delivery with it, and the time it had ends it; so at worst a finished
message comes once more, and none is finished unseen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.broker.channel.state.inflight import Held


class StaleDeliveries:
    """The forgotten deliveries of one channel; few, and not for long."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, int]] = {}  # client -> id -> deadline
        self._earliest = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, held: Held, first: int) -> None:
        """Take note of deliveries that were forgotten; those of ids from `first` on can recur."""
        rows = zip(held.owners.tolist(), held.ids.tolist(), held.deadlines.tolist(), strict=True)
        for client, number, deadline in rows:
            if number >= first:
                known = self._of.setdefault(client, {})
                known[number] = max(deadline, known.get(number, 0))
        self._earliest = 0

    def take(self, client: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Say which of a client's answers are for such deliveries; each counts once."""
        known = self._of.get(client)
        if not known:
            return np.zeros(len(ids), np.bool_)
        taken = [known.pop(number, None) is not None for number in ids.tolist()]
        if not known:
            del self._of[client]
        return np.array(taken, np.bool_)

    def release(self, client: int) -> None:
        """Forget a client that is gone."""
        self._of.pop(client, None)

    def expire(self, now_ms: int) -> None:
        """Forget those whose time is over."""
        if not self._of or now_ms < self._earliest:
            return
        left = {
            client: {number: deadline for number, deadline in known.items() if deadline > now_ms}
            for client, known in self._of.items()
        }
        self._of = {client: known for client, known in left.items() if known}
        deadlines = (min(known.values()) for known in self._of.values())
        self._earliest = min(deadlines, default=0)
