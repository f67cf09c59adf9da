"""The contract of the small stores, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect

from penstock.core.errors import Closed, InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    AuditRow,
    LockRow,
    MetadataStore,
    PublishRequest,
    SegmentRow,
    SegmentTotals,
    TaskRow,
    schema,
    segment_id,
)
from penstock.storage.metadata.migrations import rewrite_specs


def task(name: str, datasource: str = "flights") -> TaskRow:
    return TaskRow(name, datasource, "index_stream", f"group_{name}", {"spec": {"ä": [1, None]}})


def test_a_task_comes_back_as_it_went_in(store, clock) -> None:
    store.tasks.insert_new([task("t1")])
    row = store.tasks.get("t1")
    assert row.payload == {"spec": {"ä": [1, None]}}
    assert (row.state, row.active, row.created_ms) == ("RUNNING", True, clock.ms)
    assert store.tasks.get("t2") is None


def test_a_task_id_is_given_once(store) -> None:
    assert store.tasks.insert_new([task("t1")]) == set()
    assert store.tasks.insert_new([task("t1", "other"), task("t2")]) == {"t1"}
    assert store.tasks.get("t1").datasource == "flights"
    assert store.tasks.get("t2") is not None


def test_the_first_complete_status_stands(store) -> None:
    store.tasks.insert_new([task("t1")])
    assert store.tasks.set_status("t1", "RUNNING", {"location": {"host": "h", "port": 1}})
    assert store.tasks.set_status("t1", "SUCCESS")
    assert not store.tasks.set_status("t1", "FAILED", {"errorMsg": "late"})
    assert not store.tasks.set_status("t1", "RUNNING")
    row = store.tasks.get("t1")
    assert (row.state, row.active) == ("SUCCESS", False)
    assert row.status == {"location": {"host": "h", "port": 1}}


def test_the_status_of_an_unknown_task_is_refused(store) -> None:
    with pytest.raises(NotFound, match="'t9'"):
        store.tasks.set_status("t9", "FAILED")


def test_a_complete_task_shows_nothing(store) -> None:
    store.tasks.insert_new([task("t1")])
    file = AnnouncedFile("/f", Interval(0, 10), 5)
    assert store.announce("t1", "flights", "s0", [file])
    before = store.revision()
    store.tasks.set_status("t1", "FAILED")
    assert store.snapshot().announced == ()
    assert store.revision() > before
    assert not store.announce("t1", "flights", "s1", [file])
    assert store.snapshot().announced == ()


def test_tasks_are_listed_newest_first_by_state_and_datasource(store, clock) -> None:
    for number, datasource in enumerate(["a", "b", "a"]):
        clock.ms += 1
        store.tasks.insert_new([task(f"t{number}", datasource)])
    store.tasks.set_status("t0", "FAILED")
    names = [
        [row.id for row in store.tasks.list(**how)]
        for how in (
            {},
            {"active": True},
            {"active": False},
            {"datasource": "a"},
            {"limit": 1},
            {"active": True, "datasource": "a"},
        )
    ]
    assert names == [["t2", "t1", "t0"], ["t2", "t1"], ["t0"], ["t2", "t0"], ["t2"], ["t2"]]


def test_every_version_of_a_supervisor_is_kept(store) -> None:
    assert store.supervisors.put("s", {"v": 1}).version == 1
    assert store.supervisors.put("s", {"v": 2}).version == 2
    store.supervisors.put("r", {})
    assert [(row.id, row.payload) for row in store.supervisors.list()] == [
        ("r", {}),
        ("s", {"v": 2}),
    ]
    assert [row.version for row in store.supervisors.history("s")] == [2, 1]
    assert store.supervisors.history("q") == []


def test_many_statuses_are_one_after_the_other(store) -> None:
    names = [f"t{number:04}" for number in range(1_200)]
    store.tasks.insert_new([task(name) for name in names])
    store.tasks.set_status("t0000", "SUCCESS")
    store.announce("t0001", "d", "s0", [AnnouncedFile("/a", Interval(0, 1), 1)])
    changes = [(name, "FAILED" if name < "t0600" else "RUNNING", {"of": name}) for name in names]
    more = [("t0001", "SUCCESS", None), ("t0700", "SUCCESS", None), ("nobody", "FAILED", None)]
    assert store.tasks.set_statuses([*changes, *more]) == set(names[1:])
    assert store.snapshot().announced == ()
    found = {row.id: (row.state, row.active, row.status) for row in store.tasks.list()}
    assert found["t0000"] == ("SUCCESS", False, {})
    assert found["t0001"] == ("FAILED", False, {"of": "t0001"})  # the first complete state
    assert found["t0700"] == ("SUCCESS", False, {"of": "t0700"})
    assert found["t1199"] == ("RUNNING", True, {"of": "t1199"})
    assert store.tasks.set_statuses([]) == set()


def test_the_newest_version_of_a_datasource_is_one_of_time(store) -> None:
    def times(number: int) -> str:
        return f"2020-01-0{number}T00:00:00.000Z"

    interval = Interval(0, 10)
    for version in (times(1), "zzz", "1970-01-01T00:00:00.000ZS"):
        row = SegmentRow(segment_id("d", interval, version, 0), "d", interval, version, 0, 0, {})
        store.publish(PublishRequest("t", "d", (row,)))
    assert store.locks.newest_versions() == {"d": times(1)}
    store.allocate_segments([AllocateRequest("e", interval, "s", times(3))])
    store.locks.apply([LockRow("t", "e", "timeChunk", "EXCLUSIVE", "g", interval, times(2), 1)])
    store.locks.apply([LockRow("t", "d", "timeChunk", "EXCLUSIVE", "g", interval, times(4), 1)])
    assert store.locks.newest_versions() == {"d": times(4), "e": times(3)}


def test_a_terminated_supervisor_ends_until_it_is_released(store) -> None:
    for name in ("one", "two", "three"):
        store.supervisors.put(name, {"name": name})
    store.supervisors.release("one")  # not terminated: nothing to release
    store.supervisors.terminate("one")
    store.supervisors.terminate("two")
    assert [row.payload for row in store.supervisors.unreleased()] == [
        {"name": "one"},
        {"name": "two"},
    ]
    store.supervisors.release("one")
    assert [row.id for row in store.supervisors.unreleased()] == ["two"]
    store.supervisors.put("two", {})
    store.supervisors.release("two")  # submitted again
    store.supervisors.release("nobody")
    assert store.supervisors.unreleased() == []
    store.supervisors.put("one", {})
    store.supervisors.terminate("one")
    assert [(row.id, row.version) for row in store.supervisors.unreleased()] == [("one", 4)]


def test_a_terminated_supervisor_is_gone_until_it_is_put_again(store) -> None:
    store.supervisors.put("s", {"v": 1})
    assert store.supervisors.terminate("s").tombstone
    assert store.supervisors.list() == []
    with pytest.raises(NotFound):
        store.supervisors.terminate("s")
    store.supervisors.put("s", {"v": 3})
    assert [row.tombstone for row in store.supervisors.history("s")] == [False, True, False]
    assert [row.version for row in store.supervisors.list()] == [3]


def test_many_supervisors_change_together_or_not_at_all(store):
    names = [f"s{number:04}" for number in range(1_200)]
    store.supervisors.put("s0001", {"v": 0})
    rows = store.supervisors.put_all({name: {"name": name} for name in names})
    assert [row.version for row in rows[:3]] == [1, 2, 1]
    assert [(row.id, row.payload) for row in store.supervisors.list()] == [
        (name, {"name": name}) for name in names
    ]
    store.supervisors.terminate("s0007")
    with pytest.raises(NotFound, match="s0007"):
        store.supervisors.terminate_all(names)
    assert len(store.supervisors.list()) == 1_199
    store.supervisors.put("s0007", {"name": "s0007"})
    ended = store.supervisors.terminate_all(names)
    assert [(row.id, row.payload) for row in ended] == [(name, {"name": name}) for name in names]
    assert store.supervisors.list() == []
    assert [row.version for row in store.supervisors.history("s0007")] == [4, 3, 2, 1]
    assert store.supervisors.put_all({}) == store.supervisors.terminate_all([]) == []


def test_a_supervisors_version_and_its_end_are_noted_with_them_or_not_at_all(store, clock) -> None:
    entry, wrong = AuditRow("s", "t", "me", "", {"n": 1}), AuditRow("s", "t", "", "", {"n": ...})
    store.supervisors.put("s", {"v": 1}, entry=entry)
    with pytest.raises(InvalidRequest, match="plain JSON"):
        store.supervisors.put("s", {"v": 2}, entry=wrong)
    with pytest.raises(InvalidRequest, match="plain JSON"):
        store.supervisors.terminate_all(["s"], entry=wrong)
    assert [row.version for row in store.supervisors.list()] == [1]
    store.supervisors.terminate_all(["s"], entry=entry)
    assert [row.created_ms for row in store.audit.list("s")] == [clock.ms, clock.ms]


def test_a_lease_lives_as_long_as_it_is_renewed(store, clock) -> None:
    def names() -> list[str]:
        return [row.instance for row in store.leases.list("worker")]

    store.leases.renew("worker", "w1", host="h", port=1, ttl_ms=1000, extra={"slots": 4})
    clock.ms += 600
    store.leases.renew("worker", "w2", host="h", port=2, ttl_ms=1000)
    assert names() == ["w1", "w2"]
    clock.ms += 600
    assert names() == ["w2"]
    renewed = store.leases.renew("worker", "w1", host="h", port=3, ttl_ms=1000)
    assert renewed.started_ms == 1_000_000
    assert [(row.port, row.extra) for row in store.leases.list()] == [(3, {}), (2, {})]
    store.leases.drop("worker", "w2")
    store.leases.drop("worker", "w9")
    assert names() == ["w1"]


def test_leases_long_run_out_are_cleared_away(store, clock) -> None:
    store.leases.renew("worker", "w1", host="h", port=1, ttl_ms=1000)
    clock.ms += 3_700_000
    store.leases.drop("worker", "other")
    again = store.leases.renew("worker", "w1", host="h", port=1, ttl_ms=1000)
    assert again.started_ms == clock.ms


def test_audit_entries_come_newest_first(store, clock) -> None:
    store.audit.add("s", "supervisor", author="me", comment="why", payload={"a": 1})
    store.audit.add("r", "rules")
    assert [row.key for row in store.audit.list()] == ["r", "s"]
    assert list(store.audit.list("s")) == [
        AuditRow("s", "supervisor", "me", "why", {"a": 1}, clock.ms)
    ]
    assert len(store.audit.list(limit=1)) == 1


def test_a_payload_must_be_json(store) -> None:
    with pytest.raises(InvalidRequest, match="plain JSON"):
        store.supervisors.put("s", {"v": object()})
    assert store.supervisors.history("s") == []


def test_a_closed_store_says_so(store) -> None:
    store.close()
    with pytest.raises(Closed, match="open it again"):
        store.revision()


def test_what_was_kept_is_there_after_opening_again(database_url, clock) -> None:
    with MetadataStore.open(database_url, clock=clock) as store:
        store.tasks.insert_new([task("t1")])
        store.begin_offsets("s", {0: 7})
    with MetadataStore.open(database_url, clock=clock) as store:
        assert store.tasks.get("t1") is not None
        assert store.offsets("s") == {0: 7}


def test_stored_specs_are_rewritten_together_or_not_at_all(store) -> None:
    store.tasks.insert_new([task("t1"), task("t2")])
    store.supervisors.put("s", {"spec": 1})
    store.supervisors.put("s", {"spec": 2})

    def fail_at_two(spec: dict[str, object]) -> dict[str, object]:
        if spec["spec"] == 2:
            raise InvalidRequest("not this one")
        return spec | {"changed": True}

    with pytest.raises(InvalidRequest):
        rewrite_specs(store._database, fail_at_two)
    assert "changed" not in store.tasks.get("t1").payload
    counts = rewrite_specs(
        store._database, lambda one: one | {"ä": 1} if one["spec"] != 1 else None
    )
    assert counts == {"penstock_tasks": 2, "penstock_supervisors": 1}
    assert store.tasks.get("t2").payload == task("t2").payload | {"ä": 1}
    newest, oldest = store.supervisors.history("s")
    assert (newest.payload, oldest.payload) == ({"spec": 2, "ä": 1}, {"spec": 1})


def test_the_migrations_make_the_tables_that_the_code_expects(store) -> None:
    def compare(connection) -> None:
        found = inspect(connection)
        for table in schema.tables.sorted_tables:
            columns = {c["name"]: c for c in found.get_columns(table.name)}
            assert set(columns) == {c.name for c in table.columns}, table.name
            key = found.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [c.name for c in table.primary_key.columns], table.name
            for column in table.columns:
                kind = columns[column.name]["type"]
                expected = column.type
                if connection.dialect.name == "sqlite" and column.name == "serial":
                    continue  # a number that SQLite gives out must be spelled INTEGER
                assert kind.as_generic().__class__.__name__ == expected.__class__.__name__

    store._database.read(compare)


def test_time_chunks_are_marked_whole(store) -> None:
    def put(datasource: str, interval: Interval, number: int) -> None:
        name = segment_id(datasource, interval, "v", number)
        row = SegmentRow(name, datasource, interval, "v", number, 0, {})
        store.publish(PublishRequest("t", datasource, (row,)))

    day, hour = Interval(0, 240), Interval(0, 10)
    for datasource in ("d", "e"):
        for number in range(2):
            put(datasource, day, number)
        put(datasource, hour, 0)

    def time_chunks(*asked):
        return store.segment_overviews.read(lambda overview: sorted(overview.time_chunks(*asked)))

    assert time_chunks(["d"]) == [("d", 0, 10), ("d", 0, 240)]
    assert time_chunks([]) == []
    assert len(time_chunks()) == 4
    revision = store.revision()
    assert store.segments.mark_unused_at([("d", day), ("e", hour), ("f", day)]) == 3
    assert time_chunks() == [("d", 0, 10), ("e", 0, 240)]
    assert store.revision() > revision
    assert store.segments.mark_unused_at([("d", day)]) == 0


def test_used_segments_are_summed_up(store, clock) -> None:
    def put(number: int, interval: Interval, payload) -> None:
        name = segment_id("d", interval, "v", number)
        row = SegmentRow(name, "d", interval, "v", number, 0, payload)
        store.publish(PublishRequest("t", "d", (row,)))

    early, late = Interval(0, 10), Interval(20, 30)
    put(0, early, {"size": 7, "totalRows": 3})
    put(1, early, {"size": 5_000_000_000})
    put(2, early, {})
    put(0, late, {"size": 1})
    put(1, late, {"size": 100, "totalRows": 50})
    gone = segment_id("d", late, "v", 1)
    store.segments.mark_unused([gone])
    newest_ms = clock.now_ms()
    assert store.segment_overviews.read(lambda o: o.totals()) == {
        "d": SegmentTotals(Interval(0, 30), 4, 5_000_000_008, 3, newest_ms)
    }
    assert store.segment_overviews.read(lambda o: o.totals("e")) == {}
    assert store.segment_overviews.read(lambda o: o.totals_by_time("d")) == [
        SegmentTotals(late, 1, 1),
        SegmentTotals(early, 3, 5_000_000_007, 3),
    ]
    unused = store.segment_overviews.read(lambda o: o.totals_by_time("d", used=False))
    assert unused == [SegmentTotals(late, 1, 100, 50)]
    within = store.segment_overviews.read(lambda o: o.totals_by_time("d", Interval(15, 30)))
    assert [one.interval for one in within] == [late]
    ids = store.segment_overviews.read(lambda o: o.ids("d"))
    assert ids == [segment_id("d", early, "v", n) for n in range(3)] + [
        segment_id("d", late, "v", 0)
    ]
    assert store.segment_overviews.read(lambda o: o.datasources()) == ["d"]


def announced_paths(store) -> list[str]:
    return sorted(row.file.path for row in store.snapshot().announced)


def test_announced_files_follow_their_task_root(store) -> None:
    store.tasks.insert_new([TaskRow("t", "d", "index_penstock", "g", {})])
    store.roots.register("w", "/was/a b#ü%20%/tasks")
    store.roots.register("w/1", "/was/a b#ü%20%/tasks/inner")
    files = [
        AnnouncedFile(f"/was/a b#ü%20%/{place}", Interval(0, 10), 1, {"path": "/x"})
        for place in ("tasks/t/persist/1", "tasks/inner/t/persist/2", "tasks2/t/persist/1")
    ]
    assert store.announce("t", "d", "s", files)
    assert announced_paths(store) == sorted(file.path for file in files)
    known = store.snapshot()
    assert not any("path" in row.file.payload for row in known.announced)
    store.roots.register("w", "/now/tasks")
    store.roots.register("w/1", "/now/more")
    moved = store.snapshot(known=known)
    assert sorted(row.file.path for row in moved.announced) == [
        "/now/more/t/persist/2",
        "/now/tasks/t/persist/1",
        "/was/a b#ü%20%/tasks2/t/persist/1",
    ]
    revision = store.revision()
    store.roots.register("w", "/now/tasks")
    assert store.revision() == revision
    assert store.roots.paths() == {"w": "/now/tasks", "w/1": "/now/more"}


def test_absolute_announced_files_of_earlier_releases_become_relative(store) -> None:
    store.tasks.insert_new([TaskRow(name, "d", "index_penstock", "g", {}) for name in "tu"])
    for name in "tu":
        file = AnnouncedFile(f"/old/tasks/{name}/persist/1-0/x", Interval(0, 10), 1)
        assert store.announce(name, "d", f"s{name}", [file])
    store.roots.register("w", "/new/tasks", ["t", "identity.json"])
    assert announced_paths(store) == ["/new/tasks/t/persist/1-0/x", "/old/tasks/u/persist/1-0/x"]


@pytest.mark.parametrize("number", [1 << 63, 1 << 64, -(1 << 63) - 1])
def test_a_number_that_the_database_cannot_keep_is_refused(
    store: MetadataStore, number: int
) -> None:
    with pytest.raises(InvalidRequest, match="cannot store or search for"):
        store.segments.unused(changed_before_ms=number, datasource="d")
    with pytest.raises(InvalidRequest, match="cannot store or search for"):
        store.leases.renew("r", "h", host="h", port=number, ttl_ms=1)
    assert store.leases.list() == []
