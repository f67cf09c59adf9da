"""A mailbox and the thread that runs it, as parts of a process's lifecycle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.core.clock import Clock
from penstock.core.errors import Closed, Unavailable
from penstock.mailbox import MailboxProcessor
from penstock.services.emitter import AlertEvent, Emitter, Severity

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


class MailboxThread:
    """Makes a processor on a thread of its own, which owns it, and runs it there.

    Args:
        name: Of the mailbox and the thread.
        clock: Time.
        emitter: Told when a mail raised, which ends the loop.
        failed: Called then, too: the process is of no use any more.
    """

    def __init__(
        self, name: str, clock: Clock, emitter: Emitter, failed: Callable[[], None]
    ) -> None:
        self._name = name
        self._emitter = emitter
        self._clock = clock
        self._failed = failed
        self._made = threading.Event()
        self._processor: MailboxProcessor | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name} mailbox", daemon=True)

    @property
    def processor(self) -> MailboxProcessor:
        """The processor.

        Raises:
            Closed: It was not started.
        """
        if self._processor is None:
            raise Closed(f"the mailbox of the {self._name} is not started")
        return self._processor

    def start(self) -> None:
        """Begin to run mail.

        Raises:
            Unavailable: The thread did not start.
        """
        self._thread.start()
        if not self._made.wait(_START_TIMEOUT_S):
            raise Unavailable(f"the mailbox of the {self._name} did not start")

    def stop(self) -> None:
        """Run the mail that is there, and end."""
        self.processor.all_actions_completed()
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        processor = self._processor = MailboxProcessor(name=self._name, clock=self._clock)
        self._made.set()
        try:
            processor.run()
        except Exception:
            # The top of a thread: a fault of ours. The launcher starts the process anew, and what
            # was durable is found again.
            logger.exception("the mailbox of the %s failed; the process ends", self._name)
            text = f"the mailbox of the {self._name} failed; the process starts anew"
            self._emitter.emit(AlertEvent(text, Severity.SERVICE_FAILURE))
            self._failed()
        finally:
            processor.close()
