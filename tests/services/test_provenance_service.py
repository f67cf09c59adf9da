"""Provenance in the process of the flow: its topic exactly once, its datasource, its HTTP API."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.broker.message_bodies import parse_binary
from penstock.core.clock import SystemClock
from penstock.core.errors import NotFound, Unavailable
from penstock.core.metrics import MetricRegistry
from penstock.core.msgpack_encoding import pack
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.flow.provenance.provenance_reader import ProvenanceReader
from penstock.flow.provenance.provenance_selection import (
    EventFilter,
    FlowFileVersion,
    SelectionStep,
)
from penstock.flow.repository.commit_note import CommitNote
from penstock.flow.repository.commit_records import CommitRecord
from penstock.flow.repository.commit_spool import SPOOL_FOLDER, CommitSpool, SpoolOptions
from penstock.indexing.specs.supervisor_spec import parse_supervisor
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.flow.provenance import REPLAYS, REQUESTS_MAX
from penstock.services.host.audit_files import AuditPosition
from penstock.services.host.audit_publisher import AuditPublisher, EncodedLines, Lines
from penstock.services.host.provenance_process import ProvenanceProcess
from penstock.services.host.provenance_records import ProvenanceRecords
from penstock.services.host.provenance_service import (
    OBSTACLES,
    ProvenanceDatasource,
    ProvenanceLookups,
    ProvenanceOptions,
    SupervisedTopic,
    provenance_supervisor,
)
from penstock.services.json_client import JsonClient
from penstock.storage.disk import OsFileSystem
from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import with_token
from tests.services.test_flow_api import ApiClient, put

OPTIONS = ProvenanceOptions("_provenance", 36 * 3_600_000, 1 << 30)
FLOW = """
name: api
processors:
  Make: {type: GenerateFlowFile, properties: {custom_text: hello}}
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Make.success, to: Log}
"""
FLOW_OF_ONE = """
name: api
processors:
  Make: {type: GenerateFlowFile, properties: {custom_text: hello}, auto_terminated: success}
"""


class KeptTopic:
    """A topic that appends each batch once, and may lose its answer."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.sequences: dict[str, int] = {}
        self.loses_answer = False
        self.refuses = False

    def publish(self, lines: Lines, producer: tuple[str, int]) -> None:
        assert isinstance(lines, EncodedLines)
        if self.refuses:
            raise Unavailable("no broker")
        name, sequence = producer
        if sequence > self.sequences.get(name, -1):
            self.sequences[name] = sequence
            messages = parse_binary(lines.body, 1 << 20, 1 << 30)
            self.events += [json.loads(one.as_py()) for one in messages]
        if self.loses_answer:
            self.loses_answer = False
            raise Unavailable("the answer was lost")

    def close(self) -> None:
        pass


def opened(folder: Path) -> tuple[CommitSpool, Journal]:
    """A spool over a journal whose commits have the numbers from 1 on."""
    fs, clock = OsFileSystem(), VirtualClock()
    journal = Journal.open(str(folder / "journal"), fs=fs, clock=clock)
    if not (folder / SPOOL_FOLDER).exists():
        journal.compact(b"")
    spool = CommitSpool(str(folder / SPOOL_FOLDER), fs, clock)
    spool.recover({1: journal.path}, len(journal.records), 0)
    return spool, journal


def commit(spool: CommitSpool, journal: Journal, number: int, flowfiles: int = 3) -> None:
    note = CommitNote("make", 1_700_000_000_000)
    made = [FlowFile(number * 100 + n, {"uuid": f"u{n}"}) for n in range(flowfiles)]
    note.add_route("success", [one.id for one in made])
    note.created = [one.id for one in made]
    journal.append((pack(CommitRecord(number, number, {"q": made}, notes=[note])),))
    journal.sync()
    spool.record(number)
    spool.made_durable(number)


class Killed(BaseException):
    """The process is killed."""


class DyingRecords(ProvenanceRecords):
    """Records whose process is killed before it stores the position after the given ones."""

    dies_after = 1_000_000

    def set_position(self, position: AuditPosition) -> None:
        if not self.dies_after:
            raise Killed
        self.dies_after -= 1
        super().set_position(position)


def publisher(spool: CommitSpool, topic: KeptTopic, dies_after: int = 1_000_000) -> AuditPublisher:
    reader = ProvenanceReader(OsFileSystem(), spool.folder)
    records = DyingRecords(spool, reader, MetricRegistry())
    records.dies_after = dies_after
    return AuditPublisher(records, topic, VirtualClock(), lambda: 0.0, "provenance")


def drain(one: AuditPublisher) -> None:
    while True:
        try:
            if not one.publish_next():
                return
        except Unavailable:
            continue


def test_each_event_is_in_the_topic_once_although_answers_are_lost_and_processes_end(
    tmp_path: Path,
) -> None:
    topic = KeptTopic()
    for round_ in range(4):
        spool, journal = opened(tmp_path)
        for number in range(round_ * 3 + 1, round_ * 3 + 4):
            commit(spool, journal, number)
            spool.flush()
            topic.loses_answer = number % 3 == 1
            if number % 3 == 0:
                with pytest.raises(Killed):
                    publisher(spool, topic, dies_after=1).publish_next()
            else:
                drain(publisher(spool, topic))
        spool.close()
        journal.close()
    spool, journal = opened(tmp_path)
    drain(publisher(spool, topic))
    ids = [str(one["id"]) for one in topic.events]
    assert ids == [f"{number}-{place}" for number in range(1, 13) for place in range(3)]
    spool.close()


def test_a_lost_position_publishes_again_as_another_producer(tmp_path: Path) -> None:
    spool, journal = opened(tmp_path)
    commit(spool, journal, 1)
    spool.flush()
    topic = KeptTopic()
    drain(publisher(spool, topic))
    (tmp_path / SPOOL_FOLDER / "position.json").write_text("damaged")
    drain(publisher(spool, topic))
    assert [one["id"] for one in topic.events] == ["1-0", "1-1", "1-2"] * 2
    assert len(topic.sequences) == 2
    spool.close()


def test_the_other_process_answers_as_the_reader_and_is_replaced_when_it_ends(
    tmp_path: Path,
) -> None:
    spool, journal = opened(tmp_path)
    commit(spool, journal, 1)
    spool.flush()
    reader = ProvenanceReader(OsFileSystem(), spool.folder)
    process = ProvenanceProcess(spool.folder, os.environ)
    try:
        assert process.events(0) == reader.events(0)
        assert process.lineage([100], 3) == reader.lineage([100], 3)
        assert process.version(101) == reader.version(101)
        assert process.version(999) is None
        assert process.flowfiles_of("t", 0, 0) == []
        running = process._process
        assert running is not None
        running.kill()
        running.wait()
        assert process.lineage([100], 3) == reader.lineage([100], 3)
        assert process.starts == 2
    finally:
        process.close()
    with pytest.raises(Unavailable):
        process.events(0)
    spool.close()


def test_a_selection_does_not_read_files_that_end_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, journal = opened(tmp_path)
    commit(spool, journal, 1)
    spool.close()
    [file] = (tmp_path / SPOOL_FOLDER).glob("*.spool")
    note_ms = 1_700_000_000_000
    os.utime(file, (note_ms // 1_000 + 30, note_ms // 1_000 + 30))
    reader = ProvenanceReader(OsFileSystem(), spool.folder)
    assert len(reader.select(EventFilter(from_ms=note_ms), 0).chosen) == 3
    assert reader.select(EventFilter(from_ms=note_ms + 1), 0).chosen == []

    def unread(*_: object) -> None:
        raise AssertionError("it read a commit")

    monkeypatch.setattr("penstock.flow.provenance.provenance_reader._commit_at", unread)
    assert reader.select(EventFilter(from_ms=note_ms + 600_000), 0).chosen == []


def test_a_process_that_does_not_answer_in_time_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, journal = opened(tmp_path)
    commit(spool, journal, 1)
    spool.close()
    process = ProvenanceProcess(spool.folder, os.environ)
    try:
        assert process.lineage([100], 3).flowfiles == [100]
        running = process._process
        assert running is not None
        running.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr("penstock.services.host.provenance_process._ANSWER_S", 0.01)
            with pytest.raises(Unavailable, match="no answer within"):
                process.lineage([100], 3)
        assert running.poll() is not None
        assert process.lineage([100], 3).flowfiles == [100]
    finally:
        process.close()


# -- the datasource


class Servers:
    """The broker and the router, as far as the datasource asks them."""

    def __init__(self, *, exists: bool = False, is_down: bool = False) -> None:
        self.exists = exists
        self.is_down = is_down
        self.posts: list[tuple[str, object]] = []

    def get(self, path: str) -> object:
        if path.endswith("/history") and not self.exists:
            raise NotFound("no supervisor")
        return []

    def post(self, path: str, body: object = None) -> object:
        if self.is_down:
            raise Unavailable("down")
        self.posts.append((path, body))
        return {}

    def client(self) -> JsonClient:
        return cast("JsonClient", self)


def batch() -> EncodedLines:
    return EncodedLines(1, b"\0\0\0\1\0\0\0\2{}")


def test_the_supervisor_and_its_rules_are_created_once_it_never_existed() -> None:
    servers, clock, topic = Servers(is_down=True), VirtualClock(), KeptTopic()
    datasource = ProvenanceDatasource(OPTIONS, servers.client, servers.client)
    supervised = SupervisedTopic(topic, datasource, clock)
    supervised.publish(batch(), ("p", 1))
    servers.is_down = False
    supervised.publish(batch(), ("p", 2))
    assert servers.posts == [], "the next attempt is later"
    clock.advance(60)
    supervised.publish(batch(), ("p", 3))
    supervised.publish(batch(), ("p", 4))
    paths = [path for path, _ in servers.posts]
    assert paths == [
        "/topic/configure?topic=_provenance&retention_ms=129600000&retention_bytes=1073741824",
        "/druid/coordinator/v1/rules/_provenance",
        "/druid/indexer/v1/supervisor",
    ]
    assert servers.posts[1][1] == [{"type": "dropBeforeByPeriod", "period": "PT36H"}]
    assert len(topic.events) == 4


def test_a_supervisor_that_an_operator_ended_stays_ended() -> None:
    servers = Servers(exists=True)
    ProvenanceDatasource(OPTIONS, servers.client, servers.client).ensure()
    assert [path.partition("?")[0] for path, _ in servers.posts] == ["/topic/configure"]


def test_the_spec_is_valid() -> None:
    spec = parse_supervisor(json.dumps(provenance_supervisor(OPTIONS)).encode())
    assert spec.supervisor_id == "_provenance"


# -- the HTTP API


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[FlowController]:
    numbers = itertools.count()
    controller = FlowController.open(
        str(tmp_path),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
        options=ControllerOptions(provenance=SpoolOptions()),
    )
    yield controller
    controller.close()


@pytest.fixture
def client(flow: FlowController) -> ApiClient:
    assert flow.spool is not None
    lookups = ProvenanceLookups(ProvenanceReader(OsFileSystem(), flow.spool.folder))
    routes = FlowRoutes(lambda: flow, SystemClock(), lambda: lookups, "_provenance")
    return ApiClient(application(routes.routes(), access=with_token(None)))


def test_lineage_and_replay_over_http(client: ApiClient, flow: FlowController) -> None:
    put(client, FLOW)
    client.post("/flow/run-once", params={"target": "Make"})
    connection = {"connection": "Make.success -> Log"}
    [queued] = client.get("/flow/queue", params=connection).json()["flowFiles"]
    number = str(queued["id"])
    content = client.get(
        "/flow/queue/content", params={**connection, "flowFile": number, "offset": "1"}
    )
    assert content.content == b"ello"
    client.post("/flow/run-once", params={"target": "Log"})
    assert flow.spool is not None
    flow._repository.sync()
    flow.spool.flush()
    found = client.get("/penstock/v1/flow/provenance", params={"flowfile": number}).json()
    assert [one["event"] for one in found["events"]] == ["CREATE", "DOWNLOAD", "DROP"]
    assert found["events"][1]["principal"] == f"owner:{getpass.getuser()}"
    assert [one.get("revision") for one in found["events"]] == [1, None, 1]
    assert sorted(found["names"].values()) == ["Log", "Make", "Make.success → Log"]
    replay = {"flowfile": number, "key": "k1"}
    done = client.post("/penstock/v1/flow/replay", params=replay).json()
    again = client.post("/penstock/v1/flow/replay", params=replay).json()
    assert (done["flowfile"], done["repeated"]) == (again["flowfile"], False)
    assert again["repeated"]
    [copy] = client.get("/flow/queue", params={"connection": "Make.success -> Log"}).json()[
        "flowFiles"
    ]
    assert (copy["id"], copy["size"]) == (done["flowfile"], 5)


def settle(flow: FlowController) -> None:
    flow._repository.sync()
    assert flow.spool is not None
    flow.spool.flush()


def steps(
    client: ApiClient, method: str, **wanted: str
) -> tuple[dict[str, int], list[dict[str, object]]]:
    """The sums of all steps of a selection."""
    outcomes: dict[str, int] = {}
    examples: list[dict[str, object]] = []
    place: dict[str, str] = {}
    while True:
        answer = client.request(
            method, "/penstock/v1/flow/replays", params={**wanted, **place}
        ).json()
        for name, count in answer["outcomes"].items():
            outcomes[name] = outcomes.get(name, 0) + count
        examples += answer["examples"]
        if answer["next"] is None:
            return outcomes, examples
        place = {"next": answer["next"], "until": str(answer["until"])}


def test_many_flowfiles_are_previewed_and_replayed_once(
    client: ApiClient, flow: FlowController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.flow.provenance.provenance_reader.STEP_MAX", 2)
    put(client, FLOW)
    for _ in range(5):
        client.post("/flow/run-once", params={"target": "Make"})
        client.post("/flow/run-once", params={"target": "Log"})
    client.post("/flow/run-once", params={"target": "Make"})
    settle(flow)
    wanted = {"component": "Make", "event": "create"}
    expected, examples = steps(client, "GET", **wanted)
    assert expected == {"replayed": 5, "queued": 1}
    [queued] = examples
    assert queued["reason"] == "it is still in a queue"
    assert steps(client, "GET", component="Log", attribute="no", value="x") == (
        *({"replayed": 0}, []),
    )
    queue = flow.queue("Make.success -> Log")
    assert queue.size.count == 1, "a preview changes nothing"
    assert steps(client, "POST", **wanted)[0] == expected
    assert queue.size.count == 6
    assert steps(client, "POST", **wanted)[0] == {"replayed": 0, "already": 5, "queued": 1}
    assert queue.size.count == 6
    # The copies are FlowFiles of their own, which may be replayed after they left.
    for _ in range(6):
        client.post("/flow/run-once", params={"target": "Log"})
    settle(flow)
    assert steps(client, "GET", event="REPLAY")[0] == {"replayed": 5}


def test_a_single_replay_waits_for_one_of_many_that_has_chosen_its_flowfile(
    client: ApiClient, flow: FlowController
) -> None:
    put(client, FLOW)
    client.post("/flow/run-once", params={"target": "Make"})
    connection = {"connection": "Make.success -> Log"}
    [made] = client.get("/flow/queue", params=connection).json()["flowFiles"]
    client.post("/flow/run-once", params={"target": "Log"})
    settle(flow)
    assert flow.spool is not None
    single: list[threading.Thread] = []
    is_found = threading.Event()

    class Interrupted(ProvenanceReader):
        def select(self, wanted: EventFilter, following: int, until: int = 0) -> SelectionStep:
            found = super().select(wanted, following, until)
            if not single:
                job = threading.Thread(target=lookups.replay, args=(flow, made["id"], "", "k"))
                single.append(job)
                job.start()
                assert is_found.wait(120)
                job.join(0.2)  # without the mutex it ends here; with it, it waits
                assert flow.replays.count == 0
            return found

        def version(self, flowfile: int, event: str = "") -> FlowFileVersion | None:
            found = super().version(flowfile, event)
            is_found.set()
            return found

    lookups = ProvenanceLookups(Interrupted(OsFileSystem(), flow.spool.folder))
    assert lookups.replay_many(flow, EventFilter(), 0, 0).outcomes["replayed"] == 1
    single[0].join()
    # A replay of one FlowFile may repeat another replay; a replay of many never does.
    assert flow.queue("Make.success -> Log").size.count == 2


def test_requests_that_wait_for_the_record_leave_threads_for_others(flow: FlowController) -> None:
    entered = threading.Semaphore(0)
    is_answered = threading.Event()

    class Slow(ProvenanceReader):
        def select(self, wanted: EventFilter, following: int, until: int = 0) -> SelectionStep:
            entered.release()
            assert is_answered.wait(120)
            return super().select(wanted, following, until)

    assert flow.spool is not None
    lookups = ProvenanceLookups(Slow(OsFileSystem(), flow.spool.folder))
    routes = FlowRoutes(lambda: flow, SystemClock(), lambda: lookups)
    client = ApiClient(application(routes.routes(), access=with_token(None)))
    found: list[int] = []

    def preview() -> None:
        found.append(client.get(REPLAYS).status_code)

    waiting = [threading.Thread(target=preview) for _ in range(REQUESTS_MAX)]
    for one in waiting:
        one.start()
        assert entered.acquire(timeout=120)
    refused = client.get(REPLAYS)
    assert (refused.status_code, "4 requests wait" in refused.text) == (503, True)
    assert client.get("/flow/status").status_code == 200
    is_answered.set()
    for one in waiting:
        one.join()
    assert found == [200] * REQUESTS_MAX
    preview()
    assert found[-1] == 200


def test_flowfiles_without_queue_or_content_or_space_are_counted_with_the_reason(
    client: ApiClient, flow: FlowController
) -> None:
    put(client, FLOW)
    for _ in range(2):
        client.post("/flow/run-once", params={"target": "Make"})
        client.post("/flow/run-once", params={"target": "Log"})
    settle(flow)
    old = [one for one in Path(flow._content._folder).rglob("*") if one.is_file()]
    full = FLOW.replace("to: Log}", "to: Log, back_pressure_count: 1}")
    put(client, full)
    client.post("/flow/run-once", params={"target": "Make"})
    assert steps(client, "GET")[0] == {"replayed": 0, "full": 2}
    client.post("/flow/run-once", params={"target": "Log"})
    for one in old:
        one.unlink()
    settle(flow)
    outcomes, examples = steps(client, "POST", component="Make")
    assert outcomes["content"] >= 2
    assert "--provenance-retention" in str(examples[0]["reason"])
    put(client, FLOW_OF_ONE)
    outcomes, _ = steps(client, "GET", component="Make")
    assert outcomes == {"replayed": 0, "connection": 3}


def test_the_console_shows_the_reasons_of_all_outcomes() -> None:
    source = Path(__file__).parents[2] / "console" / "src" / "pages" / "replays.tsx"
    block = source.read_text().partition("const REASONS")[2].partition("};")[0]
    shown = dict(re.findall(r'^  (\w+): "(.+)",$', block, re.MULTILINE))
    assert shown.keys() == OBSTACLES.keys()
    assert all("damaged" in texts["content"] for texts in (shown, OBSTACLES))


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "replays?component=Nobody", 404, "unknown component"),
        ("GET", "replays?event=none", 400, "event: unknown kind of event 'NONE'"),
        ("GET", "replays?from=yesterday", 400, "from: 'yesterday' is not an ISO 8601 time"),
        ("GET", "replays?from=2026&to=2025", 400, "to: it must be later than from"),
        ("GET", "replays?value=1", 400, "value: it has no attribute"),
        ("POST", "replays?next=12", 400, "next: '12' is not the id of an event"),
        ("POST", "replays?next=1-99999999", 400, "is not the id of an event"),
        ("POST", "replays?until=x", 400, "whole number"),
        ("GET", "provenance", 400, "give flowfile, or topic, partition and offset"),
        ("GET", "provenance?flowfile=1&topic=t", 400, "give flowfile"),
        ("GET", "provenance?topic=t&partition=0", 400, "give flowfile"),
        ("GET", "provenance?flowfile=x", 400, "whole number"),
        ("GET", "provenance?flowfile=1&depth=21", 400, "from 0 to 20"),
        ("GET", "provenance?topic=t&partition=0&offset=99999999999999999999", 400, "whole number"),
        ("POST", "replay?flowfile=1", 400, "key"),
        ("POST", "replay?flowfile=7777&key=k", 404, "not in the record of provenance"),
    ],
)
def test_bad_requests_change_nothing(
    client: ApiClient, method: str, path: str, status: int, text: str
) -> None:
    answer = client.request(method, f"/penstock/v1/flow/{path}")
    assert (answer.status_code, text in answer.text) == (status, True), answer.text


def test_without_the_option_there_is_no_record(tmp_path: Path) -> None:
    controller = FlowController.open(
        str(tmp_path),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: "u",
        environment={},
    )
    routes = FlowRoutes(lambda: controller, SystemClock())
    api = ApiClient(application(routes.routes(), access=with_token(None)))
    answer = api.get("/penstock/v1/flow/provenance", params={"flowfile": "1"})
    assert answer.status_code == 404
    assert "--provenance-topic" in answer.text
    assert controller.spool is None
    assert not (tmp_path / "provenance").exists()
    controller.close()
