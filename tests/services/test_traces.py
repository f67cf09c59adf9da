"""Traces: each message gets the outcome that SQL and the counters show; each row its messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.indexing.task_spec import TASK_TYPE, parse_task_spec
from penstock.segments.segment import Segment
from penstock.storage.metadata import CountsRow
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.trace_kit import DATASOURCE, DAY_MS, TOPIC, Row, TraceWorld

HOUR_MS = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TraceWorld]:
    with closing(TraceWorld(tmp_path)) as made:
        yield made


def steps(found: dict[str, object]) -> list[str]:
    return [str(one["step"]) for one in cast("list[dict[str, object]]", found["steps"])]


def step(found: dict[str, object], name: str) -> dict[str, object]:
    return next(one for one in all_steps(found) if one["step"] == name)


def all_steps(found: dict[str, object]) -> list[dict[str, object]]:
    every = cast("list[dict[str, object]]", found["steps"])
    return [{**one, **cast("dict[str, object]", one["details"])} for one in every]


def offsets(found: dict[str, object]) -> list[object]:
    return [one["offset"] for one in cast("list[dict[str, object]]", found["messages"])]


# A model of everything that happens to rows


@dataclass
class Stored:
    """A segment in the model."""

    segment: Segment
    day: int
    rows: list[Row]
    writer: str
    used: bool = True
    exists: bool = True


@dataclass
class Model:
    """The fate of each message, step by step."""

    world: TraceWorld
    sent: list[tuple[str, Row | None]] = field(default_factory=list)
    segments: list[Stored] = field(default_factory=list)
    read: int = 0
    announced: int = 0
    has_task: bool = False
    home: dict[int, Stored] = field(default_factory=dict)

    def send(self, kind: str, day: int) -> None:
        world, number = self.world, len(self.sent)
        shift = {"late": -20, "early": 40}.get(kind, day)
        row: Row = (world.day + shift * DAY_MS + HOUR_MS, f"c{number}", number)
        if kind == "unparseable":
            world.send(b'{"time": "noon"}')
            self.sent.append((kind, None))
            return
        world.send_row(row)
        self.sent.append((kind, row))

    def rows_of(self, start: int, end: int) -> dict[int, Row]:
        return {
            at: row
            for at, (kind, row) in list(enumerate(self.sent))[start:end]
            if kind == "good" and row is not None
        }

    def counts(self, start: int, end: int) -> CountsRow:
        kinds = [kind for kind, _ in self.sent[start:end]]
        return CountsRow(
            processed=kinds.count("good"),
            unparseable=kinds.count("unparseable"),
            thrown_away_late=kinds.count("late"),
            thrown_away_early=kinds.count("early"),
        )

    def publish(self, count: int) -> None:
        """A sequence of a task of its own."""
        start, end = self.read, min(self.read + count, len(self.sent))
        if start == end:
            return
        task = self.world.task(start)
        made: list[Stored] = []
        rows = self.rows_of(start, end)
        for day in range(3):
            low = self.world.day + day * DAY_MS
            own = {at: row for at, row in rows.items() if low <= row[0] < low + DAY_MS}
            if own:
                number = sum(one.day == day for one in self.segments)
                segment = self.world.segment(day, list(own.values()), "v1", number)
                stored = Stored(segment, day, list(own.values()), task.id)
                made.append(stored)
                self.home.update(dict.fromkeys(own, stored))
        segments = [one.segment for one in made]
        self.world.publish(task, (start, end), segments, self.counts(start, end))
        self.world.end(task.id)
        self.segments += made
        self.read = end

    def announce(self, count: int) -> None:
        """Have a running task show rows that are not published yet."""
        self.announced = end = min(self.read + count, len(self.sent))
        if end == self.read:
            return
        task, rows = self.world.task(self.read), self.rows_of(self.read, end)
        self.has_task = True
        self.world.announce(task, (self.read, end), list(rows.values()))
        if not rows:
            self.announced = self.read  # without a file, nothing is announced

    def replace(self, day: int, kind: str) -> None:
        """Compact a day, or overwrite it with another row."""
        number = self.world.number()
        rows = self.shown(day)
        if kind == "index_parallel":
            rows = [(self.world.day + day * DAY_MS, "other", -1)]
        if not rows:
            return
        name = f"{kind}-{number}"
        segment = self.world.segment(day, rows, f"v2-{number:05}", 0)
        self.world.replace(name, kind, [segment])
        self.segments.append(Stored(segment, day, rows, name))

    def mark(self, number: int, *, kill: bool) -> None:
        there = [one for one in self.segments if one.used]
        if not there:
            return
        one = there[number % len(there)]
        one.used = False
        self.world.store.segments.mark_unused([str(one.segment.id)])
        if kill:
            one.exists = False
            self.world.store.segments.kill([str(one.segment.id)])

    def newest(self, day: int) -> str:
        versions = (one.segment.version for one in self.segments if one.used and one.day == day)
        return max(versions, default="")

    def shown(self, day: int) -> list[Row]:
        newest = self.newest(day)
        there = (
            s for s in self.segments if s.used and s.day == day and s.segment.version == newest
        )
        return [row for one in there for row in one.rows]

    def outcome(self, at: int) -> str:
        kind, row = self.sent[at]
        if at >= self.announced:
            return "reading" if self.has_task else "notRead"
        if kind != "good":
            return kind
        if at >= self.read:
            return "running"
        home = self.home[at]
        if row in self.shown(home.day):
            return "visible"
        if self.newest(home.day) > home.segment.version:
            return "hidden"
        return "unused" if home.exists else "deleted"

    def in_sql(self, at: int) -> bool:
        _, row = self.sent[at]
        running = self.rows_of(self.read, self.announced).values()
        return any(row in self.shown(day) for day in range(3)) or row in running

    def messages(self, at: int) -> list[int]:
        """The messages that a row of SQL is followed to."""
        home = self.home.get(at)
        return [at] if home is None or home.exists else []


KINDS = st.sampled_from(["good", "good", "good", "unparseable", "late", "early"])
BATCH = st.sampled_from(["compact", "index_parallel"])
ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6), st.just("")),
    st.tuples(
        st.just("replace"), st.integers(0, 2), st.sampled_from(["compact", "index_parallel"])
    ),
    st.tuples(st.just("mark"), st.integers(0, 9), st.sampled_from(["", "kill"])),
)


@settings(max_examples=25, deadline=None)
@given(
    sent=st.lists(st.tuples(KINDS, st.integers(0, 2)), min_size=1, max_size=14),
    actions=st.lists(ACTIONS, max_size=7),
    announced=st.integers(0, 4),
)
def test_each_message_has_the_outcome_that_sql_shows(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[tuple[str, int]],
    actions: list[tuple[str, int, str]],
    announced: int,
) -> None:
    with closing(TraceWorld(tmp_path_factory.mktemp("trace"))) as world:
        model = Model(world)
        for kind, day in sent:
            model.send(kind, day)
        for action, number, more in actions:
            if action == "publish":
                model.publish(number)
            elif action == "replace":
                model.replace(number, more)
            else:
                model.mark(number, kill=bool(more))
        model.announce(announced)
        for at, (_, row) in enumerate(model.sent):
            found = world.reader(at)
            assert found["outcome"] == model.outcome(at), (at, found)
            assert found["inSql"] == model.in_sql(at), (at, found)
            if row is not None and model.in_sql(at):
                back = world.row(row[0], carrier=row[1], n=row[2])
                assert back["rows"] == 1
                assert offsets(back) == model.messages(at), (at, back)


# Single stories


def publish_rows(world: TraceWorld, *rows: Row, **counts: int) -> str:
    """Send rows and publish them as one sequence with one segment."""
    first = len(world.topics.all[TOPIC].bodies)
    for row in rows:
        world.send_row(row)
    task = world.task(first)
    segment = world.segment(0, rows, "v1", first)
    world.publish(
        task, (first, first + len(rows)), [segment], CountsRow(processed=len(rows), **counts)
    )
    world.end(task.id)
    return task.id


def test_the_chain_has_task_sequence_offsets_and_segment_with_times(world: TraceWorld) -> None:
    task = publish_rows(world, (world.day + 5, "AA", 1), (world.day + 6, "BB", 2))
    found = world.message(1)
    assert (found["id"], found["topicId"], found["flow"]) == ("0000000000000001", "T1", [])
    assert cast("dict[str, object]", found["message"])["kept"] is True
    (reader,) = cast("list[dict[str, object]]", found["readers"])
    assert steps(reader) == ["read", "published", "segment", "visible"]
    read = step(reader, "read")
    assert (read["task"], read["startOffsets"], read["endOffsets"]) == (task, {"0": 0}, {"0": 2})
    assert step(reader, "published")["time"] == read["publishedAt"]
    assert step(reader, "segment")["version"] == "v1"
    assert step(reader, "visible")["isConfirmed"] is True
    by_id = world.api.get("/penstock/v1/trace/message", params={"topic": TOPIC, "id": found["id"]})
    assert by_id.json() == found


def test_tasks_that_failed_with_the_offset_are_attempts(world: TraceWorld) -> None:
    world.send_row((world.day, "AA", 1))
    killed = world.task(0, active=False, error="the peon was killed")
    restarted = world.task(0, active=False)
    world.clock.advance(60)
    publish_task = world.task(0)
    world.task(1)  # it begins after the message
    segment = world.segment(0, [(world.day, "AA", 1)], "v1", 0)
    world.publish(publish_task, (0, 1), [segment], CountsRow(processed=1))
    found = world.reader(0)
    attempts = [one for one in all_steps(found) if one["step"] == "attempt"]
    assert {one["task"] for one in attempts} == {killed.id, restarted.id}
    texts = {one["task"]: str(one["text"]) for one in attempts}
    assert texts[killed.id].endswith("ended as FAILED: the peon was killed")
    assert step(found, "read")["task"] == publish_task.id


def test_a_dead_letter_is_found_in_its_topic(world: TraceWorld) -> None:
    world.send(b"\xff not json")
    task = world.task(0)
    world.publish(task, (0, 1), [], CountsRow(unparseable=1, dead_letters=1))
    letters = world.spec.io.dead_letters
    found = world.reader(0)
    assert (found["outcome"], found["inSql"]) == ("unparseable", False)
    assert found["deadLetter"] == {"topic": letters}
    for offset in (7, 0):
        letter = {"topic": TOPIC, "partition": 0, "offset": offset, "reason": "x"}
        world.send(orjson.dumps(letter), letters)
    found = world.reader(0)
    assert found["deadLetter"] == {
        "topic": letters,
        "partition": 0,
        "offset": 1,
        "id": "0000000000000001",
    }
    where = f"dead-letter topic {letters}, stream partition 0, offset 1"
    assert found["reason"] == f"{step(found, 'refused')['text']}; it is in the {where}"
    assert "redriven" not in steps(found)
    world.topics.redriven.add((letters, 0, 1))
    assert "its dead letter was redriven" in str(step(world.reader(0), "redriven")["text"])


def test_the_dead_letter_of_an_unpublished_sequence_is_announced(world: TraceWorld) -> None:
    world.send(b"\xff not json")
    row = (world.day, "AA", 1)
    world.send_row(row)
    world.announce(world.task(0), (0, 2), [row])
    found = world.reader(0)
    later = "its dead letter can be found once the task has published"
    letters = world.spec.io.dead_letters
    assert found["outcome"] == "unparseable"
    assert str(found["reason"]).endswith(f"; {later}")
    assert (found["deadLetter"], step(found, "deadLetter")["text"]) == ({"topic": letters}, later)
    letter = {"topic": TOPIC, "partition": 0, "offset": 0, "reason": "x"}
    world.send(orjson.dumps(letter), letters)
    assert str(world.reader(0)["reason"]).endswith(f"topic {letters}, stream partition 0, offset 0")


def test_a_message_that_the_topic_deleted_has_a_known_sequence_only(world: TraceWorld) -> None:
    publish_rows(world, (world.day, "AA", 1))
    world.send_row((world.day, "BB", 1))
    world.topics.all[TOPIC].earliest = 2
    found = world.message(0)
    assert found["message"] == {"kept": False, "publishedAt": None, "bytes": None}
    assert world.reader(0)["outcome"] == "published"
    assert world.reader(1)["outcome"] == "lost"


def test_a_reset_supervisor_reads_a_message_again(world: TraceWorld) -> None:
    publish_rows(world, (world.day, "AA", 1))
    world.store.reset_offsets(world.spec.supervisor_id, {0: 0}, "T1")
    found = world.reader(0)
    assert (found["outcome"], found["readAgain"]) == ("visible", True)
    task = world.task(0)
    segment = world.segment(0, [(world.day, "AA", 1)], "v1", 5)
    world.publish(task, (0, 1), [segment], CountsRow(processed=1))
    found = world.reader(0)
    assert "readAgain" not in found
    assert len(cast("list[object]", found["otherPublishes"])) == 1


def test_offsets_of_a_deleted_topic_of_the_name_do_not_count(world: TraceWorld) -> None:
    publish_rows(world, (world.day, "AA", 1))
    world.topics.all[TOPIC].id = "T2"
    found = world.reader(0)
    assert found["outcome"] == "notRead"


def test_a_message_without_a_recorded_publish_is_unknown_unless_its_row_is_there(
    world: TraceWorld,
) -> None:
    world.send_row((world.day, "AA", 1))
    world.store.reset_offsets(world.spec.supervisor_id, {0: 1}, "T1")
    found = world.reader(0)
    assert (found["outcome"], found["inSql"]) == ("unknown", None)
    assert "before publishes were recorded" in str(found["reason"])
    world.replace("batch", "index_parallel", [world.segment(0, [(world.day, "AA", 1)], "v1", 0)])
    assert world.reader(0)["outcome"] == "visible"


def test_a_filter_is_decided_by_the_rows_that_are_there(tmp_path: Path) -> None:
    schema = {"transformSpec": {"filter": {"type": "selector", "dimension": "n", "value": "1"}}}
    with closing(TraceWorld(tmp_path, schema=schema)) as world:
        rows: list[Row] = [(world.day, "AA", 1), (world.day, "BB", 2)]
        for row in rows:
            world.send_row(row)
        task = world.task(0)
        counts = CountsRow(processed=1, thrown_away_filtered=1)
        world.publish(task, (0, 2), [world.segment(0, rows[:1], "v1", 0)], counts)
        assert [world.reader(at)["outcome"] for at in range(2)] == ["visible", "filtered"]
        back = world.row(world.day, carrier="AA")
        assert offsets(back) == [0]
        assert "filters are not evaluated" in cast("list[str]", back["notes"])[0]


def test_a_rolled_up_row_stands_for_several_messages(tmp_path: Path) -> None:
    schema = {
        "granularitySpec": {
            "segmentGranularity": "DAY",
            "queryGranularity": "HOUR",
            "rollup": True,
        },
        "dimensionsSpec": {"dimensions": ["carrier"]},
        "metricsSpec": [{"type": "count", "name": "n"}],
    }
    with closing(TraceWorld(tmp_path, schema=schema)) as world:
        for minute in (1, 2, 61):
            world.send_row((world.day + minute * 60_000, "AA", None))
        task = world.task(0)
        rows: list[Row] = [(world.day, "AA", 2), (world.day + HOUR_MS, "AA", 1)]
        world.publish(task, (0, 3), [world.segment(0, rows, "v1", 0)], CountsRow(processed=3))
        found = world.row(world.day, carrier="AA", n=2)
        assert (found["rows"], found["rolledUp"], offsets(found)) == (1, True, [0, 1])
        assert offsets(world.row(world.day + HOUR_MS, carrier="AA")) == [2]
        assert world.reader(2)["outcome"] == "visible"
        assert world.reader(2)["rolledUp"] is True


def test_discovered_columns_are_compared(tmp_path: Path) -> None:
    schema = {"dimensionsSpec": {"useSchemaDiscovery": True, "dimensionExclusions": ["secret"]}}
    with closing(TraceWorld(tmp_path, schema=schema)) as world:
        body = {"time": world.day, "carrier": "AA", "n": 1, "secret": "x", "list": [1]}
        world.send(orjson.dumps(body))
        task = world.task(0)
        rows: list[Row] = [(world.day, "AA", 1)]
        world.publish(task, (0, 1), [world.segment(0, rows, "v1", 0)], CountsRow(processed=1))
        assert world.reader(0)["outcome"] == "visible"
        assert step(world.reader(0), "visible")["isConfirmed"] is True
        assert offsets(world.row(world.day, carrier="AA", n=1)) == [0]
        assert offsets(world.row(world.day, n=2)) == []
        other: list[Row] = [(world.day, "AA", 2)]
        world.replace("later", "index_parallel", [world.segment(0, other, "v2", 0)])
        assert world.reader(0)["outcome"] == "hidden"


def test_equal_messages_are_all_listed_and_a_cursor_continues(world: TraceWorld) -> None:
    rows: list[Row] = [(world.day, "AA", 1)] * 250
    publish_rows(world, *rows)
    found = world.row(world.day, carrier="AA")
    assert found["rows"] == 250
    seen = offsets(found)
    requests = 1
    while found["cursor"] is not None:
        assert found["scanned"] == len(seen)
        found = world.row(world.day, found["cursor"], carrier="AA")
        seen += offsets(found)
        requests += 1
    assert requests == 3
    assert seen == list(range(250))
    assert (found["scanned"], found["toScan"]) == (250, 250)


def test_a_row_of_a_batch_task_has_its_input(world: TraceWorld) -> None:
    world.replace("load", "index_parallel", [world.segment(0, [(world.day, "AA", 1)], "v1", 0)])
    found = world.row(world.day, carrier="AA", n="1")
    (segment,) = cast("list[dict[str, object]]", found["segments"])
    assert (segment["task"], segment["taskType"]) == ("load", "index_parallel")
    assert segment["input"] == {"type": "inline", "data": "load"}
    assert (found["messages"], found["toScan"], found["cursor"]) == ([], 0, None)
    assert world.row(world.day, carrier="nobody")["rows"] == 0
    assert world.row(world.day, carrier=None)["rows"] == 0
    assert world.row(world.day, other="x")["rows"] == 0


def readers(world: TraceWorld, offset: int) -> list[dict[str, object]]:
    found = world.api.get(
        "/penstock/v1/trace/message", params={"topic": TOPIC, "partition": 0, "offset": offset}
    )
    assert found.status_code == 200, found.text
    return cast("list[dict[str, object]]", found.json()["readers"])


def test_a_stored_spec_of_another_release_has_what_the_log_knows(world: TraceWorld) -> None:
    row = (world.day, "AA", 1)
    for _ in range(2):
        world.send_row(row)
    task = world.task(0)
    world.publish(task, (0, 1), [world.segment(0, [row], "v1", 0)], CountsRow(processed=1))
    payload = world.spec.to_json()
    spec = cast("dict[str, dict[str, object]]", payload["spec"])
    spec["dataSchema"]["fromTheFuture"] = {"type": "x"}
    world.store.supervisors.put(world.spec.supervisor_id, payload)
    (first,) = readers(world, 0)
    assert (first["outcome"], first["inSql"]) == ("published", None)
    assert "another release" in str(first["reason"])
    assert task.id in str(first["steps"])
    (second,) = readers(world, 1)
    assert (second["outcome"], second["datasource"]) == ("unknown", DATASOURCE)
    assert "committed offset of its stream partition is 1" in str(second["steps"])


def test_a_terminated_supervisor_is_followed_if_it_published_the_message(
    world: TraceWorld,
) -> None:
    row = (world.day, "AA", 1)
    for _ in range(2):
        world.send_row(row)
    world.publish(world.task(0), (0, 1), [world.segment(0, [row], "v1", 0)], CountsRow(processed=1))
    world.store.supervisors.terminate(world.spec.supervisor_id)
    (found,) = readers(world, 0)
    assert (found["outcome"], found["terminated"]) == ("visible", True)
    assert readers(world, 1) == [], "it will never read the other one"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"type": "kafka", "name": "orders"}, "the Kafka topic orders"),
        ({"type": "folder", "name": "/logs", "pattern": "*.json"}, "the files /logs/*.json"),
    ],
)
def test_the_trace_of_a_row_ends_at_streams_elsewhere_with_the_reason(
    world: TraceWorld, place: dict[str, str], text: str
) -> None:
    row = (world.day, "AA", 1)
    payload = {**world.task(0).to_json(), "id": "elsewhere", "place": place}
    task = parse_task_spec(payload)
    world.add_task(task.id, TASK_TYPE, payload)
    world.publish(task, (0, 1), [world.segment(0, [row], "v1", 0)], CountsRow(processed=1))
    found = world.row(world.day, carrier="AA", n="1")
    assert (found["rows"], found["toScan"]) == (1, 0)
    (note,) = cast("list[str]", found["notes"])
    assert note.startswith(f"task {task.id} read it from {text}: ")


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ({"topic": "no such/name", "partition": 0, "offset": 0}, "topic"),
        ({"topic": TOPIC, "offset": 0}, "partition"),
        ({"topic": TOPIC, "partition": 0}, "offset"),
        ({"topic": TOPIC, "partition": 0, "offset": -1}, "offset"),
        ({"topic": TOPIC, "partition": 7, "offset": 0}, "partition"),
        ({"topic": TOPIC, "id": "zz"}, "id"),
        ({"topic": TOPIC, "id": "f000000000000000"}, "id"),
        ({"topic": TOPIC, "id": "0" * 16, "offset": 1}, "id"),
    ],
)
def test_invalid_messages_are_refused_with_their_place(
    world: TraceWorld, query: dict[str, object], place: str
) -> None:
    world.send_row((world.day, "AA", 1))
    answer = world.api.get("/penstock/v1/trace/message", params=query)
    assert answer.status_code == 400
    assert f"{place}: " in answer.json()["error"]


@pytest.mark.parametrize(
    "columns",
    [
        {"": "x"},
        {"carrier": {"a": [1]}},
        {"carrier": ["AA"]},
        {"a.b": None},
        {"n": None, "carrier": "<script>"},
        {"__time": "noon"},
        {"x" * 10_000: "y" * 10_000},
    ],
)
def test_odd_columns_find_nothing_or_are_not_compared(
    world: TraceWorld, columns: dict[str, object]
) -> None:
    publish_rows(world, (world.day, "AA", 1))
    body = {"datasource": DATASOURCE, "time": world.day, "columns": columns}
    answer = world.api.post("/penstock/v1/trace/row", json=body)
    assert answer.status_code == 200, answer.text
    is_compared = not columns.keys() <= {"__time", "a.b"}
    assert answer.json()["rows"] == (0 if is_compared else 1)


def test_a_message_that_does_not_exist_yet_is_not_found(world: TraceWorld) -> None:
    query = {"topic": TOPIC, "partition": 0, "offset": 0}
    answer = world.api.get("/penstock/v1/trace/message", params=query)
    assert answer.status_code == 404
    assert "gets the offset 0" in answer.json()["error"]
    answer = world.api.get("/penstock/v1/trace/message", params=query | {"topic": "none"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"datasource": 5}, "datasource: must be"),
        ({"time": "noon"}, "time: "),
        ({"time": True}, "time: must be"),
        ({"time": 1.5}, "time: must be"),
        ({"time": (1 << 63) - 1}, "time: must be from"),
        ({"time": -(1 << 63)}, "time: must be from"),
        ({"time": None}, "time: must be"),
        ({"columns": []}, "columns: must be"),
        ({"columns": {"n": "many"}}, "columns.n: 'many' is not a value of the type int64"),
        ({"cursor": "x"}, "cursor: is not a cursor"),
        ({"cursor": ["a"]}, "cursor: is not a cursor"),
        ({"more": 1}, "'more': unknown field"),
    ],
)
def test_invalid_rows_are_refused_with_their_place(
    world: TraceWorld, change: dict[str, object], text: str
) -> None:
    publish_rows(world, (world.day, "AA", 1))
    body = {"datasource": DATASOURCE, "time": world.day, "columns": {"carrier": "AA"}, **change}
    answer = world.api.post("/penstock/v1/trace/row", json=body)
    assert answer.status_code == 400
    assert text in answer.json()["error"]


RULES = """
[roles.eu]
row_filters.flights = "carrier = 'AA'"
[roles.reads-topic]
allow = ["read topic:flights"]
[roles.reads-rows]
allow = ["read datasource:flights"]
"""


@pytest.mark.parametrize(
    ("roles", "message", "readers", "row", "messages"),
    [
        (["reads-topic", "reads-rows"], 200, 1, 200, 1),
        (["reads-topic"], 200, 0, 403, 0),
        (["reads-rows"], 403, 0, 200, 0),
        (["reads-topic", "reads-rows", "eu"], 200, 0, 403, 0),
        (["admin", "eu"], 200, 0, 403, 0),
    ],
)
def test_hidden_rows_and_messages_are_not_revealed(
    tmp_path: Path, roles: list[str], message: int, readers: int, row: int, messages: int
) -> None:
    access = AccessFolderKit(tmp_path / "access", RULES).control
    with closing(TraceWorld(tmp_path, access)) as world:
        publish_rows(world, (world.day, "BB", 1))
        headers = as_principal(access, "user:alice", *roles)
        query = {"topic": TOPIC, "partition": 0, "offset": 0}
        found = world.api.get("/penstock/v1/trace/message", params=query, headers=headers)
        assert found.status_code == message
        if message == 200:
            assert len(found.json()["readers"]) == readers
        body = {"datasource": DATASOURCE, "time": world.day, "columns": {"carrier": "BB"}}
        found = world.api.post("/penstock/v1/trace/row", json=body, headers=headers)
        assert found.status_code == row
        if row == 200:
            assert len(found.json()["messages"]) == messages
            assert bool(found.json()["notes"]) == (messages == 0)
