"""What a FlowFile repository is told, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """How a FlowFile repository syncs, begins anew and starts.

    Args:
        sync_interval_ms: A commit that nobody waits for is durable after about this.
        sync_every_commits: Or when this many are not.
        sync_pause_ms: Between two fsyncs that nobody waits for, at least this.
        snapshot_bytes: A snapshot is written when the journal is larger than this, and twice as
            large as the last snapshot.
        snapshot_slice: FlowFiles that are encoded in one go; commits wait that long at most.
        repair: Where the journal is damaged, read up to the damage instead of refusing to start.
        sync_in_background: False syncs on the committing thread, as tests need it; the interval is
            then only looked at by the next commit.
    """

    sync_interval_ms: int = 100
    sync_every_commits: int = 50_000
    sync_pause_ms: int = 10
    snapshot_bytes: int = 64 * 1024 * 1024
    snapshot_slice: int = 2_000
    repair: bool = False
    sync_in_background: bool = True

    def __post_init__(self) -> None:
        for name in ("sync_interval_ms", "sync_every_commits", "snapshot_bytes", "snapshot_slice"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 1", place=name)
        if self.sync_pause_ms < 0:
            raise InvalidRequest(
                f"is {self.sync_pause_ms}: must be at least 0", place="sync_pause_ms"
            )


@dataclass(frozen=True, slots=True)
class RepositoryStatistics:
    """An immutable snapshot of a FlowFile repository, since it was opened.

    Attributes:
        flowfiles: FlowFiles whose home is the journal.
        swapped_flowfiles: FlowFiles whose home is a swap file.
        swap_files: Files that hold at least one of them.
        commits: Batches written.
        durable_commits: Of those, the ones that somebody waited for.
        refused_commits: Commits that failed and changed nothing.
        missing_flowfiles: FlowFiles gone because their content was.
        damaged_flowfiles: FlowFiles lost in damaged or missing swap files.
        journal_bytes: Size of the journals that a start would read now.
        snapshot_bytes: Size of the last snapshot.
        snapshots: Snapshots written.
        snapshot_hold_us: How long the last snapshot kept commits waiting, microseconds.
        syncs: Passes of fsyncs.
        sync_failures: Of those, the ones that failed.
        unsynced_commits: Commits that a power loss would undo now.
        unsynced_age_s: Age of the oldest of them; 0 if there is none.
        unknown_swap_files: Files set aside because no record knows them.
    """

    flowfiles: int
    swapped_flowfiles: int
    swap_files: int
    commits: int
    durable_commits: int
    refused_commits: int
    missing_flowfiles: int
    damaged_flowfiles: int
    journal_bytes: int
    snapshot_bytes: int
    snapshots: int
    snapshot_hold_us: int
    syncs: int
    sync_failures: int
    unsynced_commits: int
    unsynced_age_s: float
    unknown_swap_files: int
