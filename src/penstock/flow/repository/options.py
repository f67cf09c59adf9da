"""Options and statistics of a FlowFile repository."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.errors import InvalidRequest
from penstock.flow.repository.commit_spool import SpoolOptions


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """Options for sync, snapshots and recovery of a FlowFile repository.

    Args:
        sync_interval_ms: A commit that no caller waits for becomes durable after about this time.
        sync_every_commits: Or as soon as this many commits are not durable.
        sync_pause_ms: Minimum time between two fsyncs that no caller waits for.
        snapshot_bytes: A snapshot is written when the journal is larger than this, and twice as
            large as the last snapshot.
        snapshot_slice: Number of FlowFiles encoded at once; commits wait at most that long.
        repair: If the journal is damaged, read it up to the damage instead of refusing to start.
        sync_in_background: False: the committing thread syncs, as tests need it. The interval is
            then checked only by the next commit.
        spool: Limits of the spool of commits, if provenance is recorded.
    """

    sync_interval_ms: int = 100
    sync_every_commits: int = 50_000
    sync_pause_ms: int = 10
    snapshot_bytes: int = 64 * 1024 * 1024
    snapshot_slice: int = 2_000
    repair: bool = False
    sync_in_background: bool = True
    spool: SpoolOptions = field(default_factory=SpoolOptions)

    def __post_init__(self) -> None:
        for name in ("sync_interval_ms", "sync_every_commits", "snapshot_bytes", "snapshot_slice"):
            if getattr(self, name) < 1:
                raise InvalidRequest(
                    f"is {getattr(self, name)}, but must be at least 1", place=name
                )
        if self.sync_pause_ms < 0:
            raise InvalidRequest(
                f"is {self.sync_pause_ms}, but must be at least 0", place="sync_pause_ms"
            )


@dataclass(frozen=True, slots=True)
class RepositoryStatistics:
    """An immutable snapshot of a FlowFile repository, since it was opened.

    Attributes:
        flowfiles: FlowFiles whose home is the journal.
        swapped_flowfiles: FlowFiles whose home is a swap file.
        swap_files: Swap files that hold at least one FlowFile.
        commits: Commits written.
        durable_commits: Commits among those that a caller waited for.
        refused_commits: Commits that failed and changed nothing.
        missing_flowfiles: FlowFiles removed because their content is missing.
        damaged_flowfiles: FlowFiles lost in damaged or missing swap files.
        journal_bytes: Size of the journals that recovery would read now.
        snapshot_bytes: Size of the last snapshot.
        snapshots: Snapshots written.
        snapshot_hold_us: How long the last snapshot delayed commits, microseconds.
        syncs: Passes of fsyncs.
        sync_failures: Passes of fsyncs that failed.
        unsynced_commits: Commits that a power loss would undo now.
        unsynced_age_s: Age of the oldest of these commits; 0 if there is none.
        unknown_swap_files: Swap files set aside because no record mentions them.
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
