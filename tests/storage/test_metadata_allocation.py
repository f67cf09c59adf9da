"""Allocation of segment places, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from penstock.core.errors import Conflict
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    MetadataStore,
    PendingRow,
    PublishRequest,
    SegmentRow,
)

HOUR_MS = 3_600_000
DAY = Interval(0, 24 * HOUR_MS)
APPEND = "1970-01-01T00:00:00.000Z"


def hour(number: int) -> Interval:
    return Interval(number * HOUR_MS, (number + 1) * HOUR_MS)


def ask(sequence: str, version: str = "v5", interval: Interval = DAY) -> AllocateRequest:
    return AllocateRequest("d", interval, sequence, version)


def place(row: PendingRow | None):
    return None if row is None else (row.version, row.partition_number, row.core_partitions)


def allocate(store, *requests):
    return [place(row) for row in store.allocate_segments(requests)]


def publish(store, version, *numbers, interval=DAY, core=0, used=True) -> list[str]:
    rows = tuple(
        SegmentRow(f"{interval}_{version}_{n}", "d", interval, version, n, core, {}, used)
        for n in numbers
    )
    assert store.publish(PublishRequest("t", "d", rows)).ok
    return [row.id for row in rows]


def test_a_new_chunk_starts_with_the_requested_version(store) -> None:
    assert allocate(store, ask("s0")) == [("v5", 0, 0)]


def test_the_same_request_gets_the_same_place(store) -> None:
    first = store.allocate_segments([ask("s0"), ask("s0")])
    assert first[0] == first[1]
    assert store.allocate_segments([ask("s0", "v9")]) == first[:1]
    assert len(store.segments.pending("d")) == 1


def test_sequences_get_places_one_after_the_other(store) -> None:
    assert allocate(store, ask("s0"), ask("s1", "v9"), ask("s2")) == [
        ("v5", 0, 0),
        ("v5", 1, 0),
        ("v5", 2, 0),
    ]
    assert allocate(store, ask("s0", interval=hour(30))) == [("v5", 0, 0)]


def test_published_chunks_are_appended_to(store) -> None:
    publish(store, "v3", 0, 1, core=2)
    assert allocate(store, ask("s0"), ask("s1")) == [("v3", 2, 2), ("v3", 3, 2)]


def test_a_place_is_kept_while_its_chunk_has_its_version(store) -> None:
    assert allocate(store, ask("s0")) == [("v5", 0, 0)]
    publish(store, "v5", 1)
    assert allocate(store, ask("s0")) == [("v5", 0, 0)]
    publish(store, "v7", 0)  # somebody replaced the day: the old place would be hidden
    assert allocate(store, ask("s0")) == [("v7", 1, 0)]


def test_more_than_one_visible_chunk_is_no_place(store) -> None:
    publish(store, "v3", 0, interval=hour(0))
    publish(store, "v3", 0, interval=hour(1))
    assert allocate(store, ask("s0"), ask("s1", interval=hour(1))) == [None, ("v3", 1, 0)]


def test_a_chunk_of_which_others_cover_a_part_takes_more(store) -> None:
    publish(store, "v3", 0)
    publish(store, "v4", 0, interval=hour(1))
    assert allocate(store, ask("s0"), ask("s0", interval=hour(1))) == [("v3", 1, 0), ("v4", 1, 0)]


def test_a_chunk_of_another_interval_is_no_place(store) -> None:
    publish(store, "v3", 0)
    assert allocate(store, ask("s0", interval=hour(2))) == [None]


def test_a_pending_place_of_another_interval_is_no_place(store) -> None:
    assert allocate(store, ask("s0"), ask("s1", interval=hour(2))) == [("v5", 0, 0), None]


def test_incomplete_and_hidden_chunks_do_not_count(store) -> None:
    publish(store, "v1", 0)
    publish(store, "v3", 0, 1)
    publish(store, "v4", 1, core=2)  # its core is not complete
    assert allocate(store, ask("s0")) == [("v3", 2, 0)]


def test_ids_of_unused_segments_are_never_given_again(store) -> None:
    ids = publish(store, "v3", 0, 1, 2)
    store.segments.mark_unused(ids[1:])
    assert allocate(store, ask("s0")) == [("v3", 3, 0)]


def test_a_version_that_is_out_of_view_goes_on_after_what_was_appended(store) -> None:
    hidden = publish(store, "v5", 0, 1)
    store.segments.mark_unused(hidden)
    assert allocate(store, ask("s0")) == [("v5", 2, 0)]
    publish(store, "v5", 2)
    assert store.segments.mark_used(hidden) == 2


def test_a_used_up_version_is_refused(store) -> None:
    store.segments.mark_unused(publish(store, "v5", 0, core=1))
    with pytest.raises(Conflict, match="newer version"):
        allocate(store, ask("s0"))
    assert allocate(store, ask("s0", "v6")) == [("v6", 0, 0)]


def test_a_used_up_append_version_gets_a_suffix(store) -> None:
    for suffix in ("", "S"):
        store.segments.mark_unused(publish(store, APPEND + suffix, 0))
    assert allocate(store, ask("s0", APPEND)) == [(APPEND + "SS", 0, 0)]


@pytest.mark.parametrize("version", [APPEND, "v5"])
def test_ids_of_killed_segments_are_never_given_again(store, version) -> None:
    """Whoever kills deletes the files after the rows: a new file must not have an old name."""
    for number in range(0, 4, 2):
        ids = publish(store, version, number, number + 1)
        store.segments.mark_unused(ids)
        assert len(store.segments.kill(ids).files_free) == 2
    assert allocate(store, ask("s0", version), ask("s1", version)) == [
        (version, 4, 0),
        (version, 5, 0),
    ]


def test_a_kill_leaves_what_was_used_again_since_it_was_found(store, clock) -> None:
    ids = publish(store, "v5", 0, 1, 2)
    store.segments.mark_unused(ids)
    clock.ms += 100
    before_ms = clock.ms
    assert [row.id for row in store.segments.unused(changed_before_ms=before_ms)] == ids
    store.segments.mark_used(ids[:2])
    store.segments.mark_unused(ids[1:2])
    killed = store.segments.kill(ids, changed_before_ms=before_ms)
    assert [row.id for row in killed.rows] == ids[2:]
    assert [row.used for row in store.segments.by_ids(ids[:1])] == [True]
    assert len(store.segments.every()) == 2


def test_places_of_dead_sequences_can_be_freed(store, clock) -> None:
    allocate(store, ask("s0"))
    clock.ms += 10
    allocate(store, ask("s1"))
    assert store.segments.delete_pending("d", created_before_ms=clock.ms) == 1
    assert [row.sequence_name for row in store.segments.pending("d")] == ["s1"]


def test_racing_tasks_get_places_of_their_own(database_url, clock) -> None:
    stores = [MetadataStore.open(database_url, clock=clock) for _ in range(4)]
    places: list[tuple[str, int, int]] = []
    errors: list[BaseException] = []

    def task(number: int) -> None:
        try:
            for step in range(6):
                places.extend(allocate(stores[number], ask(f"t{number}_{step}", f"v{number}")))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=task, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len({version for version, _, _ in places}) == 1
    assert sorted(number for _, number, _ in places) == list(range(24))
    for store in stores:
        store.close()


# lineage, partition spaces, many requests


def after(previous: str, sequence: str = "s0", **changes) -> AllocateRequest:
    return replace(ask(sequence, **changes), previous_id=previous, skip_lineage=False)


def test_with_lineage_a_sequence_has_many_places_in_one_interval(store) -> None:
    first, second = store.allocate_segments([after(""), after("x")])
    assert (place(first), place(second)) == (("v5", 0, 0), ("v5", 1, 0))
    third = after(second.id)
    assert store.allocate_segments([third, after("x"), third])[1:] == [
        second,
        *store.allocate_segments([third]),
    ]
    assert second.previous_id == "x"
    assert len(store.segments.pending("d")) == 3


def test_with_lineage_the_interval_may_not_change(store) -> None:
    assert allocate(store, after("", interval=hour(1))) == [("v5", 0, 0)]
    assert allocate(store, after("", interval=hour(2)), after("", "s1", interval=hour(2))) == [
        None,
        ("v5", 0, 0),
    ]


def test_with_lineage_a_place_is_given_up_when_its_chunk_is_replaced(store) -> None:
    allocate(store, after(""))
    publish(store, "v7", 0)
    assert allocate(store, after("")) == [("v7", 1, 0)]
    assert allocate(store, after("")) == [("v7", 1, 0)]


def test_rewriting_segments_have_numbers_of_their_own(store) -> None:
    publish(store, "v3", 0, 1, core=2)
    rewrite = replace(ask("s0"), space="overwrite")
    assert allocate(store, rewrite, replace(rewrite, sequence_name="s1")) == [
        ("v3", 32768, 0),
        ("v3", 32769, 0),
    ]
    publish(store, "v3", 32768)
    assert allocate(store, ask("s2")) == [("v3", 2, 2)]
    assert allocate(store, replace(rewrite, sequence_name="s3")) == [("v3", 32770, 2)]


def test_a_chunk_whose_core_is_unknown_takes_nothing(store) -> None:
    publish(store, "v3", 0, core=-1)
    assert allocate(store, ask("s0")) == [None]


def test_a_place_beside_a_tombstone_is_the_next(store) -> None:
    publish(store, "v3", 0)
    assert allocate(store, ask("s0")) == [("v3", 1, 0)]


def test_places_of_a_call_know_of_each_other_across_intervals(store) -> None:
    assert allocate(store, ask("s0", interval=hour(2)), ask("s1"), ask("s1", interval=hour(2))) == [
        ("v5", 0, 0),
        None,
        ("v5", 1, 0),
    ]


def test_a_call_that_is_refused_gives_out_nothing(store) -> None:
    store.segments.mark_unused(publish(store, "v5", 0, interval=hour(1), core=1))
    with pytest.raises(Conflict):
        allocate(store, ask("s0", interval=hour(0)), ask("s0", interval=hour(1)))
    assert store.segments.pending("d") == []
