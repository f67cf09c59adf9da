"""Mailbox of a role as a part of its process.

An exception in it ends its thread and thus the process; durable state is recovered at the restart.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.mailbox import MailboxThread
from penstock.services.lifecycle import LifecycleHandler
from penstock.services.roles.runtime import RoleContext

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S: Final = 5.0


def role_mailbox(context: RoleContext) -> tuple[MailboxThread, LifecycleHandler]:
    """Return a mailbox on a thread of its own, and the handler that starts and stops it."""
    thread = MailboxThread(f"{context.name} mailbox", clock=context.clock, daemon=True)

    def stop() -> None:
        thread.stop()
        if not thread.join(_STOP_TIMEOUT_S):
            logger.warning("the mailbox of the %s is busy; it ends with the process", context.name)

    return thread, LifecycleHandler("mailbox", thread.start, stop)
