"""The mailbox alone: states, order, visibility, and a naive model under random operations."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Closed
from penstock.mailbox import MailboxState, MailOptions, TaskMailbox, WrongThread
from penstock.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail
from tests.mailbox.thread_kit import in_thread

DEFAULT, DEFERRABLE, URGENT = MailOptions.DEFAULT, MailOptions.DEFERRABLE, MailOptions.URGENT


def mail(name: str, priority: int = MIN_PRIORITY, options: MailOptions = DEFAULT) -> Mail:
    return Mail(lambda: None, priority, name, (), options)


def names(mails: list[Mail]) -> list[str]:
    return [one.description for one in mails]


def take_all(box: TaskMailbox) -> list[str]:
    taken = []
    while (one := box.try_take()) is not None:
        taken.append(one)
    return names(taken)


# Mail


def _description(taken: Mail | None) -> str:
    assert taken is not None
    return taken.description


def test_a_description_is_rendered_only_when_read() -> None:
    class Loud:
        rendered = 0

        def __str__(self) -> str:
            Loud.rendered += 1
            return "loud"

    one = Mail(lambda: None, 0, "greet %s", (Loud(),))
    assert Loud.rendered == 0
    assert one.description == "greet loud"
    assert repr(one) == "<Mail greet loud>"
    assert "function" in Mail(lambda: None).description


def test_a_deferrable_mail_keeps_its_created_priority_beside_the_visible_one() -> None:
    one = mail("a", 5, DEFERRABLE)
    assert (one.priority, one.created_priority, one.urgent) == (MIN_PRIORITY, 5, False)


# Order


def test_first_in_first_out_with_urgent_mail_before() -> None:
    box = TaskMailbox()
    for name, options in [("a", DEFAULT), ("U", URGENT), ("b", DEFERRABLE), ("V", URGENT)]:
        box.put(mail(name, options=options))
    assert take_all(box) == ["U", "V", "a", "b"]


def test_a_take_skips_what_its_priority_may_not_see() -> None:
    box = TaskMailbox()
    for name, priority in [("up", 0), ("own", 1), ("down", 2), ("news", MAX_PRIORITY)]:
        box.put(mail(name, priority))
    assert _description(box.try_take(3)) == "news"
    assert _description(box.try_take(1)) == "own"
    assert _description(box.try_take(1)) == "down"
    assert box.try_take(1) is None
    assert box.has_mail()
    assert take_all(box) == ["up"]


def test_deferrable_mail_is_hidden_from_yields_but_not_at_the_end_of_an_operator() -> None:
    box = TaskMailbox()
    box.put(mail("long", 5, DEFERRABLE))
    assert box.try_take(0) is None
    assert box.try_take(6, ignoring_deferrable=True) is None
    assert _description(box.try_take(5, ignoring_deferrable=True)) == "long"


def test_a_batch_is_what_was_there_and_does_not_grow() -> None:
    box = TaskMailbox()
    for name in "abc":
        box.put(mail(name))
    assert box.create_batch()
    box.put(mail("d"))
    assert box.create_batch()  # again: the one under way
    assert [_description(box.try_take_from_batch()) for _ in range(3)] == ["a", "b", "c"]
    assert box.try_take_from_batch() is None
    assert box.create_batch()
    assert _description(box.try_take_from_batch()) == "d"
    assert not box.create_batch()


def test_urgent_mail_comes_within_a_batch_and_without_one() -> None:
    box = TaskMailbox()
    box.put(mail("a"))
    box.create_batch()
    box.put(mail("U", options=URGENT))
    in_thread(lambda: box.put(mail("V", options=URGENT)))
    assert _description(box.try_take_from_batch()) == "U"
    assert _description(box.try_take_from_batch()) == "V"
    assert _description(box.try_take_from_batch()) == "a"
    box.put(mail("W", options=URGENT))
    assert _description(box.try_take_from_batch()) == "W"


def test_a_take_out_of_the_batch_leaves_the_rest_of_it_a_batch() -> None:
    box = TaskMailbox()
    for name, priority in [("a", 0), ("b", 9), ("c", 0)]:
        box.put(mail(name, priority))
    box.create_batch()
    box.put(mail("late", 9))
    assert _description(box.try_take(9)) == "b"
    assert _description(box.try_take(9)) == "late"
    assert [one.description for one in box.batch()] == ["a", "c"]


def test_drain_keeps_the_order_in_which_the_loop_would_have_run_it_all() -> None:
    box = TaskMailbox()
    for name in "ab":
        box.put(mail(name))
    box.create_batch()
    for name, options in [("c", DEFAULT), ("U", URGENT), ("d", DEFAULT), ("V", URGENT)]:
        box.put(mail(name, options=options))
    assert box.size == 6
    assert names(box.drain()) == ["U", "V", "a", "b", "c", "d"]
    assert box.size == 0
    assert box.state is MailboxState.OPEN


# States


def test_a_quiesced_mailbox_gives_what_it_has_and_takes_nothing() -> None:
    box = TaskMailbox("m")
    box.put(mail("a"))
    box.create_batch()
    box.put(mail("b"))
    box.put(mail("U", options=URGENT))
    box.quiesce()
    box.quiesce()
    with pytest.raises(Closed, match="m is quiesced; to put <Mail c> it must be open"):
        box.put(mail("c"))
    assert box.state is MailboxState.QUIESCED
    assert [one.description for one in box.batch()] == ["U", "a"]
    assert box.take().description == "b"
    with pytest.raises(Closed, match="none can arrive"):
        box.take()


def test_a_closed_mailbox_does_neither_and_hands_back_what_was_left_once() -> None:
    box = TaskMailbox("m")
    box.put(mail("a"))
    box.put(mail("U", options=URGENT))
    assert names(box.close()) == ["U", "a"]
    assert box.close() == []
    assert box.state is MailboxState.CLOSED
    for use in (box.try_take, box.take, box.try_take_from_batch):
        with pytest.raises(Closed, match="open or quiesced"):
            use()
    with pytest.raises(Closed):
        box.put(mail("b", options=URGENT))
    assert not box.create_batch()
    assert not box.has_mail()
    assert box.drain() == []
    box.quiesce()
    assert box.state is MailboxState.CLOSED


def test_only_the_owner_takes_and_changes_the_state() -> None:
    box = TaskMailbox("m")
    box.put(mail("a"))
    for use in (
        *(box.take, box.try_take, box.try_take_from_batch),
        *(box.create_batch, box.extend_batch, box.has_mail, box.drain, box.quiesce, box.close),
    ):
        with pytest.raises(WrongThread, match="only its own thread"):
            in_thread(use)
    assert box.size == 1
    assert box.is_mailbox_thread
    with pytest.raises(WrongThread, match="another thread"):
        in_thread(box.bind)


def test_a_mailbox_can_be_filled_before_it_has_a_thread() -> None:
    box = TaskMailbox(bind=False)
    box.put(mail("a"))
    with pytest.raises(WrongThread, match="no thread yet"):
        box.try_take()
    in_thread(lambda: (box.bind(), box.try_take(), box.close()))
    with pytest.raises(WrongThread):
        box.try_take()


# Exclusive sections


def test_an_exclusive_section_may_put_and_change_the_state_itself() -> None:
    box = TaskMailbox()

    def act() -> str:
        box.put(mail("a"))
        box.run_exclusively(lambda: box.put(mail("b")))
        box.quiesce()
        with pytest.raises(Closed):
            box.put(mail("c"))
        return "result"

    assert box.run_exclusively(act) == "result"
    assert take_all(box) == ["a", "b"]
    with pytest.raises(Closed):
        box.put(mail("d"))


def test_puts_of_other_threads_wait_for_the_end_of_an_exclusive_section() -> None:
    box = TaskMailbox()
    entered = threading.Event()

    def other() -> None:
        entered.set()
        box.put(mail("other"))

    thread = threading.Thread(target=other)

    def act() -> None:
        thread.start()
        assert entered.wait(120)
        # It cannot be seen here however long we look; a few looks will do.
        assert all(box.size == 0 for _ in range(1_000))
        box.put(mail("own"))

    box.run_exclusively(act)
    thread.join()
    assert take_all(box) == ["own", "other"]


def test_an_exclusive_section_that_raises_lets_go() -> None:
    box = TaskMailbox()
    with pytest.raises(ZeroDivisionError):
        box.run_exclusively(lambda: 1 // 0)
    in_thread(lambda: box.put(mail("a")))
    assert take_all(box) == ["a"]


# Against a naive model


@dataclass
class NaiveMailbox:
    """The same rules on one plain list, without any thought of speed or threads."""

    mails: list[Mail] = field(default_factory=list)
    batch: list[Mail] = field(default_factory=list)
    state: str = "open"

    def in_order(self) -> list[Mail]:
        return sorted(self.mails, key=lambda one: not one.urgent)

    def remove(self, one: Mail | None) -> Mail | None:
        if one is not None:
            self.mails.remove(one)
            if one in self.batch:
                self.batch.remove(one)
        return one

    def first(self, priority: int, attribute: str) -> Mail | None:
        visible = (one for one in self.in_order() if getattr(one, attribute) >= priority)
        return self.remove(next(visible, None))

    def try_take_from_batch(self) -> Mail | None:
        ready = (one for one in self.in_order() if one.urgent or one in self.batch)
        return self.remove(next(ready, None))

    def create_batch(self) -> bool:
        if not self.batch:
            self.batch = [one for one in self.mails if not one.urgent]
        return bool(self.mails)

    def drain(self) -> list[Mail | None]:
        return [self.remove(one) for one in self.in_order()]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(-1, 3), st.sampled_from(list(MailOptions))),
        st.tuples(st.just("try_take"), st.integers(-1, 4), st.none()),
        st.tuples(st.just("ignoring"), st.integers(-1, 4), st.none()),
        st.tuples(
            st.sampled_from(["create_batch", "from_batch", "from_batch", "size", "extend_batch"]),
            st.none(),
            st.none(),
        ),
        st.tuples(st.sampled_from(["drain", "quiesce"]), st.none(), st.none()),
    ),
    max_size=40,
)


@given(operations, st.booleans())
def test_random_operations_agree_with_a_naive_model(
    steps: list[tuple[str, int | None, MailOptions | None]], close: bool
) -> None:
    box, naive = TaskMailbox(), NaiveMailbox()
    for number, (step, priority, options) in enumerate(steps):
        if step == "put":
            assert priority is not None
            assert options is not None
            one = mail(f"{number}", priority, options)
            if naive.state == "open":
                box.put(one)
                naive.mails.append(one)
            else:
                with pytest.raises(Closed):
                    box.put(one)
        elif step == "try_take":
            assert priority is not None
            assert box.try_take(priority) is naive.first(priority, "priority")
        elif step == "ignoring":
            assert priority is not None
            taken = box.try_take(priority, ignoring_deferrable=True)
            assert taken is naive.first(priority, "created_priority")
        elif step == "from_batch":
            assert box.try_take_from_batch() is naive.try_take_from_batch()
        elif step == "create_batch":
            assert box.create_batch() == (naive.create_batch() or bool(naive.mails))
        elif step == "extend_batch":
            box.extend_batch()
            naive.batch = [one for one in naive.mails if not one.urgent]
        elif step == "drain":
            assert box.drain() == naive.drain()
        elif step == "quiesce":
            box.quiesce()
            naive.state = "quiesced"
        assert box.size == len(naive.mails)
        assert box.has_mail() == bool(naive.mails)
    if close:
        assert box.close() == naive.drain()
    else:
        assert box.drain() == naive.drain()
