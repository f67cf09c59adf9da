"""Locks of tasks, terms of leadership, rules and configuration, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from msgspec import structs
from sqlalchemy import text

from penstock.core.errors import Conflict, Fenced, InvalidRequest
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AuditRow,
    LockRow,
    MetadataStore,
    PublishRequest,
    ReplaceLock,
    SegmentRow,
    TaskFilter,
    TaskRow,
)
from tests.storage.replacing_kit import left_for

DAY = Interval(0, 86_400_000)


def lock(task: str = "t1", version: str = "v1", **changes) -> LockRow:
    row = LockRow(task, "d", "timeChunk", "APPEND", "g", DAY, version, 50)
    return structs.replace(row, **changes)


def insert_task(store, name: str, **changes) -> None:
    store.tasks.insert_new([replace(TaskRow(name, "d", "index", "g", {"x": 1}), **changes)])


def append_under(store, names: str, lock: ReplaceLock) -> None:
    """Let another task append segments, one for each letter, within a REPLACE lock."""
    rows = [SegmentRow(name, "d", DAY, "v0", ord(name), 0, {}) for name in names]
    covering = dict.fromkeys(names, lock)
    assert store.publish(
        PublishRequest("appends", "d", tuple(rows), kind="append", covering=covering)
    ).ok


# locks


def test_locks_come_back_by_datasource_then_version_and_task(store, clock) -> None:
    rows = [
        lock("t2", "v2"),
        lock("t2", "v1", partition_number=3, granularity="segment"),
        lock("t1", "v1"),
        lock("t1", "v0", datasource="e", revoked=True, priority=-1),
    ]
    store.locks.apply(added=rows)
    stamped = [structs.replace(row, created_ms=clock.ms) for row in rows]
    assert store.locks.every() == {"d": [stamped[2], stamped[1], stamped[0]], "e": [stamped[3]]}


def test_all_changes_of_a_call_are_made_together(store) -> None:
    small, large = lock(interval=Interval(0, 10)), lock(interval=Interval(0, 20))
    other = lock("t2", type="REPLACE")
    store.locks.apply(added=[small, other])
    store.locks.apply(
        added=[large], replaced=[structs.replace(other, revoked=True)], removed=[small]
    )
    found = store.locks.every()["d"]
    assert [(row.task_id, row.interval, row.revoked) for row in found] == [
        ("t1", large.interval, False),
        ("t2", DAY, True),
    ]


def test_changes_may_be_made_again_after_a_lost_answer(store, clock) -> None:
    for _ in range(2):
        store.locks.apply(added=[lock()], removed=[lock("t2")])
        clock.ms += 5
    [row] = store.locks.every()["d"]
    assert row.created_ms == clock.ms - 10
    # What is removed and added in one call is there: a lock may be taken anew.
    store.locks.apply(added=[lock()], removed=[lock()])
    assert [row.task_id for row in store.locks.every()["d"]] == ["t1"]


def test_locks_that_cannot_be_kept_leave_no_trace(store) -> None:
    broken = structs.replace(lock("t2"), version=None)
    with pytest.raises(Conflict):
        store.locks.apply(added=[lock(), broken])
    assert store.locks.every() == {}


def test_the_end_of_a_task_is_the_end_of_its_locks(store) -> None:
    for name in ("t1", "t2"):
        insert_task(store, name)
    store.locks.apply(added=[lock("t1"), lock("t2")])
    append_under(store, "s", ReplaceLock("t1", "v1"))
    store.tasks.set_status("t1", "FAILED")
    assert [row.task_id for row in store.locks.every()["d"]] == ["t2"]
    assert left_for(store, "t1") == set()


def test_what_was_left_under_a_replace_lock_goes_when_there_is_another_of_its_time(store) -> None:
    mine, others = lock(type="REPLACE"), lock("t2", type="REPLACE")
    appends = lock(interval=Interval(0, 10), version="v0")
    store.locks.apply(added=[mine, others, appends])
    append_under(store, "ab", ReplaceLock("t1", "v1"))
    append_under(store, "d", ReplaceLock("t2", "v1"))
    store.locks.apply(replaced=[structs.replace(mine, revoked=True)], removed=[appends])
    assert left_for(store, "t1") == {"a", "b"}
    # To give it back may go through unheard: the lock is then made again as it was, for a task that
    # may have read its input.
    store.locks.apply(removed=[mine])
    store.locks.apply(replaced=[mine])
    assert left_for(store, "t1") == {"a", "b"}
    # Of another time, though of the same version as locks of one moment are.
    tomorrow = Interval(DAY.end_ms, 2 * DAY.end_ms)
    store.locks.apply(added=[structs.replace(mine, interval=tomorrow)], removed=[mine])
    store.locks.apply(added=[structs.replace(mine, interval=tomorrow, version="v2")])
    assert left_for(store, "t1") == {"a", "b"}
    # Under the next lock it counts again: it is in the input, unless it is appended from now on.
    store.locks.apply(added=[structs.replace(mine, version="v2")])
    append_under(store, "c", ReplaceLock("t1", "v2"))
    assert left_for(store, "t1") == {"c"}
    assert left_for(store, "t2") == {"d"}


# terms


def test_a_term_is_won_when_nobody_leads_or_time_ran_out(store, clock) -> None:
    assert store.terms.current("overlord") is None
    first = store.terms.take("overlord", "a", 1000)
    assert (first.number, first.expires_ms) == (1, clock.ms + 1000)
    assert store.terms.take("overlord", "b", 1000) is None
    assert store.terms.take("other", "b", 1000).number == 1
    clock.ms += 600
    first = store.terms.renew(first)
    clock.ms += 600
    assert store.terms.take("overlord", "b", 1000) is None
    assert store.terms.current("overlord").holder == "a"
    clock.ms += 400
    ran_out = store.terms.current("overlord")
    assert (ran_out.holder, ran_out.ttl_ms) == ("a", 0)
    second = store.terms.take("overlord", "b", 1000)
    assert (second.number, second.holder) == (2, "b")
    with pytest.raises(Fenced, match=r"term 1 of a as leader of overlord has ended.*term 2 of b"):
        store.terms.renew(first)


def test_who_leads_is_found_whatever_the_clocks_of_readers_say(database_url, clock) -> None:
    """The leader's clock is far behind: nobody deposes it while it renews its term."""
    ahead = type(clock)()
    ahead.ms = clock.ms + 18_000
    with (
        MetadataStore.open(database_url, clock=clock) as leader,
        MetadataStore.open(database_url, clock=ahead) as other,
    ):
        term = leader.terms.take("overlord", "a", 6_000)
        seen = other.terms.current("overlord")
        assert (seen.holder, seen.number, seen.ttl_ms) == ("a", 1, 0)
        clock.ms += 1_500
        leader.terms.renew(term)
        assert other.terms.take("overlord", "b", 6_000, instead_of=seen) is None
        seen = other.terms.current("overlord")
        assert other.terms.take("overlord", "b", 6_000, instead_of=seen).number == 2
        assert leader.terms.current("overlord").holder == "b"
        leader.terms.resign(term)  # of an old term
        assert leader.terms.current("overlord").holder == "b"


def test_a_term_that_ran_out_is_renewed_while_nobody_took_over(store, clock) -> None:
    term = store.terms.take("overlord", "a", 1000)
    clock.ms += 5000
    store.under(term).begin_offsets("sup", {0: 1})  # newest, though it has run out
    assert store.terms.renew(term).expires_ms == clock.ms + 1000


def test_who_resigns_is_succeeded_at_once_and_writes_nothing_more(store) -> None:
    term = store.terms.take("overlord", "a", 1000)
    store.terms.resign(term)
    with pytest.raises(Fenced, match="term 1 of nobody"):
        store.under(term).begin_offsets("sup", {0: 1})
    assert store.terms.take("overlord", "b", 1000).number == 2
    store.terms.resign(term)  # of an old term: the new leader stays
    assert store.terms.current("overlord").holder == "b"


def test_who_leads_already_begins_a_new_term(store) -> None:
    old = store.terms.take("overlord", "a", 1000)
    assert store.terms.take("overlord", "a", 1000).number == 2
    with pytest.raises(Fenced):
        store.terms.renew(old)


def test_every_write_of_a_deposed_leader_is_refused_and_reads_are_not(store, clock) -> None:
    old = store.under(store.terms.take("overlord", "a", 1000))
    insert_task(old, "t1")
    clock.ms += 1001
    new = store.under(store.terms.take("overlord", "b", 1000))
    row = SegmentRow("s", "d", DAY, "v1", 0, 0, {})
    for write in (
        lambda s: s.publish(PublishRequest("t1", "d", (row,))),
        lambda s: s.tasks.set_status("t1", "FAILED"),
        lambda s: s.locks.apply(added=[lock()]),
        lambda s: s.segments.mark_unused(["s"]),
        lambda s: s.supervisors.put("sup", {}),
        lambda s: s.config.compare_and_set("n", None, b"1"),
    ):
        with pytest.raises(Fenced, match="stop leading"):
            write(old)
    assert old.tasks.get("t1").active
    assert old.snapshot().segments == ()
    assert new.publish(PublishRequest("t1", "d", (row,))).ok
    old.close()
    assert new.revision() == store.revision()


def test_a_write_in_flight_is_over_before_the_next_term_begins(database_url, clock) -> None:
    """The old leader is in the middle of a write: whoever takes over waits for it."""
    with (
        MetadataStore.open(database_url, clock=clock) as one,
        MetadataStore.open(database_url, clock=clock) as two,
    ):
        term = one.terms.take("overlord", "a", 1000)
        inside, go_on = threading.Event(), threading.Event()
        order: list[str] = []

        def slow_write(connection) -> None:
            inside.set()
            assert go_on.wait(120)
            connection.execute(text("UPDATE penstock_revision SET revision = 77"))
            order.append("old leader wrote")

        def take_over() -> None:
            assert two.terms.take("overlord", "b", 1000).number == 2
            order.append("new leader")
            assert two.revision() == 77

        guarded = one.under(term)
        writer = threading.Thread(target=lambda: guarded._database.write(slow_write))
        writer.start()
        assert inside.wait(120)
        clock.ms += 1001
        successor = threading.Thread(target=take_over)
        successor.start()
        go_on.set()
        writer.join()
        successor.join()
        assert order == ["old leader wrote", "new leader"]
        with pytest.raises(Fenced):
            guarded.begin_offsets("sup", {0: 1})


@pytest.mark.postgres
def test_renewing_does_not_wait_for_writes(postgres, clock) -> None:
    with MetadataStore.open(postgres.empty_database(), clock=clock, busy_timeout_ms=100) as store:
        term = store.terms.take("overlord", "a", 1000)
        renewed = []
        store.under(term)._database.write(lambda _: renewed.append(store.terms.renew(term)))
        assert renewed[0].number == 1


# rules, configuration, audit


def test_rules_are_kept_in_order_and_their_history_is_the_audit(store, clock) -> None:
    rules = [{"type": "loadByPeriod", "period": "P1D"}, {"type": "dropForever"}]
    put = store.rules.put("d", rules, author="me", comment="less")
    store.rules.put("_default", [{"type": "loadForever"}])
    found = store.rules.every()["d"].rules
    assert list(found) == rules
    # The console compares the texts.
    assert list(map(list, put.rules)) == list(map(list, found))
    assert "e" not in store.rules.every()
    assert set(store.rules.every()) == {"d", "_default"}
    clock.ms += 1
    store.rules.put("d", [])
    assert "d" not in store.rules.every()
    history = store.audit.list("d", type="rules")
    assert [row.payload for row in history] == [{"rules": []}, {"rules": rules}]
    assert history[1].author == "me"


def test_a_name_is_stored_where_anything_has_exactly_it(store) -> None:
    names = ["Cafe\u0301", "..", "\x1b[31m"]
    for name in names:
        assert not store.is_stored_name(name)
        store.rules.put(name, [{"type": "dropForever"}])
        assert store.is_stored_name(name)
    assert not store.is_stored_name("Caf\u00e9")
    store.supervisors.put("s", {"type": "x"})
    store.move_offsets("o", {0: 1})
    assert [store.is_stored_name(name) for name in ("s", "o", "t")] == [True, True, False]
    # No database keeps these, and PostgreSQL not the first.
    assert [store.is_stored_name(name) for name in ("a\0", "a\ud800")] == [False, False]


def test_configuration_changes_only_from_what_was_seen(store) -> None:
    assert store.config.get("workers") is None
    assert not store.config.compare_and_set("workers", b"old", b"1")
    assert store.config.compare_and_set("workers", None, b"1")
    assert not store.config.compare_and_set("workers", None, b"2")
    assert store.config.compare_and_set("workers", b"1", b"\x00\xff")
    assert store.config.get("workers") == b"\x00\xff"


def test_who_changed_the_configuration_is_told_with_the_change_or_not_at_all(store, clock) -> None:
    entry = AuditRow("workers", "config", "me", "why", {"new": 1})
    assert not store.config.compare_and_set("workers", b"old", b"1", entry=entry)
    assert store.audit.list() == []
    assert store.config.compare_and_set("workers", None, b"1", entry=entry)
    assert store.audit.list("workers") == [replace(entry, created_ms=clock.ms)]
    with pytest.raises(InvalidRequest, match="plain JSON"):
        store.config.compare_and_set(
            "workers", b"1", b"2", entry=replace(entry, payload={"new": object()})
        )
    assert store.config.get("workers") == b"1"


def test_the_audit_is_asked_by_key_type_and_time(store, clock) -> None:
    for number, (key, kind) in enumerate([("d", "rules"), ("d", "x"), ("e", "rules")]):
        store.audit.add(key, kind, payload={"n": number})
        clock.ms += 10
    asked = [
        [row.payload["n"] for row in store.audit.list(**how)]
        for how in (
            {},
            {"key": "d"},
            {"type": "rules"},
            {"key": "d", "type": "rules"},
            {"interval": Interval(clock.ms - 20, clock.ms)},
            {"key": "d", "limit": 1},
        )
    ]
    assert asked == [[2, 1, 0], [1, 0], [2, 0], [0], [2, 1], [1]]


# tasks and supervisors


def test_tasks_are_summed_up_without_their_payloads(store, clock) -> None:
    born = clock.ms
    for number, (datasource, kind) in enumerate([("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")]):
        clock.ms = born + number
        insert_task(store, f"t{number}", datasource=datasource, type=kind)
    store.tasks.set_status("t0", "FAILED", {"errorMsg": "why"})
    store.tasks.set_status("t3", "SUCCESS")

    def names(limit=None, **wanted) -> list[str]:
        return [row.id for row in store.tasks.summaries(TaskFilter(**wanted), limit=limit)]

    assert names() == ["t3", "t2", "t1", "t0"]
    assert names(limit=2) == ["t3", "t2"]
    assert names(active=True) == ["t2", "t1"]
    assert names(state="FAILED") == ["t0"]
    assert names(state="RUNNING", type="y") == ["t2"]
    assert names(datasource="a", active=False) == ["t3", "t0"]
    assert names(created_from_ms=born + 1, created_before_ms=born + 3) == ["t2", "t1"]
    assert names(state="FAILED", active=True) == []
    [failed] = store.tasks.summaries(TaskFilter(state="FAILED"))
    assert (failed.status, failed.created_ms) == ({"errorMsg": "why"}, born)


def test_the_oldest_active_task_tells_its_time(store, clock) -> None:
    assert store.tasks.oldest_active_ms() is None
    born = clock.ms
    for number in range(3):
        clock.ms = born + number
        insert_task(store, f"t{number}")
    assert store.tasks.oldest_active_ms() == born
    store.tasks.set_status("t0", "FAILED")
    assert store.tasks.oldest_active_ms() == born + 1


def test_old_tasks_go_with_what_is_left_of_their_locks(store, clock) -> None:
    insert_task(store, "t1")
    insert_task(store, "t2")
    store.tasks.set_status("t1", "SUCCESS")
    store.locks.apply(added=[lock("t1"), lock("t2")])  # written behind the end by a slow thread
    clock.ms += 10
    assert store.tasks.delete_complete(ended_before_ms=clock.ms) == 1
    assert [row.task_id for row in store.locks.every()["d"]] == ["t2"]


def test_the_history_of_all_supervisors_comes_at_once(store) -> None:
    store.supervisors.put("s", {"v": 1})
    store.supervisors.put("r", {})
    store.supervisors.terminate("s")
    found = store.supervisors.histories()
    assert {name: [row.version for row in rows] for name, rows in found.items()} == {
        "r": [1],
        "s": [2, 1],
    }
    assert found["s"][0].tombstone
