"""Events as mail: when they are handled, and that none is lost."""

from __future__ import annotations

import pytest

from penstock.mailbox import EventMail, MailboxProcessor, event_mail


class Owner:
    """A mailbox that keeps its events and mails in the order in which they ran."""

    def __init__(self, *, is_urgent: bool = False) -> None:
        self.ran: list[str] = []
        self.processor = MailboxProcessor(name="owner")
        self.events: EventMail[str] = EventMail(
            self.processor, self.ran.append, "an event", is_urgent=is_urgent
        )

    def mail(self, word: str) -> None:
        self.processor.main_executor.execute(lambda: self.ran.append(word))

    def run(self) -> list[str]:
        while self.processor.run_mailbox_step():
            pass
        return self.ran


@pytest.mark.parametrize(
    ("is_urgent", "order"), [(False, "step later a b"), (True, "step a b later")]
)
def test_an_event_is_handled_after_the_present_mail(*, is_urgent: bool, order: str) -> None:
    owner = Owner(is_urgent=is_urgent)

    def step() -> None:
        owner.events.put("a")
        owner.events.put("b")
        owner.ran.append("step")

    owner.processor.main_executor.execute(step)
    owner.mail("later")
    assert owner.run() == order.split()


def test_an_event_that_cannot_be_put_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError("no mail")

    with monkeypatch.context() as patch:
        patch.setattr(owner.processor.main_executor, "execute", fail)
        with pytest.raises(MemoryError):
            owner.events.put("a")
    with pytest.raises(MemoryError, match="no mail"):
        owner.run()


def test_an_event_whose_mail_cannot_be_made_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()

    def fail(*_arguments: object) -> None:
        raise MemoryError("no command")

    with monkeypatch.context() as patch:
        patch.setattr(event_mail, "partial", fail)
        with pytest.raises(MemoryError):
            owner.events.put("a")
    with pytest.raises(MemoryError, match="no command"):
        owner.run()


def test_a_failure_ends_the_loop_and_a_closed_mailbox_ignores_both() -> None:
    owner = Owner()
    owner.events.fail(RuntimeError("memory differs from the store"))
    with pytest.raises(RuntimeError, match="differs"):
        owner.run()
    owner.processor.close()
    owner.events.put("a")
    owner.events.fail(RuntimeError("too late"))
    assert owner.ran == []
