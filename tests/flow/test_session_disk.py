"""Conservation with the real queues and the real repository, and processes that are killed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis.stateful import rule

from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.content_repository import ContentRepository
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.flow.session_kit import FakeRepository, SessionWorld
from tests.flow.test_session_model import Conservation, Session

OPTIONS = RepositoryOptions(snapshot_bytes=4_000, sync_in_background=False)
QUEUE = QueueOptions(swap_threshold=4, swap_batch=2)


class Queue(FlowFileQueue):
    """The real one, and what the model looks at."""

    @property
    def flowfiles(self) -> Sequence[FlowFile]:
        return self.listing.first(10_000)

    @property
    def unacknowledged(self) -> list[int]:
        return [self.size.unacknowledged_count, self.size.unacknowledged_bytes]


class Repository(FakeRepository):
    """The real one, and what the model looks at: both are told."""

    def __init__(self, real: FlowFileRepository, content: ContentRepository) -> None:
        super().__init__(content)
        self.real = real

    def next_ids(self, count: int) -> int:
        return self.real.next_ids(count)

    def next_queue_indexes(self, count: int) -> int:
        return self.real.next_queue_indexes(count)

    def state(self, key: str) -> bytes | None:
        return self.real.state(key)

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        if self.fails is None:
            self.real.commit(changes, durable=durable)
        super().commit(changes, durable=durable)

    def count_references(self, changes: dict[object, int]) -> None:
        """The real one did."""


class DiskWorld(SessionWorld):
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.open(CrashableFileSystem())

    def open(self, fs: CrashableFileSystem) -> None:
        self.fs = fs
        self.content = ContentRepository.open("content", fs=fs, clock=self.clock)
        real = FlowFileRepository.open(
            "flowfiles", fs=fs, clock=self.clock, content=self.content, options=OPTIONS
        )
        self.repository = Repository(real, self.content)
        self.queues = {
            name: Queue(name, real.swap_store, self.clock, QUEUE)
            for name in ("a", "b", "out", "copy")
        }
        # What sessions wrote and did not commit goes; nothing else may be amiss.
        assert {event.kind for event in real.recovered.events} <= {"content-orphaned"}
        for name, recovered in real.recovered.queues.items():
            queue = self.queues[name]
            queue.restore(recovered.flowfiles, recovered.swap_files)
            for flowfile in queue.flowfiles:
                self.repository.known[flowfile.id] = (name, flowfile)
        self.set_up()


class ConservationOnDisk(Conservation):
    def make_world(self) -> SessionWorld:
        return DiskWorld()

    @rule()
    def kill_the_process(self) -> None:
        world = self.world
        assert isinstance(world, DiskWorld)
        assert isinstance(world.fs, CrashableFileSystem)
        before = {number: queue for number, (queue, _) in world.repository.known.items()}
        for one in self.sessions:
            self.gave_back(one, whole=True)
        world.open(world.fs.kill_process())
        world.wire(loop=True)
        after = {number: queue for number, (queue, _) in world.repository.known.items()}
        assert after == before
        self.sessions = [Session(*world.begin()) for _ in range(2)]

    def teardown(self) -> None:
        assert isinstance(self.world.repository, Repository)
        self.world.repository.real.close()
        self.world.content.close()


ConservationOnDisk.TestCase.settings = settings(stateful_step_count=30)
test_conservation_on_disk = ConservationOnDisk.TestCase
