"""Selections of FlowFiles by their events, and replays of many of them."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.flow.provenance.provenance_selection import ChosenFlowFile, EventFilter
from penstock.storage.content.claims import ContentClaim
from penstock.testing.memory_disk import PowerLoss
from tests.flow.provenance_kit import KEEP_MS, World, all_events, made_and_ended, made_and_passed


def selected(
    world: World, wanted: EventFilter | None = None, steps: int = 50
) -> tuple[list[ChosenFlowFile], int]:
    """All FlowFiles of a selection, and the number of its steps."""
    world.sync()
    reader = world.reader()
    found: list[ChosenFlowFile] = []
    following, until = 0, 0
    for number in range(1, steps + 1):
        step = reader.select(wanted or EventFilter(), following, until)
        found += step.chosen
        if step.following is None:
            return found, number
        assert step.following > following, "each step makes progress"
        following, until = step.following, step.until
    raise AssertionError("the selection never ended")


def test_filters_choose_flowfiles_by_their_events_once() -> None:
    world = World()
    with world.session("make", outputs="success:a") as session:
        made = session.create(each=[{"n": str(n)} for n in range(4)])
        session.transfer(made, "success")
    start_ms = world.clock.now_ms()
    world.clock.advance(60)
    with world.session("mark", "a", "success:b") as session:
        taken = session.get_many(2)
        session.transfer(session.put_attributes(taken[0], {"k": "v"}), "success")
        session.transfer(taken[1], "success")
    world.clock.advance(60)
    with world.session("end", "b", ended="done") as session:
        session.transfer(session.get_many(2), "done")

    def ids(**wanted: object) -> list[int]:
        found, _ = selected(world, msgspec.convert(wanted, EventFilter))
        assert len({one.flowfile for one in found}) == len(found)
        return [one.flowfile - made[0].id for one in found]

    assert sorted(ids()) == [0, 1, 2, 3]
    assert ids(component="mark") == [0, 1]
    assert ids(event="ATTRIBUTES_MODIFIED") == [0]
    assert ids(event="ROUTE") == [1]
    assert ids(event="DROP") == [0, 1]
    assert ids(attribute="k", value="v") == [0], "a DROP has the attributes of before"
    assert ids(attribute="n", value="3") == [3]
    assert ids(attribute="n", value="x") == []
    assert ids(to_ms=start_ms + 1) == [0, 1, 2, 3]
    assert ids(from_ms=start_ms + 1) == [0, 1]
    assert ids(from_ms=start_ms + 1, component="make") == []
    [dropped, queued] = [
        one for one in selected(world)[0] if one.flowfile in {made[0].id, made[3].id}
    ][::-1]
    if dropped.flowfile != made[0].id:
        dropped, queued = queued, dropped
    assert (dropped.is_queued, queued.is_queued) == (False, True)
    assert dropped.version is not None
    assert dropped.version.queue == "b"
    assert dropped.version.flowfile.attributes["k"] == "v"
    with pytest.raises(InvalidRequest, match="use one of CREATE"):
        EventFilter(event="NONE")
    with pytest.raises(InvalidRequest, match="later than from"):
        EventFilter(from_ms=5, to_ms=5)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    step=st.integers(1, 6),
    events=st.integers(1, 9),
)
def test_each_flowfile_is_in_one_step_whatever_the_steps_are(
    sizes: list[int], step: int, events: int
) -> None:
    world = World()
    made: list[int] = []
    for size in sizes:
        with world.session("make", outputs="success:a") as session:
            new = session.create(each=[{}] * size)
            made += [one.id for one in new]
            session.transfer(new, "success")
        with world.session("pass", "a", "success:a") as session:
            session.transfer(session.get_many(3), "success")
    with pytest.MonkeyPatch.context() as patch:
        module = "penstock.flow.provenance.provenance_reader"
        patch.setattr(f"{module}.STEP_MAX", step)
        patch.setattr(f"{module}.STEP_EVENTS_MAX", events)
        found, _ = selected(world, steps=500)
    assert sorted(one.flowfile for one in found) == sorted(made)


@pytest.mark.parametrize("bound", ["STEP_COMMITS_MAX", "STEP_COMMIT_BYTES_MAX"])
def test_a_step_reads_a_limited_number_of_commits_and_opens_each_file_once(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    world = World()
    made: list[int] = []
    for _ in range(6):
        with world.session("make", outputs="success:a") as session:
            one = session.create()
            session.transfer(one, "success")
        made.append(one.id)
        for _ in range(4):
            with world.session("pass", "a", "success:a") as session:
                session.transfer(session.get_many(1), "success")
        with world.session("end", "a") as session:
            session.remove(session.get_many(1))
    world.sync()
    opens: Counter[str] = Counter()
    open_read = world.fs.open_read

    def counted(path: str) -> object:
        opens[path] += path.endswith(".spool")
        return open_read(path)

    monkeypatch.setattr(world.fs, "open_read", counted)
    assert len(world.reader().select(EventFilter(component="make"), 0).chosen) == 6
    assert max(opens.values()) <= 5, (
        "three times for the index, once for the events, once for all commits"
    )
    limit = 12 if bound == "STEP_COMMITS_MAX" else 1
    monkeypatch.setattr(f"penstock.flow.provenance.provenance_reader.{bound}", limit)
    found, steps = selected(world, EventFilter(component="make"))
    assert [one.flowfile for one in found] == made
    assert steps == (3 if bound == "STEP_COMMITS_MAX" else 6)


def test_a_flowfile_with_a_long_history_is_chosen_by_an_old_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.flow.provenance.provenance_reader.HISTORY_MAX", 3)
    world = World()
    one = made_and_passed(world, 9)
    for component in ("make", "pass"):
        found, _ = selected(world, EventFilter(component=component))
        assert [chosen.flowfile for chosen in found] == [one.id]
        assert (found[0].is_queued, found[0].is_unclear) == (True, False)
    found, _ = selected(world, EventFilter(component="make", attribute="n", value="1"))
    assert [chosen.is_unclear for chosen in found] == [True]
    found, _ = selected(world, EventFilter(component="pass", event="ROUTE"))
    assert [chosen.is_unclear for chosen in found] == [False]


def test_many_replays_are_one_commit_and_kill_at_any_step_leaves_all_or_none() -> None:
    for step in range(1, 200):
        world = World()
        ended = [made_and_ended(world) for _ in range(3)]
        versions = [one.version for one in selected(world)[0] if one.version is not None]
        assert [one.flowfile.id for one in versions] == [one.id for one in ended]
        queue = world.queue("a")
        world.fs.kill_at(world.fs.steps + step, keep_bytes=3)
        try:
            world.replays.replay_many([(one, queue) for one in versions], "user:x")
        except PowerLoss:
            is_over = False
        else:
            is_over = True
        after = World(world.fs.kill_process(), world.clock)
        queued = after.queue("a").poll_many(10).flowfiles
        assert len(queued) in {0, 3}, f"step {step}"
        for one in queued:
            assert one.claim is not None
            assert after.content.read(one.claim, one.content_offset, one.size) == b"hello"
        found = [one for one in selected(after)[0] if one.flowfile in {e.id for e in ended}]
        assert [one.replayed_as is not None for one in found] == [bool(queued)] * 3
        if is_over:
            assert len(queued) == 3
            events = after.reader().lineage([queued[0].id], 0).events
            assert [(one.event, one.principal) for one in events] == [("REPLAY", "user:x")]
            return
    raise AssertionError("the replays never ended")


def test_flowfiles_whose_content_is_gone_are_left_out_of_many_replays() -> None:
    world = World()
    old = made_and_ended(world)
    world.clock.advance(ms=KEEP_MS + 1)
    world.content.trim_retained()
    new = made_and_ended(world)
    versions = [one.version for one in selected(world)[0] if one.version is not None]
    assert [world.replays.is_kept(one) for one in versions] == [False, True]
    done = world.replays.replay_many([(one, world.queue("a")) for one in versions])
    assert list(done) == [new.id]
    assert old.id not in done
    assert (world.replays.count, world.replays.refused) == (1, 1)
    assert [one.id for one in world.queue("a").poll_many(5).flowfiles] == list(done.values())


def test_a_refused_commit_of_many_replays_releases_the_content() -> None:
    world = World()
    made_and_ended(world)
    version = selected(world)[0][0].version
    assert version is not None
    world.fs.fail_next("fsync")
    with pytest.raises(Unavailable):
        world.replays.replay_many([(version, world.queue("a"))])
    assert world.content.statistics().references == 0
    assert world.replays.is_kept(version)
    assert (world.replays.count, world.queue("a").size.count) == (0, 0)


class FailingListener:
    def on_work(self, queue: str) -> None:
        raise MemoryError("no memory")

    def on_space(self, queue: str) -> None:
        pass


def test_all_committed_replays_enter_their_queues_although_one_step_fails() -> None:
    world = World()
    for _ in range(3):
        made_and_ended(world)
    versions = [one.version for one in selected(world)[0] if one.version is not None]
    failing, other = world.queue("a"), world.queue("b")
    failing.listener = FailingListener()
    queues = (failing, failing, other)
    with pytest.raises(MemoryError):
        world.replays.replay_many(list(zip(versions, queues, strict=True)))
    assert (failing.size.count, other.size.count) == (2, 1)


def test_damaged_content_is_not_replayed_and_commits_go_on_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    claim = made_and_ended(world).claim
    assert claim is not None

    def damaged(_files: object, checked: ContentClaim) -> bool:
        world.content.trim_retained()  # needs the mutex that deletions need
        assert checked == claim
        return False

    monkeypatch.setattr("penstock.storage.content.content_repository.check_claim", damaged)
    with pytest.raises(NotFound, match="no longer kept"):
        world.content.revive(claim)
    world.sync()
    assert world.content.statistics().retained == 1


def test_a_flowfile_that_was_created_and_dropped_in_one_session_leaves_no_event() -> None:
    world = World()
    with world.session("make", outputs="success:a") as session:
        session.transfer(session.create(), "success")
    with world.session("mix", "a", "success:b") as session:
        [known] = session.get_many(1)
        made = session.create(each=[{}, {}])
        session.remove(made[0])
        session.transfer([known, made[1]], "success")
    world.sync()
    last = [one for one in all_events(world.reader()) if str(one["id"]).startswith("2-")]
    assert [(one["event"], one["flowfile"]) for one in last] == [
        ("ROUTE", known.id),
        ("CREATE", made[1].id),
    ]
