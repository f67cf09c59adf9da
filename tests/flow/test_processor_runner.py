"""The runner that tests of processors use."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock.core.errors import Dependency, Unavailable
from penstock.flow.processor import (
    INT,
    ProcessContext,
    ProcessError,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.testing.flow import ProcessorRunner


class Shout(Processor):
    """Make text loud."""

    success = Relationship("Loud.")
    failure = Relationship("Too long.")
    most_bytes = Property(INT, default=10)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        flowfile = session.get()
        if flowfile is None:
            context.yield_()
            return
        if flowfile.size > self.most_bytes:
            session.transfer(flowfile, self.failure)
            return
        if flowfile.attributes.get("refuse"):
            raise ProcessError("refused")
        session.write(flowfile, session.read_all(flowfile).upper())
        session.state.set({"last": flowfile.attributes["filename"]})
        session.transfer(flowfile, self.success)


def test_what_goes_where_is_seen() -> None:
    with ProcessorRunner(Shout, {"most_bytes": 5}) as runner:
        runner.enqueue(b"hello", filename="a")
        runner.enqueue(b"too long for it")
        assert runner.run_until_idle() == 2
        assert [sent.content for sent in runner.sent("success")] == [b"HELLO"]
        assert runner.counts() == {"success": 1, "failure": 1}
        assert runner.yielded_ms == 1_000
        runner.clear()
        assert runner.counts() == {}


def test_what_was_committed_is_there_after_a_restart() -> None:
    with ProcessorRunner(Shout) as runner:
        runner.enqueue(b"one", filename="1")
        runner.enqueue(b"two", filename="2")
        runner.run()
        runner.restart()
        assert runner.state == {"last": "1"}
        assert [sent.content for sent in runner.sent("success")] == [b"ONE"]
        runner.run()
        assert [sent.content for sent in runner.sent("success")] == [b"ONE", b"TWO"]


def test_what_raises_is_rolled_back_and_penalized() -> None:
    with ProcessorRunner(Shout) as runner:
        runner.enqueue(b"one", refuse="yes")
        with pytest.raises(ProcessError):
            runner.run()
        assert len(runner.queued) == 1
        assert runner.run_until_idle() == 0
        runner.advance(30_000)
        with pytest.raises(ProcessError):
            runner.run()


class Batches(Processor):
    """Takes many at once, and raises at some."""

    success = Relationship("Good.")

    def on_trigger(self, _context: ProcessContext, session: ProcessSession) -> None:
        taken = session.get_many(100)
        for flowfile in taken:
            if session.read_all(flowfile) == b"bad":
                raise ValueError("bad")
            if session.read_all(flowfile) == b"refused":
                raise ProcessError("refused")
        session.transfer(taken, self.success)


def test_a_batch_that_raises_is_retried_in_halves_as_in_a_service() -> None:
    with ProcessorRunner(Batches) as runner:
        for content in (b"1", b"2", b"bad", b"4"):
            runner.enqueue(content)
        with pytest.raises(ValueError, match="bad"):
            runner.run()
        now_ms = runner.context.clock.now_ms()
        assert not any(one.is_penalized(now_ms) for one in runner.queued)
        while len(runner.queued) > 1 or not runner.queued[0].is_penalized(now_ms):
            with suppress(ValueError):
                runner.run()
        assert [sent.content for sent in runner.sent("success")] == [b"1", b"2", b"4"]


def test_a_batch_whose_processor_refuses_it_is_penalized_whole() -> None:
    with ProcessorRunner(Batches) as runner:
        for content in (b"1", b"refused"):
            runner.enqueue(content)
        with pytest.raises(ProcessError):
            runner.run()
        now_ms = runner.context.clock.now_ms()
        assert [one.is_penalized(now_ms) for one in runner.queued] == [True, True]


def test_a_commit_that_fails_changes_nothing() -> None:
    def full_disk() -> None:
        raise Unavailable("no space left on the device; free space")

    with ProcessorRunner(Shout) as runner:
        runner.enqueue(b"one")
        runner.before_commit(full_disk)
        with pytest.raises(Unavailable):
            runner.run()
        assert len(runner.queued) == 1
        assert runner.state == {}


AWAY = Unavailable("no broker answers", dependency=Dependency.BROKER)


class Unreachable(Processor):
    """Raises while its dependency fails."""

    success = Relationship("All.")
    is_away = True

    def on_scheduled(self, context: ProcessContext) -> None:
        if self.is_away:
            raise AWAY

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        raise AWAY


def test_what_a_start_or_a_trigger_raises_is_reported_as_in_a_service() -> None:
    runner = ProcessorRunner(Unreachable)
    with pytest.raises(Unavailable):
        runner.start()
    assert runner.unavailable is AWAY
    runner.processor.is_away = False
    with runner:
        assert runner.unavailable is None
        with pytest.raises(Unavailable):
            runner.run()
        assert runner.unavailable is AWAY
