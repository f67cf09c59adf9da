"""The rules of process sessions, one test each."""

from __future__ import annotations

import logging
import threading

import pytest

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import (
    ContentMissing,
    Relationship,
    RelationshipRetry,
    RetryBackoff,
    SessionMisuse,
    Terminated,
)
from penstock.flow.queue.queue import FilterVerdict
from tests.flow.session_kit import SessionWorld, full_disk, uuids


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld()


def test_a_flowfile_goes_from_its_queue_to_the_next(world: SessionWorld) -> None:
    [fed] = world.feed("a", b"hello")
    session = world.session()
    flowfile = session.get()
    assert flowfile is not None
    session.transfer(flowfile, Relationship(name="success"))
    session.commit()
    assert uuids(world.queues["out"].flowfiles) == [fed.attributes["uuid"]]
    assert world.contents("out") == [b"hello"]
    world.check()


def test_inputs_take_turns_and_one_call_takes_of_one_input(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2", b"3")
    world.feed("b", b"4", b"5")
    session = world.session()
    taken = [session.read_all(f) for f in iter(session.get, None)]
    assert taken == [b"1", b"4", b"2", b"5", b"3"]
    session.rollback()
    assert len(session.get_many(10)) == 2  # it is the turn of b
    assert len(session.get_many(2)) == 2
    session.rollback()
    world.check()


def test_what_a_filter_accepts_is_taken_of_all_inputs_until_it_stops(world: SessionWorld) -> None:
    world.feed("a", b"1", b"22", b"3")
    world.feed("b", b"44", b"5", b"66")
    seen: list[int] = []

    def two_bytes(flowfile: FlowFile) -> FilterVerdict:
        seen.append(flowfile.size)
        if len(seen) == 5:
            return FilterVerdict.REJECT_AND_STOP
        return FilterVerdict.ACCEPT if flowfile.size == 2 else FilterVerdict.REJECT

    session = world.session()
    assert [session.read_all(f) for f in session.get_where(two_bytes)] == [b"22", b"44"]
    assert len(seen) == 5
    session.rollback()
    world.check()


def test_a_filter_that_raises_loses_nothing(world: SessionWorld) -> None:
    world.feed("a", b"1")
    world.feed("b", b"2", b"33")
    session = world.session()

    def broken(flowfile: FlowFile) -> FilterVerdict:
        if flowfile.size == 2:
            raise RuntimeError
        return FilterVerdict.ACCEPT

    with pytest.raises(RuntimeError):
        session.get_where(broken)
    session.rollback()
    assert world.contents("a") == [b"1"]
    assert world.contents("b") == [b"2", b"33"]
    world.check()


def test_while_an_output_is_full_only_own_loops_are_polled(world: SessionWorld) -> None:
    world.wire(loop=True)
    world.feed("a", b"loop")
    world.feed("b", b"plain")
    world.queues["out"].is_full = True
    session = world.session()
    assert [session.read_all(f) for f in iter(session.get, None)] == [b"loop"]
    session.rollback()
    world.queues["a"].is_full = True  # a full loop keeps nothing back
    world.queues["out"].is_full = False
    assert len(list(iter(session.get, None))) == 2
    session.rollback()


def test_with_any_destination_all_must_be_full_to_hold_back(world: SessionWorld) -> None:
    world.wire(any_open=True)
    world.feed("b", b"plain")
    session = world.session()
    world.queues["copy"].is_full = world.queues["out"].is_full = True
    # `lost` has no connection, so it has room.
    assert session.get() is not None
    session.rollback()


def test_expired_flowfiles_are_removed_at_once_and_counted(world: SessionWorld) -> None:
    world.feed("a", b"old", b"older")
    world.clock.advance(10)
    world.feed("a", b"new")
    world.queues["a"].expiration_ms = 5_000
    session, transaction = world.begin()
    flowfile = session.get()
    assert flowfile is not None
    assert session.read_all(flowfile) == b"new"
    session.rollback()
    assert transaction.statistics.expired_count == 2
    assert transaction.statistics.expired_bytes == 8
    world.check()


def test_expired_flowfiles_whose_removal_fails_are_put_back_and_go_later(
    world: SessionWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.feed("a", b"old")
    world.clock.advance(10)
    world.queues["a"].expiration_ms = 1
    world.repository.fails = full_disk()
    session, transaction = world.begin()
    assert session.get() is None
    assert "1 expired FlowFile could not be removed" in caplog.text
    assert len(world.queues["a"].flowfiles) == 1
    assert world.yielded, "or it is asked at once, and refused again"
    session.rollback()
    assert transaction.statistics.expired_count == 0

    world.repository.fails = None
    session, transaction = world.begin()
    assert session.get() is None
    session.rollback()
    assert transaction.statistics.expired_count == 1
    assert not world.queues["a"].flowfiles
    world.check()


@pytest.mark.parametrize(
    "wrong", [{"k": "a\ud800"}, {"k\udfff": "v"}, {"plain": "é", "k": "\udc80"}]
)
def test_half_of_a_surrogate_pair_is_refused_where_it_is_given(
    world: SessionWorld, wrong: dict[str, str]
) -> None:
    session = world.session()
    with pytest.raises(InvalidRequest, match=r"attribute 'k.*surrogate"):
        session.create(attributes=wrong)
    flowfile = session.create(attributes={"é": "😀"})
    with pytest.raises(InvalidRequest, match=r"attribute 'k.*surrogate"):
        session.put_attributes(flowfile, wrong)
    session.transfer(flowfile, "success")
    session.commit()


def test_many_are_made_at_once_as_one_by_one(world: SessionWorld) -> None:
    world.feed("a", b"parent")
    session = world.session()
    [parent] = session.get_many(1)
    made = session.create(parent, each=[{"k": str(number)} for number in range(700)])
    assert [one.attributes["k"] for one in made] == [str(number) for number in range(700)]
    assert len(set(uuids(made))) == 700
    last = session.create(parent, attributes={"k": "last"})
    assert [one.id for one in (*made, last)] == sorted({one.id for one in (*made, last)})
    assert made[0].attributes.keys() == last.attributes.keys()
    assert (made[0].lineage_start_ms, made[0].lineage_index) == (
        parent.lineage_start_ms,
        parent.lineage_index,
    )
    assert session.create(each=[]) == []
    with pytest.raises(InvalidRequest, match="names and values must be text"):
        session.create(each=[{"k": "1"}, {"": "2"}])
    session.remove([parent, *made, last])
    session.commit()
    world.check()


def test_a_created_flowfile_has_what_every_flowfile_has(world: SessionWorld) -> None:
    session = world.session()
    flowfile = session.create(attributes={"k": "v"})
    uuid = flowfile.attributes["uuid"]
    assert flowfile.attributes == {"uuid": uuid, "filename": uuid, "path": "./", "k": "v"}
    assert flowfile.entry_ms == flowfile.lineage_start_ms == world.clock.now_ms()
    assert flowfile.lineage_index == flowfile.id
    session.transfer(flowfile, "success")
    session.commit()
    world.check()


def test_a_child_has_the_attributes_and_lineage_of_its_parent(world: SessionWorld) -> None:
    world.feed("a", b"x", color="red", **{"discard.reason": "d", "alternate.identifier": "i"})
    world.clock.advance(1)
    session = world.session()
    [parent] = session.get_many(1)
    child = session.create(parent)
    assert child.attributes["color"] == "red"
    assert child.attributes["uuid"] != parent.attributes["uuid"]
    assert {"discard.reason", "alternate.identifier"}.isdisjoint(child.attributes)
    assert child.lineage_start_ms == parent.lineage_start_ms
    assert child.size == 0
    session.rollback()
    world.check()


def test_a_child_of_several_has_what_is_the_same_in_all(world: SessionWorld) -> None:
    world.feed("a", b"x", color="red", size="s")
    world.clock.advance(1)
    world.feed("a", b"y", color="red", size="t")
    session = world.session()
    parents = session.get_many(2)
    child = session.create(parents)
    assert child.attributes["color"] == "red"
    assert "size" not in child.attributes
    assert child.lineage_start_ms == parents[0].lineage_start_ms
    session.rollback()


def test_a_clone_shares_the_content_and_a_part_of_it_too(world: SessionWorld) -> None:
    world.feed("a", b"hello world", color="red")
    session = world.session()
    [flowfile] = session.get_many(1)
    whole, part, empty = (
        session.clone(flowfile),
        session.clone(flowfile, 6, 5),
        session.clone(flowfile, 11),
    )
    of_part = session.clone(part, 1, 2)
    assert [session.read_all(f) for f in (whole, part, empty, of_part)] == [
        b"hello world",
        b"world",
        b"",
        b"or",
    ]
    assert whole.attributes["color"] == "red"
    assert empty.claim is None
    session.transfer([flowfile, whole, part, empty, of_part], "success")
    session.commit()
    assert sum(world.references().values()) == 4
    world.check()


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, 6), (3, 3), (6, None), (0, -1)])
def test_a_part_that_is_not_there_is_refused(
    world: SessionWorld, offset: int, size: int | None
) -> None:
    world.feed("a", b"12345")
    session = world.session()
    [flowfile] = session.get_many(1)
    with pytest.raises(InvalidRequest, match="so it has no part"):
        session.clone(flowfile, offset, size)
    session.transfer(flowfile)
    session.commit()
    world.check()


def test_attributes_are_set_and_removed_on_any_version(world: SessionWorld) -> None:
    world.feed("a", b"x", color="red")
    session = world.session()
    [first] = session.get_many(1)
    session.put_attributes(first, {"a": "1"})
    session.put_attributes(first, {"b": "2"})
    newest = session.remove_attributes(first, ["color", "none"])
    assert {k: newest.attributes.get(k) for k in ("a", "b", "color")} == {
        "a": "1",
        "b": "2",
        "color": None,
    }
    session.transfer(first, "success")
    session.commit()
    assert world.queues["out"].flowfiles[0].attributes["b"] == "2"
    world.check()


@pytest.mark.parametrize("attributes", [{"uuid": "x"}, {"": "x"}, {"n": 1}, {1: "x"}])
def test_attributes_that_will_not_do_are_refused_and_change_nothing(
    world: SessionWorld, attributes: dict[str, str]
) -> None:
    world.feed("a", b"x")
    session = world.session()
    [flowfile] = session.get_many(1)
    with pytest.raises(InvalidRequest):
        session.put_attributes(flowfile, attributes)
    with pytest.raises(InvalidRequest):
        session.create(attributes=attributes)
    session.transfer(flowfile)
    session.commit()
    world.check()


@pytest.mark.parametrize("name", ["uuid", "filename", "path"])
def test_attributes_of_every_flowfile_cannot_be_removed(world: SessionWorld, name: str) -> None:
    world.feed("a", b"x")
    session = world.session()
    [flowfile] = session.get_many(1)
    with pytest.raises(InvalidRequest, match=name):
        session.remove_attributes(flowfile, [name])
    session.rollback()


def test_a_flowfile_of_another_session_is_refused_and_rolled_back(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    one, other = world.session(), world.session()
    [mine], [theirs] = one.get_many(1), other.get_many(1)
    with pytest.raises(SessionMisuse, match=theirs.attributes["uuid"]):
        one.transfer([mine, theirs], "success")
    assert world.contents("a") == [b"1"]  # what `one` had is back
    other.transfer(theirs, "success")
    other.commit()
    world.check()


@pytest.mark.parametrize("sealed", ["transferred", "removed"])
@pytest.mark.parametrize(
    "call", ["transfer", "remove", "penalize", "write", "read", "attributes", "clone", "create"]
)
def test_what_was_transferred_or_removed_is_refused_and_rolled_back(
    world: SessionWorld, sealed: str, call: str
) -> None:
    world.feed("a", b"1")
    session = world.session()
    [flowfile] = session.get_many(1)
    if sealed == "removed":
        session.remove(flowfile)
    else:
        session.transfer(flowfile, "success")
    calls = {
        "transfer": lambda: session.transfer(flowfile, "success"),
        "remove": lambda: session.remove(flowfile),
        "penalize": lambda: session.penalize([flowfile]),
        "write": lambda: session.write(flowfile, b"x"),
        "read": lambda: session.read(flowfile),
        "attributes": lambda: session.put_attributes(flowfile, {"k": "v"}),
        "clone": lambda: session.clone(flowfile),
        "create": lambda: session.create(flowfile),
    }
    with pytest.raises(SessionMisuse, match=f"{flowfile.attributes['uuid']}.*{sealed}"):
        calls[call]()
    session.commit()  # nothing is left to commit
    assert world.contents("a") == [b"1"]
    world.check()


def test_one_that_is_forgotten_is_named_and_everything_rolled_back(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    session = world.session()
    first, second = session.get_many(2)
    session.write(first, b"changed")
    session.transfer(first, "success")
    with pytest.raises(SessionMisuse, match=second.attributes["uuid"]):
        session.commit()
    assert world.contents("a") == [b"1", b"2"]
    assert world.contents("out") == []
    world.check()


def test_an_unknown_relationship_is_an_error_of_the_argument_alone(world: SessionWorld) -> None:
    world.feed("a", b"1")
    session = world.session()
    [flowfile] = session.get_many(1)
    with pytest.raises(InvalidRequest, match="'nowhere': use one of both, ends"):
        session.transfer(flowfile, "nowhere")
    session.transfer(flowfile, "success")
    session.commit()
    world.check()


def test_a_relationship_without_connection_rolls_back(world: SessionWorld) -> None:
    world.feed("a", b"1")
    session = world.session()
    [flowfile] = session.get_many(1)
    session.transfer(flowfile, "lost")
    with pytest.raises(SessionMisuse, match=r"'lost'.*is neither connected"):
        session.commit()
    assert world.contents("a") == [b"1"]
    world.check()


def test_a_terminated_relationship_removes(world: SessionWorld) -> None:
    world.feed("a", b"1")
    session, transaction = world.begin()
    session.transfer(session.get_many(1), "ends")
    session.transfer(session.create(), "ends")
    session.commit()
    assert not world.repository.known
    assert transaction.statistics.removed_count == 1
    world.check()


def test_several_connections_get_clones_and_the_last_the_original(world: SessionWorld) -> None:
    [fed] = world.feed("a", b"1", color="red")
    session, transaction = world.begin()
    session.transfer(session.get_many(1), "both")
    session.commit()
    [original], [clone] = world.queues["out"].flowfiles, world.queues["copy"].flowfiles
    assert original.id == fed.id
    assert clone.id != fed.id
    assert clone.attributes["uuid"] != fed.attributes["uuid"]
    assert clone.attributes["color"] == "red"
    assert world.contents("copy") == [b"1"]
    assert (transaction.statistics.out_count, transaction.statistics.created_count) == (2, 1)
    world.check()


def test_back_to_the_source(world: SessionWorld) -> None:
    world.feed("a", b"1")
    world.feed("b", b"2")
    session = world.session()
    flowfiles = [*session.get_many(1), *session.get_many(1)]
    changed = session.put_attributes(flowfiles[0], {"k": "v"})
    session.transfer(flowfiles)
    session.commit()
    assert world.contents("a") == [b"1"]
    assert world.contents("b") == [b"2"]
    assert world.queues["a"].flowfiles[0].attributes == changed.attributes
    world.check()


def test_what_was_made_here_has_no_source_to_go_back_to(world: SessionWorld) -> None:
    session = world.session()
    with pytest.raises(SessionMisuse, match="no queue to return to"):
        session.transfer(session.create())
    world.check()


def test_the_order_of_transfers_is_the_order_in_the_queue(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2", b"3")
    session = world.session()
    one, two, three = session.get_many(3)
    session.transfer(three, "success")
    session.transfer([one, two], "success")
    session.commit()
    out = world.queues["out"].flowfiles
    assert [f.id for f in out] == [three.id, one.id, two.id]
    assert len({f.queued_ms for f in out}) == 1
    assert [f.queue_index for f in out] == sorted({f.queue_index for f in out})


def test_penalized_flowfiles_wait_for_the_penalty_period(world: SessionWorld) -> None:
    world.feed("a", b"1")
    session = world.session()
    taken = session.get_many(1)
    session.penalize(taken)
    session.transfer(taken)
    session.commit()
    assert session.get() is None
    world.clock.advance(30)
    assert session.get() is not None
    session.rollback()
    world.check()


def test_a_rollback_gives_back_what_was_taken_as_it_was(world: SessionWorld) -> None:
    [fed] = world.feed("a", b"1", color="red")
    session = world.session()
    [flowfile] = session.get_many(1)
    session.put_attributes(flowfile, {"color": "blue"})
    session.write(flowfile, b"other")
    session.create(flowfile)
    session.rollback()
    assert world.queues["a"].flowfiles == [fed]
    session.rollback(penalize=True)
    assert session.get_many(1) == [fed]
    session.rollback(penalize=True)
    assert session.get() is None
    world.check()


def test_the_order_of_a_commit(world: SessionWorld) -> None:
    world.feed("a", b"1")
    session = world.session()
    seen: list[str] = []

    def journal() -> None:
        seen.append("journal")
        assert world.queues["a"].unacknowledged[0] == 1
        assert not world.queues["out"].flowfiles

    world.repository.before_commit = journal
    out, source = world.queues["out"], world.queues["a"]
    put_many, acknowledge = out.put_many, source.acknowledge

    def put(flowfiles: list[FlowFile]) -> None:
        seen.append("put")
        put_many(flowfiles)

    def acknowledged(count: int, size_bytes: int) -> None:
        seen.append("acknowledge")
        acknowledge(count, size_bytes)

    out.put_many, source.acknowledge = put, acknowledged  # type: ignore[method-assign]
    session.on_committed(lambda: seen.append("callback"))
    session.transfer(session.get_many(1), "success")
    session.commit(durable=True)
    assert seen == ["journal", "put", "acknowledge", "callback"]
    assert world.repository.commits[-1][1] is True


def test_a_journal_that_fails_rolls_everything_back(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    session = world.session()
    called: list[str] = []
    session.on_committed(lambda: called.append("x"))
    [first] = session.get_many(1)
    session.write(first, b"changed")
    session.transfer(first, "both")
    session.checkpoint()
    session.transfer(session.get_many(1), "success")
    world.repository.fails = full_disk()
    with pytest.raises(Unavailable, match="no space left"):
        session.commit()
    world.repository.fails = None
    assert sorted(world.contents("a")) == [b"1", b"2"]
    world.check()
    session.commit()
    assert not called


def test_a_callback_that_raises_is_logged_and_the_others_run(
    world: SessionWorld, caplog: pytest.LogCaptureFixture
) -> None:
    session = world.session()
    called: list[str] = []

    def broken() -> None:
        raise RuntimeError("broken")

    session.on_committed(broken)
    session.on_committed(lambda: called.append("x"))
    session.commit()
    assert called == ["x"]
    assert "a callback after a commit failed" in caplog.text


def test_callbacks_of_what_was_rolled_back_are_not_called(world: SessionWorld) -> None:
    session = world.session()
    called: list[str] = []
    session.on_committed(lambda: called.append("x"))
    session.rollback()
    session.commit()
    assert not called


def test_a_rollback_after_a_checkpoint_undoes_only_what_came_behind(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    session = world.session()
    session.transfer(session.get_many(1), "success")
    session.checkpoint()
    assert world.contents("out") == []
    [second] = session.get_many(1)
    session.rollback()
    assert world.contents("a") == [b"2"]
    session.commit()
    assert world.contents("out") == [b"1"]
    assert len(world.repository.commits) == 2
    assert second.id in world.repository.known
    world.check()


def test_a_whole_rollback_undoes_checkpoints_too(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    session = world.session()
    session.transfer(session.get_many(1), "success")
    session.checkpoint()
    session.rollback(whole=True)
    session.commit()
    assert sorted(world.contents("a")) == [b"1", b"2"]
    world.check()


def test_a_batch_is_one_commit(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2", b"3")
    before = len(world.repository.commits)
    session, transaction = world.begin(batching=True)
    called: list[int] = []
    for number in range(3):
        session.on_committed(lambda number=number: called.append(number))
        session.transfer(session.get_many(1), "success")
        session.commit(durable=number == 1)
    assert not called
    transaction.flush()
    assert called == [0, 1, 2]
    assert len(world.repository.commits) == before + 1
    assert world.repository.commits[-1][1] is True
    assert transaction.statistics.in_count == 3
    world.check()


def test_a_removed_flowfile_leaves_no_trace_if_it_was_made_here(world: SessionWorld) -> None:
    before = len(world.repository.commits)
    session = world.session()
    flowfile = session.write(session.create(), b"scratch")
    session.remove(flowfile)
    session.commit()
    assert not world.repository.known
    assert all(not changes.removes for changes, _ in world.repository.commits[before:])
    world.check()


def test_a_session_without_anything_commits_nothing(world: SessionWorld) -> None:
    session = world.session()
    session.commit()
    assert not world.repository.commits


def test_flowfiles_migrate_with_what_was_made_of_them(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    one, other = world.begin()[0], world.begin()[0]
    first, second = one.get_many(2)
    child = one.write(one.create(first), b"child")
    one.migrate(other, [first, child])
    one.transfer(second, "success")
    one.commit()
    other.transfer([first, child], "success")
    other.commit()
    assert world.contents("out") == [b"2", b"1", b"child"]
    world.check()


@pytest.mark.parametrize("parted", ["parent", "child"])
def test_kin_does_not_migrate_alone(world: SessionWorld, parted: str) -> None:
    world.feed("a", b"1")
    world.feed("b", b"2")
    one, other = world.session(), world.session()
    [parent], [theirs] = one.get_many(1), other.get_many(1)
    child = one.clone(parent)
    with pytest.raises(SessionMisuse, match="move them together"):
        one.migrate(other, parent if parted == "parent" else child)
    other.transfer(theirs, "success")  # the other session goes on
    other.commit()
    assert world.contents("a") == [b"1"]
    world.check()


def test_migrated_flowfiles_are_not_of_the_first_session_any_more(world: SessionWorld) -> None:
    world.feed("a", b"1")
    one, other = world.session(), world.session()
    [flowfile] = one.get_many(1)
    one.migrate(other, flowfile)
    with pytest.raises(SessionMisuse, match="does not belong to this session"):
        one.transfer(flowfile, "success")
    other.rollback()
    assert world.contents("a") == [b"1"]
    with pytest.raises(InvalidRequest, match="another session"):
        one.migrate(one, [])
    world.check()


def test_a_flowfile_that_is_tried_again_goes_back_as_it_came(world: SessionWorld) -> None:
    world.wire(retries={"success": RelationshipRetry(2)})
    world.feed("a", b"1", color="red")
    for tried in range(2):
        session, transaction = world.begin()
        [flowfile] = session.get_many(1)
        session.write(flowfile, b"changed")
        session.put_attributes(flowfile, {"color": "blue"})
        child = session.create(flowfile)
        session.transfer(child, "both")
        session.transfer(flowfile, "success")
        session.commit()
        [again] = world.queues["a"].flowfiles
        assert again.attributes["retryCount.p"] == str(tried + 1)
        assert again.attributes["color"] == "red"
        assert world.contents("a") == [b"1"]
        assert again.penalty_until_ms == world.clock.now_ms() + 30_000 * 2**tried
        assert (transaction.statistics.in_count, transaction.statistics.out_count) == (0, 0)
        assert transaction.statistics.retried_count == 1
        world.check()
        assert session.get() is None
        world.clock.advance(120)
    session = world.session()
    session.transfer(session.get_many(1), "success")
    session.commit()
    [done] = world.queues["out"].flowfiles
    assert "retryCount.p" not in done.attributes
    world.check()


def test_a_retry_that_yields_has_the_processor_wait_and_not_the_flowfile(
    world: SessionWorld,
) -> None:
    world.wire(retries={"success": RelationshipRetry(3, RetryBackoff.YIELD, max_backoff_ms=2_500)})
    world.feed("a", b"1")
    for _ in range(3):
        session = world.session()
        session.transfer(session.get_many(1), "success")
        session.commit()
    assert world.yielded == [1_000, 2_000, 2_500]
    assert world.queues["out"].flowfiles == []
    world.check()


def test_kin_is_tried_again_together(world: SessionWorld) -> None:
    world.wire(retries={"success": RelationshipRetry(1)})
    world.feed("a", b"1", b"2", b"3")
    session = world.session()
    one, two, three = session.get_many(3)
    merged = session.create([one, two])
    session.transfer(merged, "success")
    session.remove([one, two])
    session.transfer(three, "both")
    session.commit()
    assert sorted(world.contents("a")) == [b"1", b"2"]
    assert world.contents("copy") == world.contents("out") == [b"3"]
    world.check()


def test_what_a_source_made_is_never_tried_again(world: SessionWorld) -> None:
    world.wire(retries={"success": RelationshipRetry(5)})
    session = world.session()
    session.transfer(session.create(), "success")
    session.commit()
    assert len(world.queues["out"].flowfiles) == 1
    world.check()


def test_a_given_up_session_raises_at_every_call_and_gives_back(world: SessionWorld) -> None:
    world.feed("a", b"1")
    session, transaction = world.begin()
    [flowfile] = session.get_many(1)
    stream = session.read(flowfile)
    out = session.write(flowfile)
    transaction.calls.terminate()
    assert world.contents("a") == [b"1"]
    calls = [
        session.get,
        session.create,
        session.commit,
        session.rollback,
        session.checkpoint,
        transaction.flush,
        lambda: session.transfer(flowfile, "success"),
        lambda: session.read(flowfile),
        lambda: out.write(b"x"),
        lambda: session.on_committed(lambda: None),
    ]
    for call in calls:
        with pytest.raises(Terminated, match="terminated"):
            call()
    assert stream.closed or stream.raw.closed
    world.check()


def test_a_session_that_ended_takes_nothing_any_more(world: SessionWorld) -> None:
    world.feed("a", b"1", b"2")
    session, transaction = world.begin()
    session.remove(session.get_many(1))
    transaction.commit()
    [_] = session.get_many(1)
    transaction.calls.end()
    assert world.contents("a") == [b"2"]
    with pytest.raises(Terminated, match="after its trigger returned"):
        session.get()
    world.check()


def test_a_session_given_up_at_the_very_end_of_a_call_gives_back_all_the_same(
    world: SessionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.feed("a", b"1")
    session, transaction = world.begin()
    mutex = transaction.calls._mutex

    class Mutex:
        """Has another thread give the session up just before the last call lets go of it."""

        def acquire(self, blocking: bool = True) -> bool:
            return mutex.acquire(blocking)

        def release(self) -> None:
            if not transaction.calls.is_terminated:
                other = threading.Thread(target=transaction.calls.terminate)
                other.start()
                other.join()
            mutex.release()

    monkeypatch.setattr(transaction.calls, "_mutex", Mutex())
    [_] = session.get_many(1)
    assert transaction.calls.is_terminated
    assert world.contents("a") == [b"1"]
    world.check()


def test_a_session_given_up_in_the_middle_of_a_call_gives_back_when_that_ends(
    world: SessionWorld,
) -> None:
    world.feed("a", b"1")
    session, transaction = world.begin()
    inside, leave = threading.Event(), threading.Event()

    def hangs(_: FlowFile) -> FilterVerdict:
        inside.set()
        leave.wait(120)
        return FilterVerdict.ACCEPT

    thread = threading.Thread(target=lambda: session.get_where(hangs))
    thread.start()
    inside.wait(120)
    transaction.calls.terminate()  # does not wait
    leave.set()
    thread.join(120)
    assert world.contents("a") == [b"1"]
    world.check()


def test_state_changes_with_the_commit_or_not_at_all(world: SessionWorld) -> None:
    session = world.session()
    session.state.set({"position": "1"})
    assert session.state.get() == {"position": "1"}
    assert world.state.get() == {}
    session.rollback()
    assert session.state.get() == {}
    session.state.set({"position": "2"})
    session.transfer(session.create(), "success")
    session.commit()
    assert world.state.get() == {"position": "2"}
    assert len(world.repository.commits) == 1  # one batch for both
    assert session.state.replace({"position": "2"}, {}) is True
    assert session.state.replace({"position": "2"}, {"x": "y"}) is False
    world.repository.fails = full_disk()
    with pytest.raises(Unavailable):
        session.commit()
    world.repository.fails = None
    session.commit()
    assert world.state.get() == {"position": "2"}
    session.state.clear()
    session.commit()
    assert world.state.get() == {}
    assert not world.repository.states


def test_statistics_are_what_happened(world: SessionWorld) -> None:
    world.feed("a", b"12345", b"12")
    session, transaction = world.begin()
    one, two = session.get_many(2)
    session.read_all(one)
    session.write(one, b"xyz")
    session.transfer(one, "success")
    session.remove(two)
    session.counters.add("rows", 3)
    session.commit()
    s = transaction.statistics
    assert (s.in_count, s.in_bytes, s.out_count, s.out_bytes) == (2, 7, 1, 3)
    assert (s.removed_count, s.removed_bytes, s.read_bytes, s.written_bytes) == (1, 2, 5, 3)
    assert s.counters == {"rows": 3}
    assert (s + s).counters == {"rows": 6}
    session.counters.add("rows")
    session.rollback()
    session.commit()
    assert transaction.statistics.counters == {"rows": 3}


def test_a_flowfile_polled_twice_is_refused_and_all_goes_back(world: SessionWorld) -> None:
    [fed] = world.feed("a", b"1")
    session = world.session()
    session.get_many(1)
    world.queues["b"].put_many([fed])
    with pytest.raises(SessionMisuse, match="two queues"):
        session.get_many(1)
    assert world.queues["a"].flowfiles == [fed]
    world.check()


def test_content_that_is_gone_takes_the_flowfile_out_at_the_rollback(
    world: SessionWorld, caplog: pytest.LogCaptureFixture
) -> None:
    gone, _ = world.feed("a", b"1", b"2")
    claim = gone.claim
    assert claim is not None
    world.fs.unlink(f"content/{claim.resource.section}/{claim.resource.id}")
    world.content._files.forget(claim.resource)
    session, transaction = world.begin()
    taken = session.get_many(2)
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(ContentMissing, match=gone.attributes["uuid"]),
    ):
        session.read_all(taken[0])
    session.rollback(penalize=True)
    assert [f.id for f in world.repository.missing] == [gone.id]
    assert [f.id for f in world.queues["a"].flowfiles] == [taken[1].id]
    assert transaction.statistics.missing_count == 1
    assert "its content is missing" in caplog.text
