"""Schedule of the heartbeats of all connections with one timer.

Owns the schedule: connections are in slots of a tenth of a second, those with long intervals only
in every few slots, so that many heartbeats are sent, and answered, in one iteration of the loop.
Does not own the sending of a heartbeat (`tcp_connection`).

Invariants: a connection is in one slot at most; a heartbeat is never early, and late by at most a
slot or a thirtieth of its interval; without scheduled connections there is no timer.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from typing import Final, Protocol

_logger = logging.getLogger(__name__)

_SLOT_S: Final = 0.1
_STEPS: Final = 30


class HeartbeatConnection(Protocol):
    """A connection, as seen by the schedule.

    Attributes:
        heartbeat_slot: Its slot in the schedule; 0: none. Only the schedule changes it.
    """

    heartbeat_slot: int

    def send_heartbeat(self, now_s: float) -> None:
        """Send a heartbeat, and schedule the next one."""
        ...


class Heartbeats:
    """The schedule of one server. Used on its event loop only."""

    def __init__(self) -> None:
        self._slots: dict[int, set[HeartbeatConnection]] = {}
        self._order: list[int] = []  # a heap of the slots
        self._timer: asyncio.TimerHandle | None = None

    def plan(self, connection: HeartbeatConnection, delay_s: float) -> None:
        """Schedule a connection after a delay, replacing an earlier schedule."""
        self.forget(connection)
        loop = asyncio.get_running_loop()
        step = max(1, int(delay_s / _SLOT_S) // _STEPS)
        slot = math.ceil((loop.time() + delay_s) / _SLOT_S / step) * step
        waiting = self._slots.get(slot)
        is_new = waiting is None
        if waiting is None:
            heapq.heappush(self._order, slot)
            waiting = self._slots[slot] = set()
        waiting.add(connection)
        connection.heartbeat_slot = slot
        if self._timer is None or (is_new and self._order[0] == slot):
            self._set_timer(loop)

    def forget(self, connection: HeartbeatConnection) -> None:
        """Remove a connection from the schedule."""
        if connection.heartbeat_slot:
            # A slot that is being processed has been removed from the schedule.
            self._slots.get(connection.heartbeat_slot, set()).discard(connection)
            connection.heartbeat_slot = 0

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        timer = loop.call_at(self._order[0] * _SLOT_S, self._send_due) if self._order else None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _send_due(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        try:
            now_s = loop.time()
            while self._order and self._order[0] * _SLOT_S <= now_s:
                slot = heapq.heappop(self._order)
                for connection in self._slots.pop(slot, ()):
                    if (
                        connection.heartbeat_slot == slot
                    ):  # otherwise an earlier beat ended or moved it
                        connection.heartbeat_slot = 0
                        self._send_one(connection, now_s)
        finally:
            # A beat schedules the next one, which may have set the timer already.
            if self._timer is None:
                self._set_timer(loop)

    def _send_one(self, connection: HeartbeatConnection, now_s: float) -> None:
        try:
            connection.send_heartbeat(now_s)
        except Exception:
            # One connection must not prevent the heartbeats of others; it has aborted itself.
            _logger.exception("a heartbeat failed")
