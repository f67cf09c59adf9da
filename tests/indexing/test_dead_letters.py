"""Bad messages on their way: in order, each once, whatever was sent before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from penstock.core.errors import CorruptData, Unavailable
from penstock.indexing.task.dead_letters import DeadLetterSender, in_reading_order
from penstock.storage.disk import OsFileSystem
from tests.indexing.indexing_kit import FakeBroker, OneTask, event


def _has_persisted(task: OneTask, offset: int) -> bool:
    return task.report().persisted[0] == offset


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write_file(name: str, *places: tuple[int, int], size: int = 3) -> str:
        lines = [
            orjson.dumps({"partition": p, "offset": o, "message_base64": "x" * size})
            for p, o in places
        ]
        (tmp_path / name).write_bytes(b"\n".join(lines))
        return str(tmp_path / name)

    return write_file


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def sender(broker: FakeBroker) -> DeadLetterSender:
    return DeadLetterSender(OsFileSystem(), broker, "bad", "me")


def delivered(broker: FakeBroker) -> list[tuple[int, int]]:
    letters = [orjson.loads(message) for message in broker.topics.get("bad", [[]])[0]]
    return [(letter["partition"], letter["offset"]) for letter in letters]


def test_files_are_sent_in_reading_order_or_the_broker_would_drop_some(
    write: Callable[..., str], broker: FakeBroker
) -> None:
    # Named by the engine as it likes; the broker takes only growing sequence numbers.
    files = [write("a", (0, 7), (0, 9)), write("b", (1, 0)), write("c", (0, 2)), write("d")]
    ordered = in_reading_order(OsFileSystem(), files)
    assert [path[-1] for path in ordered] == ["c", "a", "b"]
    for path in ordered:
        sender(broker).send([path], {})
    assert delivered(broker) == [(0, 2), (0, 7), (0, 9), (1, 0)]


def test_what_was_sent_is_not_sent_again_though_the_broker_has_forgotten_who_sent_it(
    write: Callable[..., str], broker: FakeBroker
) -> None:
    path = write("a", (0, 1), (0, 4), (1, 4), (0, 8))
    assert sender(broker).send([path], {0: 5}) == {0: 9, 1: 5}
    broker.producers.clear()
    assert sender(broker).send([path], {0: 9, 1: 5}) == {}
    assert delivered(broker) == [(1, 4), (0, 8)]


def test_a_send_that_was_cut_anywhere_is_made_good_without_doubles(
    write: Callable[..., str], broker: FakeBroker
) -> None:
    path = write("a", *((0, n) for n in range(1_200)))
    answers = iter([False, True])  # the second chunk's answer is lost
    broker.lose_answers = lambda: next(answers, False)
    with pytest.raises(Unavailable):
        sender(broker).send([path], {})
    assert sender(broker).send([path], {}) == {0: 1_200}
    assert delivered(broker) == [(0, n) for n in range(1_200)]


def test_a_message_that_no_topic_takes_is_left_out_and_said(
    write: Callable[..., str], broker: FakeBroker
) -> None:
    sender(broker).send([write("a", (0, 3), size=2_000_000)], {})
    (message,) = broker.topics["bad"][0]
    assert orjson.loads(message) == {
        "partition": 0,
        "offset": 3,
        "message_left_out_bytes": 1_500_000,
    }


def test_a_file_that_is_damaged_is_named(
    write: Callable[..., str], broker: FakeBroker, tmp_path: Path
) -> None:
    path = write("a", (0, 1))
    (tmp_path / "a").write_bytes(b'{"partition": 0, "off')
    with pytest.raises(CorruptData, match="a line is not a dead letter") as caught:
        sender(broker).send([path], {})
    assert path in str(caught.value)


def test_replicas_send_the_same_chunks_whatever_their_files_hold(
    write: Callable[..., str], broker: FakeBroker
) -> None:
    def numbers(start: int, end: int) -> Iterator[object]:
        return ((0, n) for n in range(start, end))

    # Both have read offsets 0 to 1,199, in other batches.
    one = [write("a", *numbers(0, 700)), write("b", *numbers(700, 1_200))]
    other = [write("c", *numbers(0, 50)), write("d", *numbers(50, 1_200))]
    sender(broker).send(one, {})
    assert sender(broker).send(other, {}) == {0: 1_200}
    assert delivered(broker) == list(numbers(0, 1_200))


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_that_has_replicas_sends_when_its_sequence_is_closed(
    tmp_path: Path, replicas: int
) -> None:
    task = OneTask(tmp_path, replicas=replicas)
    for n in range(2):
        task.broker.add("flights", 0, [event(n), b"broken"])
        task.run(partial(_has_persisted, task, 2 * n + 2))
    for _ in range(50):
        task.step()
    sent = task.broker.topics.get("flights.dead-letter", [[]])[0]
    assert len(sent) == (2 if replicas == 1 else 0)
    task.ask(task.task.pause())
    task.ask(task.task.set_end_offsets({0: 4, 1: 0}, finish=True))
    task.run(lambda: task.task.result.state.complete)
    letters = [orjson.loads(m) for m in task.broker.topics["flights.dead-letter"][0]]
    assert [(x["partition"], x["offset"]) for x in letters] == [(0, 1), (0, 3)]
    task.metadata.close()
