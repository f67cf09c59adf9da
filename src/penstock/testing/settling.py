"""Run mail, lane work and timers on one thread until nothing is left to do.

Owns the order of the three. Does not own several concurrent processors (`interleave`).
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
    """Run everything that is due within a period, which has passed afterwards.

    Args:
        processor: Processor of the mail and timers.
        clock: The processor's clock, which stops at each timer on the way.
        seconds: Length of the period; 0: only what is due now.
        lanes: Lanes whose work must run, too, if any.
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
