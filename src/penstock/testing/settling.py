"""One thread plays everybody: mail, work in lanes and timers run until nothing is left to do.

Owns the order of the three. Does not own several processors beside each other (`interleave`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.mailbox import MailboxProcessor
    from penstock.testing.clock import VirtualClock
    from penstock.testing.lanes import StepLanes


def settle(
    processor: MailboxProcessor,
    clock: VirtualClock,
    seconds: float = 0.0,
    lanes: StepLanes | None = None,
) -> None:
    """Run everything that is due within a time, which has passed afterwards.

    Args:
        processor: Whose mail and timers.
        clock: The one of the processor; it stops at each timer on the way.
        seconds: How long; 0: what is due now.
        lanes: Where the processor has work done, if that is to run, too.
    """
    end_s = clock.monotonic_s() + seconds
    while True:
        while processor.run_mailbox_step() or (lanes is not None and lanes.run_waiting()):
            pass
        due_s = processor.mailbox.alarm_s
        if due_s > end_s:
            clock.advance_to(end_s)
            return
        clock.advance_to(due_s)
