"""PublishTopic, against a real broker: each message once, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.options import BrokerOptions
from penstock.core.errors import CorruptData, Dependency, Unavailable
from penstock.flow.processor import PropertyValue
from penstock.flow.processors.topics.publish_topic import (
    PublishBatch,
    PublishIntents,
    PublishTopic,
    read_intents,
)
from penstock.testing.flow import ProcessorRunner
from tests.broker.broker_kit import RunningBroker
from tests.kits.this_host_kit import this_host_listed


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


class Killed(Exception):
    """The process ends here."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("broker")
    with RunningBroker(BrokerOptions(folder=str(folder), http_port=0)) as running:
        yield running


def runner_of(broker: RunningBroker, **properties: PropertyValue) -> ProcessorRunner[PublishTopic]:
    return ProcessorRunner(PublishTopic, {"broker_url": broker.url, **properties})


def messages(broker: RunningBroker, topic: str) -> list[bytes]:
    return sorted(message for partition in broker.stored(topic) for message in partition)


def test_each_flowfile_is_a_message(broker: RunningBroker) -> None:
    with runner_of(broker, topic="${to}") as runner:
        for number in range(30):
            runner.enqueue(b"%02d\n" % number, to=f"each{number % 2}")
        assert runner.run_until_idle() == 1
        assert runner.counts() == {"success": 30}
        assert messages(broker, "each0") == [b"%02d\n" % number for number in range(0, 30, 2)]
        assert len(messages(broker, "each1")) == 15


def test_each_line_is_a_message(broker: RunningBroker) -> None:
    with runner_of(broker, topic="lines", message="line", key="${key}") as runner:
        runner.enqueue(b"a\n\nb", key="k")
        runner.enqueue(b"c\n", key="k")
        runner.enqueue(b"\n\n", key="k")
        runner.run_until_idle()
        assert runner.counts() == {"success": 3}
        assert messages(broker, "lines") == [b"a", b"b", b"c"]


def test_a_large_flowfile_goes_in_parts(broker: RunningBroker) -> None:
    lines = [b"line %06d" % number for number in range(20_000)]
    with runner_of(broker, topic="large", message="line", batch_bytes="30 KB") as runner:
        runner.enqueue(b"small")
        runner.enqueue(b"\n".join(lines))
        runner.enqueue(b"zmall")
        assert runner.run_until_idle() == 3
        assert runner.counts() == {"success": 3}
        assert messages(broker, "large") == [*lines, b"small", b"zmall"]


def test_what_is_no_message_fails(broker: RunningBroker) -> None:
    with runner_of(broker, topic="${to}", message="line", batch_bytes="100 B") as runner:
        runner.enqueue(b"", to="bad")
        runner.enqueue(b"x", to="")
        runner.enqueue(b"x", to="not a topic!")
        runner.enqueue(b"a\n" * 30 + b"x" * 200 + b"\nb", to="bad")
        runner.enqueue(b"good", to="bad")
        runner.run_until_idle()
        failed = runner.sent("failure")
        assert len(failed) == 4
        assert all(sent.attributes["error.reason"] for sent in failed)
        assert failed[-1].attributes["publish.position"] == "60"
        assert messages(broker, "bad") == [b"a"] * 30 + [b"good"]


def test_a_crash_before_the_commit_doubles_nothing(broker: RunningBroker) -> None:
    commits: list[bool] = []

    def crash() -> None:
        commits.append(True)
        if len(commits) == 2:  # the first writes the intent down
            raise Killed

    with runner_of(broker, topic="crash") as runner:
        runner.enqueue(b"one")
        runner.enqueue(b"two")
        runner.before_commit(crash)
        with pytest.raises(Killed):
            runner.run()
        assert messages(broker, "crash") == [b"one", b"two"]
        assert runner.counts() == {}
        runner.restart()
        runner.advance(60_000)
        runner.enqueue(b"three")
        runner.run_until_idle()
        assert runner.counts() == {"success": 3}
        assert messages(broker, "crash") == [b"one", b"three", b"two"]


def test_a_crash_between_parts_doubles_nothing(broker: RunningBroker) -> None:
    lines = [b"%04d" % number for number in range(1_000)]
    left = 0

    def crash() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    properties = {"broker_url": broker.url, "topic": "parts", "message": "line"}
    with runner_of(broker, topic="parts", message="line", batch_bytes="1 KB") as runner:
        runner.enqueue(b"\n".join(lines))
        for steps in (3, 2, 4):
            left = steps
            runner.before_commit(crash)
            with pytest.raises(Killed):
                runner.run()
            runner.restart({**properties, "batch_bytes": f"{500 + steps} B"})
            runner.advance(60_000)
        runner.run_until_idle()
        assert runner.counts() == {"success": 1}
        assert messages(broker, "parts") == lines


def test_while_the_broker_is_away_nothing_is_lost(tmp_path: Path) -> None:
    options = BrokerOptions(folder=str(tmp_path), http_port=0)
    with RunningBroker(options) as first:
        runner = runner_of(first, topic="away", timeout="2 sec")
        runner.enqueue(b"kept")
    with runner:
        runner.run()
        assert runner.yielded_ms
        reported = runner.unavailable
        assert reported is not None
        assert reported.dependency is Dependency.BROKER
        assert len(runner.queued) == 1
        with RunningBroker(BrokerOptions(folder=str(tmp_path), http_port=0)) as second:
            runner.restart({"broker_url": second.url, "topic": "away"})
            runner.run()
            assert runner.counts() == {"success": 1}
            assert messages(second, "away") == [b"kept"]
            assert runner.unavailable is None


def test_a_full_disk_keeps_what_is_to_be_published(broker: RunningBroker) -> None:
    def full() -> None:
        raise Unavailable("no space left on the device; free space")

    with runner_of(broker, topic="full") as runner:
        runner.enqueue(b"x")
        runner.before_commit(full)
        with pytest.raises(Unavailable):
            runner.run()
        runner.before_commit(lambda: None)
        runner.advance(60_000)
        runner.run_until_idle()
        assert messages(broker, "full") == [b"x"]


def test_others_follow_when_what_was_begun_is_taken_away(broker: RunningBroker) -> None:
    with runner_of(broker, topic="gone") as runner:
        begun = PublishIntents("p").open([PublishBatch(0, "gone", "", ("no such uuid",))])
        runner.context.state.set(begun.state())
        runner.enqueue(b"other")
        runner.run()
        assert runner.yielded_ms
        runner.advance(60_000)
        runner.run(2)
        assert runner.counts() == {"success": 1}


@given(
    st.lists(
        st.lists(st.builds(PublishBatch, st.just(0), st.text(), st.text(), st.just(("a", "b")))),
        max_size=5,
    )
)
def test_no_number_is_used_twice(rounds: list[list[PublishBatch]]) -> None:
    intents = PublishIntents("p")
    used: list[int] = []
    for batches in rounds:
        intents = read_intents(intents.open(batches).state(), "other")
        used += [batch.sequence for batch in intents.batches]
        intents = read_intents(intents.closed().state(), "other")
    assert used == sorted(set(used))
    assert intents.producer == "p"
    assert intents.batches == ()


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(CorruptData):
        read_intents({"producer": "p", "sequence": "x", "open": "[]"}, "n")
