"""A repository with its content over the crashable file system, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.flow.flowfile import FlowFile
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.claims import ContentClaim
from penstock.storage.content.content_repository import ContentOptions, ContentRepository
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

CONTENT = "/t/content"
REPOSITORY = "/t/flowfiles"
SMALL_CONTENT = ContentOptions(
    resource_bytes=300, sections=2, open_files=2, buffer_bytes=64, min_free_bytes=0
)
SMALL = RepositoryOptions(snapshot_bytes=3000, snapshot_slice=2, sync_in_background=False)


@dataclass
class Opened:
    """One process, as it were."""

    fs: CrashableFileSystem
    clock: VirtualClock
    content: ContentRepository
    repository: FlowFileRepository

    @classmethod
    def open(
        cls, fs: CrashableFileSystem | None = None, options: RepositoryOptions = SMALL
    ) -> Opened:
        fs = CrashableFileSystem() if fs is None else fs
        clock = VirtualClock()
        content = ContentRepository.open(CONTENT, fs=fs, clock=clock, options=SMALL_CONTENT)
        repository = FlowFileRepository.open(
            REPOSITORY, fs=fs, clock=clock, content=content, options=options
        )
        return cls(fs, clock, content, repository)

    def close(self) -> None:
        self.repository.close()
        self.content.close()

    # -- shorthands

    def make(self, text: str = "", data: bytes | None = None) -> FlowFile:
        """Return a new FlowFile, not committed; with its content written."""
        claim = None if data is None else self.content.put(data)
        one = self.repository.next_ids(1)
        index = self.repository.next_queue_indexes(1)
        size = 0 if claim is None else claim.length
        return FlowFile(one, {"text": text}, size, claim, queue_index=index)

    def put(self, queue: str, *flowfiles: FlowFile, durable: bool = False) -> None:
        """Commit new FlowFiles."""
        written = [one.claim for one in flowfiles if one.claim is not None]
        changes = Changes(puts={queue: flowfiles}, written=written)
        self.repository.commit(changes, durable=durable)

    def create(self, queue: str, count: int = 1, *, durable: bool = False) -> list[FlowFile]:
        """Commit new FlowFiles with content."""
        made = [self.make(str(number), b"%d" % number * 20) for number in range(count)]
        self.put(queue, *made, durable=durable)
        return made

    # -- what is there

    def found(self) -> dict[int, tuple[str, FlowFile]]:
        """Return what the start found, by id, from the journal and from the swap files."""
        found: dict[int, tuple[str, FlowFile]] = {}
        for queue, recovered in self.repository.recovered.queues.items():
            flowfiles = list(recovered.flowfiles)
            for restored in recovered.swap_files:
                reader = self.repository.swap_store.open(restored.file)
                rows = reader.read(0, restored.file.summary.count)
                reader.close()
                assert not len(rows.lost)
                done = set(restored.done)
                flowfiles += [
                    flowfile
                    for row, flowfile in zip(rows.numbers.tolist(), rows.flowfiles, strict=True)
                    if row not in done
                ]
            for flowfile in flowfiles:
                assert flowfile.id not in found, "a FlowFile is there twice"
                found[flowfile.id] = (queue, flowfile)
        return found

    def events(self) -> dict[str, int]:
        """Return the counts of the start's events by kind."""
        return {event.kind: event.count for event in self.repository.recovered.events}

    def content_files(self) -> set[str]:
        """Return the names of the files of content."""
        return {
            name
            for section in self.fs.listdir(CONTENT)
            for name in self.fs.listdir(f"{CONTENT}/{section}")
        }

    def swap_folder(self) -> list[str]:
        """Return the names in the folder of swap files."""
        return self.fs.listdir(f"{REPOSITORY}/swap")


def claim_of(flowfile: FlowFile) -> ContentClaim:
    """Return the claim of a FlowFile that has one."""
    assert flowfile.claim is not None
    return flowfile.claim
