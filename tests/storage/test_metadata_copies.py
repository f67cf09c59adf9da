"""Copies of all metadata for backups, from and into both databases."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    MetadataStore,
    PublishRequest,
    SegmentRow,
    TaskRow,
    segment_id,
)
from penstock.storage.metadata.copies import INTERRUPTED, INTERRUPTED_STREAM
from penstock.storage.metadata.tables.lookups import LookupContent
from penstock.storage.sqlite_urls import sqlite_url

DAY = Interval(0, 86_400_000)
SEGMENTS = 1_100


def fill(store: MetadataStore) -> None:
    rows = tuple(
        SegmentRow(
            segment_id("d", DAY, "v", number),
            *("d", DAY, "v", number, 0),
            {"loadSpec": {"type": "deepStorage", "path": f"d/{number}"}, "size": number},
        )
        for number in range(SEGMENTS)
    )
    store.supervisors.put("sup", {"spec": {"ä": 1}})
    store.tasks.insert_new([TaskRow(n, "d", "index", "g", {"id": n}) for n in ("done", "runs")])
    store.tasks.insert_new([TaskRow("reads", "d", "index_penstock", "g", {"id": "reads"})])
    store.tasks.set_status("done", "SUCCESS", {"worker": "w"})
    store.begin_offsets("sup", {0: 7})
    assert store.publish(PublishRequest("publisher", "d", rows)).ok
    store.segments.mark_unused([rows[0].id])
    store.allocate_segments([AllocateRequest("d", DAY, "s", "v")])
    store.announce("runs", "d", "s", [AnnouncedFile("/x", DAY, 1)])
    store.roots.register("w", "/tasks")
    store.leases.renew("worker", "w", host="h", port=1, ttl_ms=1000)
    store.terms.take("overlord", "h", 1000)
    store.audit.add("k", "rules", author="me", comment="", payload={"a": 1})
    assert store.config.compare_and_set("name", None, b"\x00value")
    for name in "lmn":  # more than are copied at once
        store.lookups.put(name, {"a": 1}, LookupContent(b"\x00rows", 2, 10), 5)


def sorted_rows(store: MetadataStore) -> list[SegmentRow]:
    return sorted(store.segments.every(), key=lambda row: row.id)


def require_copied(store: MetadataStore, original: MetadataStore) -> None:
    assert sorted_rows(store) == sorted_rows(original)
    assert store.revision() == original.revision()
    assert store.offsets("sup") == {0: 7}
    assert [row.id for row in store.supervisors.list()] == ["sup"]
    assert store.segments.pending("d") == original.segments.pending("d")
    assert store.config.get("name") == b"\x00value"
    assert store.lookups.list() == original.lookups.list()
    assert store.lookups.content("l") == (1, b"\x00rows")
    done, runs = (store.tasks.get(name) for name in ("done", "runs"))
    assert done is not None
    assert runs is not None
    assert done == original.tasks.get("done")
    assert (runs.active, runs.state, runs.status["errorMsg"]) == (False, "FAILED", INTERRUPTED)
    reads = store.tasks.get("reads")
    assert reads is not None
    assert (reads.state, reads.status["errorMsg"]) == ("FAILED", INTERRUPTED_STREAM)
    # Nothing is left of the processes that ran when the copy was made.
    assert store.snapshot().announced == ()
    assert store.leases.every() == []
    assert store.terms.current("overlord") is None
    assert store.roots.paths() == {}


def test_a_copy_is_all_metadata_of_one_instant(store, clock, tmp_path) -> None:
    fill(store)
    path = str(tmp_path / "a b#ü%20%.db")
    files = store.write_copy(path, clock)
    assert sorted(size for _, size in files) == list(range(SEGMENTS))
    assert not (tmp_path / "a b#ü%20%.db-wal").exists()
    assert store.write_copy(path, clock) == files  # over what an interrupted one left
    with MetadataStore.open(sqlite_url(path), clock=clock) as copied:
        require_copied(copied, store)
        # What was given out once is not given out again.
        (place,) = copied.allocate_segments([AllocateRequest("d", DAY, "other", "v")])
        assert place is not None
        assert place.partition_number == SEGMENTS + 1
    store.tasks.insert_new([TaskRow("later", "d", "index", "g", {})])


@pytest.mark.postgres
def test_a_copy_goes_into_an_empty_postgres(postgres, clock, tmp_path) -> None:
    path = str(tmp_path / "copy.db")
    with (
        MetadataStore.open(sqlite_url(f"{tmp_path}/m.db"), clock=clock) as original,
        MetadataStore.open(postgres.empty_database(), clock=clock) as target,
    ):
        fill(original)
        original.write_copy(path, clock)
        target.read_copy(path, clock)
        require_copied(target, original)
        target.read_copy(path, clock)  # again, as after a restore that was interrupted here
        require_copied(target, original)
        target.audit.add("later", "rules", author="me", comment="", payload={})


def test_a_restore_that_was_interrupted_after_its_metadata_goes_on(store, clock, tmp_path) -> None:
    """The database is full then, of the very same copy; another one is not overwritten."""
    path = str(tmp_path / "copy.db")
    with MetadataStore.open(sqlite_url(f"{tmp_path}/m.db"), clock=clock) as original:
        fill(original)
        original.write_copy(path, clock)
    store.read_copy(path, clock)
    clock.ms += 1_000
    store.read_copy(path, clock)
    assert store.offsets("sup") == {0: 7}
    assert len(store.segments.every()) == SEGMENTS
    store.supervisors.put("later", {})
    with pytest.raises(InvalidRequest, match="not empty"):
        store.read_copy(path, clock)


def test_a_copy_does_not_go_into_the_database_of_a_penstock_that_ran(
    store, clock, tmp_path
) -> None:
    path = str(tmp_path / "copy.db")
    fill(store)
    store.write_copy(path, clock)
    with pytest.raises(InvalidRequest, match="not empty"):
        store.read_copy(path, clock)


def test_segments_are_not_killed_while_a_backup_runs(store, clock) -> None:
    row = SegmentRow(segment_id("d", DAY, "v", 0), "d", DAY, "v", 0, 0, {})
    assert store.publish(PublishRequest("t", "d", (row,))).ok
    store.segments.mark_unused([row.id])
    store.leases.renew("backup", "b", host="h", port=0, ttl_ms=5_000)
    with pytest.raises(Unavailable, match=r"while a backup runs.*in 6 s if it has died"):
        store.segments.kill([row.id])
    assert [one.id for one in store.segments.every()] == [row.id]
    clock.ms += 5_000
    assert [one.id for one in store.segments.kill([row.id]).files_free] == [row.id]
