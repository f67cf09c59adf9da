"""Inbox of the scheduler: an event that cannot be delivered ends the loop."""

from __future__ import annotations

import pytest

from penstock.flow.scheduling.scheduler_inbox import SchedulerEvent, SchedulerInbox
from penstock.mailbox import MailboxProcessor, event_mail


class Event(SchedulerEvent):
    description = "an event"


def test_an_event_whose_mail_cannot_be_made_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[SchedulerEvent] = []
    processor = MailboxProcessor(name="scheduler")
    inbox = SchedulerInbox(processor, received.append)

    def fail(*_arguments: object) -> None:
        raise MemoryError("no command")

    with monkeypatch.context() as patch:
        patch.setattr(event_mail, "partial", fail)
        with pytest.raises(MemoryError):
            inbox.post(Event())
    with pytest.raises(MemoryError, match="no command"):
        processor.run_mailbox_step()
    assert not received
