"""Content under exceptions that nobody expects: each kind at each call of the file system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from penstock.core.errors import Closed, PenstockError
from penstock.storage.content.claims import ContentClaim
from penstock.storage.content.content_repository import ContentOptions, ContentRepository
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

FOLDER = "/content"
OPTIONS = ContentOptions(
    resource_bytes=300, sections=2, open_files=2, buffer_bytes=64, min_free_bytes=0
)


@dataclass
class ContentWorld:
    """A repository whose file system counts its calls, and the claims that it gave out."""

    faults: Faults = field(default_factory=Faults)
    fs: CrashableFileSystem = field(default_factory=CrashableFileSystem)
    claims: dict[ContentClaim, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open()
        self.recover()

    def open(self) -> None:
        port = self.faults.port(self.fs, results=("create", "open_read", "lock_folder"))
        self.content = ContentRepository.open(
            FOLDER, fs=port, clock=VirtualClock(), options=OPTIONS
        )

    def recover(self) -> None:
        """Do what the repository of FlowFiles does at its start."""
        self.content.make_durable({claim.resource for claim in self.claims})
        self.content.recover(Counter(claim.resource for claim in self.claims))
        self.content.on_release = self.faults.port(lambda: None)

    def restart(self) -> None:
        """Open the folder as a process that was killed left it."""
        self.faults.unclosed.clear()
        self.fs = self.fs.kill_process()
        self.open()

    def prepare(self, name: str) -> None:
        """Do what precedes an operation, without faults."""
        self.put(10)
        if name == "recover":
            self.fs.create(f"{FOLDER}/0/orphan").close()

    def settle(self, name: str) -> None:
        """Open the folder again where the operation ended its use."""
        if name in ENDS:
            self.restart()
            self.recover()

    def put(self, count: int) -> None:
        for number in range(len(self.claims), len(self.claims) + count):
            data = b"%03d" % number * 13
            claim = self.content.put(data)
            assert claim is not None
            self.claims[claim] = data

    def write(self, *pieces: bytes) -> None:
        with self.content.write() as writer:
            for piece in pieces:
                writer.write(piece)
            claim = writer.finish()
            assert claim is not None
            self.claims[claim] = b"".join(pieces)

    def release(self) -> None:
        """Release every claim, and delete."""
        while self.claims:
            claim, _ = self.claims.popitem()
            self.content.release(claim.resource)
        self.content.delete_released(self.content.references.released())

    def files(self) -> set[str]:
        return {
            name for one in self.fs.listdir(FOLDER) for name in self.fs.listdir(f"{FOLDER}/{one}")
        }


def put(world: ContentWorld) -> None:
    world.put(9)


def write(world: ContentWorld) -> None:
    world.write(b"a" * 50, b"b" * 100, b"c" * 20)
    world.write(b"d" * 400)


def write_and_abort(world: ContentWorld) -> None:
    with world.content.write() as writer:
        writer.write(b"x" * 100)


def sync(world: ContentWorld) -> None:
    world.content.sync()


def release(world: ContentWorld) -> None:
    world.release()


def read(world: ContentWorld) -> None:
    for claim, data in world.claims.items():
        assert world.content.read(claim) == data
        assert world.content.read(claim, 3, 5) == data[3:8]
        assert world.content.check(claim)


def read_streams(world: ContentWorld) -> None:
    claims = [*world.claims][:4]
    with ExitStack() as stack:
        readers = [stack.enter_context(world.content.open_read(claim)) for claim in claims]
        for claim, reader in zip(claims, readers, strict=True):
            reader.read(7)
            reader.seek(0)
            assert reader.read() == world.claims[claim]


def hold(world: ContentWorld) -> None:
    """Refer to content twice, and give the second reference back."""
    for claim in world.claims:
        world.content.hold(claim.resource)
        world.content.release(claim.resource)


def make_durable(world: ContentWorld) -> None:
    world.content.make_durable({claim.resource for claim in world.claims})


def recover(world: ContentWorld) -> None:
    """Begin again as after a kill; a start that raises is repeated."""
    world.restart()
    world.recover()


def seal(world: ContentWorld) -> None:
    world.content.seal()
    world.content.sync()


def close(world: ContentWorld) -> None:
    world.content.close()


OPERATIONS: Mapping[str, Callable[[ContentWorld], None]] = {
    one.__name__: one
    for one in (
        *(put, write, write_and_abort, sync, release, read, read_streams, hold, make_durable),
        *(recover, seal, close),
    )
}
# After these the world is opened again.
ENDS = ("recover", "close")


def check(name: str, plan: FaultPlan) -> Faults:
    """Do it under faults; content that a sync made durable afterwards survives a power loss."""
    world = ContentWorld()
    world.prepare(name)
    with plan.armed(world.faults):
        OPERATIONS[name](world)
    where = world.faults.raised
    if name == "close" and not plan.inside:
        assert not world.faults.unclosed, where
    world.settle(name)
    counted = sum(world.content.references.counts().values())
    # Where memory runs out between two statements, a claim may be released or not.
    extra = int(bool(plan.inside) and name in ("release", "hold"))
    assert counted - len(world.claims) in range(1 + extra), where
    read(world)
    check_durable(world)
    world.fs.powerless = False
    world.content.close()
    assert not world.faults.unclosed or plan.inside, where
    return world.faults


def check_durable(world: ContentWorld) -> None:
    """Check that all claims exist after power losses, once a sync has succeeded."""
    world.put(3)
    world.content.sync()
    for seed in range(3):
        again = ContentRepository.open(
            FOLDER, fs=world.fs.crash(seed), clock=VirtualClock(), options=OPTIONS
        )
        for claim, data in world.claims.items():
            assert again.read(claim) == data, world.faults.raised


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_a_sync_that_succeeds_makes_all_durable_whatever_was_raised_before(
    name: str, error: type[BaseException], after: bool
) -> None:
    assert count_single(lambda at: check(name, FaultPlan(error, at, after)).raised)


INSIDE = ("penstock.storage.content",)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_sync_that_succeeds_makes_all_durable_after_a_memory_error(name: str) -> None:
    assert count_single(lambda at: check(name, FaultPlan(MemoryError, at, inside=INSIDE)).raised)


PAIRS = FaultCases(OPERATIONS, check, calls=60, inside=INSIDE, inside_calls=600)


def test_a_sync_that_succeeds_makes_all_durable_after_a_pair_of_exceptions() -> None:
    failures = PAIRS.sample(30)
    assert not failures, failures[0]


@pytest.mark.parametrize("operation", [put, write, write_and_abort, sync, release])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_what_is_released_is_deleted_whatever_was_raised_before(
    operation: Callable[[ContentWorld], None], error: type[BaseException], after: bool
) -> None:
    at, raised = 0, True
    while raised:
        world = ContentWorld()
        world.put(10)
        with world.faults.armed(error, at, after=after):
            operation(world)
        raised = bool(world.faults.raised)
        where = f"{error.__name__} at call {at}, {world.faults.raised}"
        assert sum(world.content.references.counts().values()) == len(world.claims), where
        world.content.seal()
        world.release()
        # A file that was made and whose making raised is an orphan of the next start, and so is
        # one that the disk refused to delete.
        is_made = after and "create" in world.faults.raised
        is_kept = "unlink" in world.faults.raised and issubclass(error, PenstockError)
        assert len(world.files()) == int(is_made or (is_kept and not after)), where
        at += 1
    assert at > 1


@pytest.mark.parametrize("error", FAULTS)
def test_a_writer_of_which_a_write_raised_gives_no_claim(error: type[BaseException]) -> None:
    """A program that catches the error must not get a claim that lacks a part."""
    at, raised = 0, True
    while raised:
        world = ContentWorld()
        writer = world.content.write()
        with world.faults.armed(error, at):
            writer.write(b"a" * 50)
            writer.write(b"b" * 50)
        raised = bool(world.faults.raised)
        if raised:
            with pytest.raises(Closed):
                writer.write(b"c" * 50)
            with pytest.raises(Closed):
                writer.finish()
        at += 1
    assert at > 1


@pytest.mark.parametrize("error", FAULTS)
def test_an_opening_that_raised_leaves_the_folder_unlocked(error: type[BaseException]) -> None:
    at, raised = 0, True
    while raised:
        fs, faults = CrashableFileSystem(), Faults()
        fs.mkdir(f"{FOLDER}/0")
        port, clock = faults.port(fs), faults.port(VirtualClock())
        with faults.armed(error, at):
            ContentRepository.open(FOLDER, fs=port, clock=clock, options=OPTIONS).close()
        raised = bool(faults.raised)
        ContentRepository.open(FOLDER, fs=fs, clock=VirtualClock(), options=OPTIONS).close()
        at += 1
    assert at > 1
