"""The runner that tests of processors use."""

from __future__ import annotations

import pytest

from penstock.core.errors import Unavailable
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
