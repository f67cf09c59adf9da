"""Topics in memory: a `BrokerPort`, a `DeadLetterPort`, and what the engines read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound, Unavailable
from penstock.indexing.engine import StreamRange, TopicRange
from penstock.indexing.read_plan import AvailableRange, SeenTopic

if TYPE_CHECKING:
    from tests.harness.cluster_simulation.world import Process, SimulatedWorld


@dataclass(slots=True)
class Topics:
    """Contents of the broker.

    Attributes:
        world: The world that it belongs to.
        topics: Messages of each stream partition of each topic.
        cursors: Cursors by topic and name.
        producers: The newest sequence of each producer of dead letters.
        down_until_s: Time until which the broker does not answer.
    """

    world: SimulatedWorld
    topics: dict[str, list[list[bytes]]] = field(default_factory=dict)
    cursors: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    producers: dict[tuple[str, str], int] = field(default_factory=dict)
    down_until_s: float = 0.0

    def read(self, wanted: StreamRange) -> Iterable[tuple[int, bytes]]:
        """Return the messages of a range, as an engine reads them."""
        assert isinstance(wanted, TopicRange), "the simulation has only topics"
        topic, _, partition = wanted.folder.rpartition("/")
        messages = self.topics[topic][int(partition)]
        return list(enumerate(messages[wanted.start : wanted.end], wanted.start))

    def lengths(self, topic: str) -> dict[int, int]:
        """Return how many messages each stream partition has."""
        return {p: len(messages) for p, messages in enumerate(self.topics.get(topic, []))}


class SimBroker:
    """The broker, for one process; used only on fibers."""

    def __init__(self, process: Process, held: Topics) -> None:
        self._process = process
        self._held = held

    def available(
        self,
        topic: str,
        *,
        after: Mapping[int, int] | None = None,
        wait_ms: int = 0,
        topic_id: str = "",
    ) -> SeenTopic:
        """Return the available offsets, after a wait for new messages if requested."""
        self._reach()
        held, world = self._held, self._process.world
        if topic not in held.topics:
            raise NotFound(f"topic {topic} does not exist")

        def has_news() -> bool:
            known = after if after is not None and topic_id in {"", topic} else {-1: 0}
            return any(held.lengths(topic).get(p, 1) > offset for p, offset in known.items())

        if wait_ms and not has_news():
            world.pause(wait_ms / 1_000, has_news)
        found = {
            p: AvailableRange(f"{topic}/{p}", 0, end) for p, end in held.lengths(topic).items()
        }
        return SeenTopic(topic, found)

    def append_time_ms(self, topic: str, partition: int, offset: int) -> int | None:
        """Return None: messages of the simulation have no times."""
        del topic, partition, offset
        self._reach()
        return None

    def set_cursor(self, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        """Set a cursor, which keeps messages from being deleted."""
        self._reach()
        self._held.cursors[topic, name] = dict(offsets)

    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None:
        """Delete a cursor."""
        del partitions
        self._reach()
        self._held.cursors.pop((topic, name), None)

    def publish(
        self, topic: str, messages: Sequence[bytes], *, producer: str, sequence: int
    ) -> None:
        """Append dead letters, each sequence once."""
        self._reach()
        held = self._held
        if held.producers.get((topic, producer), -1) < sequence:
            held.topics.setdefault(topic, [[]])[0].extend(messages)
            held.producers[topic, producer] = sequence
        if self._process.world.chance.fault("answer lost"):
            raise Unavailable("the broker's answer was lost")

    def _reach(self) -> None:
        process = self._process
        process.moment("before it asks the broker")
        process.world.let_others_run()
        if process.is_cut or self._held.down_until_s > process.world.now_s:
            raise Unavailable("the broker does not answer")
