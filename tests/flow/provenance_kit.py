"""A flow's repository that records provenance, and its reader, in memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from penstock.broker.message_bodies import parse_binary
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession, StateManager
from penstock.flow.provenance.provenance_reader import DerivedEvents, ProvenanceReader
from penstock.flow.provenance.replay import FlowFileReplays
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.repository.commit_spool import (
    CommitSpool,
)
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.session.services import SessionContext, SessionServices
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.content.options import ContentOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

SPOOL = "/t/provenance"


KEEP_MS = 60_000


class World:
    """A repository with a spool, and content that is kept for a minute."""

    def __init__(
        self,
        fs: CrashableFileSystem | None = None,
        clock: VirtualClock | None = None,
        *,
        spool_folder: str | None = SPOOL,
        living: ProvenanceReader | None = None,
    ):
        self.fs = fs or CrashableFileSystem()
        self.living = living
        """Reads after each flush of a script."""
        self.clock = clock or VirtualClock()
        self.uuids = 0
        content = ContentOptions(
            resource_bytes=100, min_free_bytes=0, retention_ms=KEEP_MS, retention_bytes=10_000
        )
        self.content = ContentRepository.open(
            "/t/content", fs=self.fs, clock=self.clock, options=content
        )
        self.repository = FlowFileRepository.open(
            "/t/flowfiles",
            fs=self.fs,
            clock=self.clock,
            content=self.content,
            options=RepositoryOptions(
                snapshot_bytes=4_000, snapshot_slice=2, sync_in_background=False
            ),
            spool_folder=spool_folder,
        )
        self.queues: dict[str, FlowFileQueue] = {}
        self.replays = FlowFileReplays(self.repository, self.content, self.clock, self.new_uuid)

    def new_uuid(self) -> str:
        self.uuids += 1
        return f"u{self.uuids}"

    def queue(self, name: str) -> FlowFileQueue:
        if name not in self.queues:
            self.queues[name] = FlowFileQueue(
                name, self.repository.swap_store, self.clock, QueueOptions()
            )
            found = self.repository.recovered.queues.get(name)
            if found is not None:
                self.queues[name].put_many(found.flowfiles)
        return self.queues[name]

    @contextlib.contextmanager
    def session(
        self, name: str, inputs: str = "", outputs: str = "", ended: str = ""
    ) -> Iterator[ProcessSession]:
        """A session of a processor: `outputs` is like `success:a,b failure:c`."""
        routes = dict(one.split(":") for one in outputs.split())
        context = SessionContext(
            name,
            StateManager(name, self.repository),
            inputs=[self.queue(one) for one in inputs.split()],
            outputs={k: [self.queue(one) for one in v.split(",")] for k, v in routes.items()},
            relationships=frozenset([*routes, *ended.split()]),
            auto_terminated=frozenset(ended.split()),
        )
        services = SessionServices(
            self.repository, self.content, self.clock, self.new_uuid, self.fs, records=True
        )
        transaction = SessionTransaction(context, services)
        yield ProcessSession(transaction)
        transaction.commit()
        transaction.calls.end()

    @property
    def spool(self) -> CommitSpool:
        assert self.repository.spool is not None
        return self.repository.spool

    def make(self, count: int = 1, content: bytes = b"") -> None:
        """Create FlowFiles, each in a commit."""
        for _ in range(count):
            with self.session("make", outputs="success:a") as session:
                one = session.create()
                if content:
                    one = session.write(one, content)
                session.transfer(one, "success")

    def sync(self) -> None:
        self.repository.sync()
        self.spool.flush()

    def look(self) -> None:
        """Show what is durable, and let the living reader read it."""
        self.spool.flush()
        if self.living is not None:
            all_events(self.living)

    def reader(self) -> ProvenanceReader:
        return ProvenanceReader(self.fs, SPOOL)

    def kinds(self, *flowfiles: FlowFile) -> list[str]:
        self.sync()
        found = self.reader().lineage([one.id for one in flowfiles], 0)
        return [one.event for one in found.events]

    def close(self) -> None:
        self.repository.close()
        self.content.close()


def decoded(batch: DerivedEvents) -> list[dict[str, object]]:
    if not batch.count:
        return []
    return [json.loads(one.as_py()) for one in parse_binary(batch.body, 1 << 20, 1 << 30)]


def all_events(reader: ProvenanceReader) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    following = 0
    while (batch := reader.events(following)).count:
        found += decoded(batch)
        following = batch.last + 1
    return found


def made_and_ended(world: World) -> FlowFile:
    with world.session("make", outputs="success:a") as session:
        one = session.write(session.create(attributes={"n": "1"}), b"hello")
        session.transfer(one, "success")
    with world.session("end", "a") as session:
        session.remove(session.get_many(1))
    world.content.seal()
    world.sync()
    return one


def made_and_passed(world: World, times: int) -> FlowFile:
    """Create a FlowFile, and pass it on a number of times."""
    with world.session("make", outputs="success:a") as session:
        one = session.create()
        session.transfer(one, "success")
    for _ in range(times):
        with world.session("pass", "a", "success:a") as session:
            session.transfer(session.get_many(1), "success")
    return one
