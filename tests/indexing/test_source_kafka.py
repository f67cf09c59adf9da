"""A topic of Kafka as a stream: what is there, what is read, and what is gone."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.indexing import kafka_settings
from penstock.indexing.engine import EngineFailure, KafkaRange, StreamRange
from penstock.indexing.kafka_settings import Settings
from penstock.indexing.source import KafkaClients
from penstock.indexing.source.kafka import KafkaSupplier, OffsetsGoneError, read_records
from penstock.indexing.source.kafka.kafka_protocols import Connect
from penstock.indexing.source.kafka.kafka_reader import RecordBatch, RecordMetadata
from penstock.indexing.specs import parse_supervisor_spec
from penstock.indexing.specs.sources.secret_values import EnvironmentSecret
from penstock.indexing.specs.supervisor_spec import SupervisorSpec
from penstock.indexing.stream_location import StreamLocation, location_of
from penstock.storage.secrets.secret_sources import Secrets
from penstock.testing.clock import VirtualClock
from tests.broker.kafka_kit import MockCluster, StandIn, StandInRecord, mock_cluster
from tests.indexing.indexing_kit import OneTask, event, spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask


def _of_kafka(wanted: StreamRange) -> KafkaRange:
    assert isinstance(wanted, KafkaRange)
    return wanted


def _let_pass(clock: VirtualClock, _condition: Condition, timeout_s: float | None) -> bool:
    assert timeout_s is not None
    clock.advance(timeout_s)
    return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as made:
        yield made
    gc.collect()


@pytest.fixture
def standin() -> StandIn:
    return StandIn()


class Waiting(VirtualClock):
    """A clock on which waiting lets time pass."""

    def wait(self, condition: Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.advance(timeout_s)
        return False


def supplier(
    connect: Connect, topic: str = "events", clock: Waiting | None = None, **settings: Any
) -> KafkaSupplier:
    given = kafka_settings.checked({"bootstrap.servers": "k:9092", **settings})
    return KafkaSupplier(connect, clock or Waiting(), topic, given, Secrets())


def real(cluster: MockCluster, topic: str) -> KafkaSupplier:
    given = kafka_settings.checked(cluster.properties)
    return KafkaSupplier(KafkaClients(), SystemClock(), topic, given, Secrets())


def records(
    connect: KafkaClients | StandIn, wanted: KafkaRange, clock: SystemClock | Waiting | None = None
) -> list[tuple[int, bytes]]:
    return [
        (int(offset), value)
        for batch in read_records(connect, wanted, clock or Waiting())
        for offset, value in zip(batch.offsets, batch.values.to_pylist(), strict=True)
    ]


def wanted(start: int, end: int, partition: int = 0, topic: str = "events") -> KafkaRange:
    return KafkaRange(partition, topic, start, end, (("bootstrap.servers", "k:9092"),))


# How much time lies between records


def test_the_time_between_records_is_that_of_the_records(cluster: MockCluster) -> None:
    cluster.create("spans")
    sent = [StandInRecord(b"x" * 5000, time_ms=1_600_000_000_000 + ms) for ms in (0, 40, 25, 700)]
    cluster.add_whole("spans", 0, sent)
    cluster.add_whole("spans", 1, sent[2:3])
    source = real(cluster, "spans")
    assert source.spans_ms({0: (0, 4), 1: (0, 1)}) == {0: 700, 1: 0}
    assert source.spans_ms({0: (1, 3)}) == {0: 0}  # The later one says an earlier time.
    assert source.spans_ms({0: (1, 4)}) == {0: 660}


def test_a_mark_at_the_end_has_no_time_and_the_record_before_it_counts(standin: StandIn) -> None:
    records_: dict[int, bytes | StandInRecord | None]
    records_ = {0: StandInRecord(b"a", time_ms=10), 1: StandInRecord(b"b", time_ms=35)}
    standin.create("events", p0=records_).ends = {0: 3}
    assert supplier(standin).spans_ms({0: (0, 3)}) == {0: 25}


def test_what_says_no_time_or_is_gone_has_none(standin: StandIn) -> None:
    made = standin.create("events", p0={0: b"a"}, p1={5: StandInRecord(b"b", time_ms=1)})
    made.begins = {1: 5}
    assert supplier(standin).spans_ms({0: (0, 1), 1: (3, 6)}) == {0: None, 1: None}
    standin.silent = True
    assert supplier(standin).spans_ms({1: (5, 6)}) == {1: None}


def test_times_are_looked_for_no_longer_than_ten_seconds_and_then_the_others(
    standin: StandIn,
) -> None:
    logs: dict[str, dict[int, bytes | StandInRecord | None]]
    logs = {f"p{p}": {0: StandInRecord(b"a", time_ms=p)} for p in range(9)}
    standin.create("events", **logs)
    clock = Waiting()
    source = supplier(cast("Connect", Slow(standin, clock)), clock=clock)
    wanted = dict.fromkeys(range(9), (0, 1))
    assert list(source.spans_ms(wanted)) == [0, 1, 2, 3, 4]
    assert list(source.spans_ms(wanted)) == [5, 6, 7, 8, 0]
    del wanted[1]
    assert list(source.spans_ms(wanted)) == [2, 3, 4, 5, 6]


@dataclass
class Slow:
    """A cluster that takes a second to connect to."""

    standin: StandIn
    clock: VirtualClock

    def log(self, settings: Settings, *place: Any, whole: bool) -> Any:
        assert dict(settings)["max.partition.fetch.bytes"] == "1024"
        self.clock.advance(1)
        return self.standin.log(settings, *place, whole=whole)


# Against librdkafka's own cluster


def test_what_was_sent_is_there_and_is_read_once(cluster: MockCluster) -> None:
    partitions = cluster.create("sent")
    cluster.add("sent", 0, (b"a%d" % n for n in range(25_000)))
    cluster.add("sent", 1, (b"b%d" % n for n in range(3)))
    source = real(cluster, "sent")
    seen = source.available(after={0: 0, 1: 0})
    assert sorted(seen.partitions) == partitions
    assert [(a.earliest, a.latest) for _, a in sorted(seen.partitions.items())][:2] == [
        (0, 25_000),
        (0, 3),
    ]
    assert seen.partitions[0].message_bytes in range(2, 7)
    first, second = source.ranges({0: 100, 1: 1}, {0: 24_000, 1: 3}, seen)
    connect = KafkaClients()
    assert records(connect, first, SystemClock()) == [(n, b"a%d" % n) for n in range(100, 24_000)]
    assert records(connect, second, SystemClock()) == [(1, b"b1"), (2, b"b2")]


WHOLE = [
    StandInRecord(b"v", b"k", [("h", b"1"), ("h", b"\xff"), ("n", None)], 1_600_000_000_123),
    StandInRecord(None, b"k", None, 5),
    StandInRecord(b"", None, [], 6),
]


def _metadata(batch: RecordBatch) -> RecordMetadata:
    assert batch.metadata is not None
    return batch.metadata


def whole(
    connect: KafkaClients | StandIn, given: KafkaRange, clock: SystemClock | None = None
) -> list[tuple[bytes | int | list[tuple[str, bytes | None]] | None, ...]]:
    """What records have: offset, value, key, headers, time."""
    return [
        row
        for batch in read_records(connect, given, clock or Waiting(), whole=True)
        for row in zip(
            batch.offsets.tolist(),
            batch.values.to_pylist(),
            _metadata(batch).keys.to_pylist(),
            _metadata(batch).headers.to_pylist(),
            _metadata(batch).times_ms.to_pylist(),
            strict=True,
        )
    ]


def test_whole_records_come_with_keys_headers_and_times(cluster: MockCluster) -> None:
    cluster.create("whole")
    cluster.add_whole("whole", 0, WHOLE)
    given = KafkaRange(0, "whole", 0, 3, tuple(cluster.properties.items()))
    assert whole(KafkaClients(), given, SystemClock()) == [
        (0, b"v", b"k", [("h", b"1"), ("h", b"\xff"), ("n", None)], 1_600_000_000_123),
        (1, None, b"k", None, 5),
        (2, b"", None, None, 6),
    ]


def test_a_record_without_a_time_has_none(standin: StandIn) -> None:
    standin.create("events", p0={0: StandInRecord(b"a", time_ms=-1), 2: WHOLE[1], 5: WHOLE[0]})
    found = whole(standin, wanted(0, 5))
    assert found == [(0, b"a", None, None, None), (2, None, b"k", None, 5)]


def test_a_topic_that_is_not_there_is_told(cluster: MockCluster) -> None:
    with pytest.raises(NotFound, match="topic nowhere"):
        real(cluster, "nowhere").available()


def test_an_offset_that_is_not_there_is_told_with_its_mend(cluster: MockCluster) -> None:
    cluster.create("short")
    cluster.add("short", 0, [b"one"])
    given = KafkaRange(0, "short", 5, 9, tuple(cluster.properties.items()))
    with pytest.raises(
        OffsetsGoneError, match=r"no longer holds offset 5.*resetOffsetAutomatically"
    ):
        records(KafkaClients(), given, SystemClock())


def test_a_setting_that_the_client_refuses_shows_no_secret() -> None:
    with pytest.raises(InvalidRequest) as caught:
        KafkaClients().admin(
            (("bootstrap.servers", "k:1"), ("security.protocol", "ssl"), ("ssl.key.pem", "hush!"))
        )
    assert "hush!" not in str(caught.value)
    assert caught.value.place == kafka_settings.PLACE


def test_a_task_reads_kafka_and_publishes_each_message_once(
    cluster: MockCluster, tmp_path: Path
) -> None:
    cluster.create("tasks")
    cluster.add("tasks", 0, map(event, range(5)))
    properties = kafka_settings.checked(cluster.properties)
    place = StreamLocation(type="kafka", name="tasks", properties=properties)
    world = OneTask(tmp_path, place=place, topic="tasks")
    # Who waits for news lets time pass.
    world.clock.wait = partial(_let_pass, world.clock)  # type: ignore[method-assign]
    world.engine.read = lambda r: records(KafkaClients(), _of_kafka(r), SystemClock())
    world.run(lambda: world.announced() == [0, 1, 2, 3, 4])
    cluster.add("tasks", 1, map(event, range(5, 8)))
    world.run(lambda: world.announced() == list(range(8)))
    world.kill()
    world.start()
    cluster.add("tasks", 1, [event(8)])
    world.run(lambda: world.announced() == list(range(9)))
    world.metadata.close()


# What that cluster cannot do


@given(
    offsets=st.sets(st.integers(0, 40), max_size=30),
    markers=st.integers(0, 3),
    bounds=st.tuples(st.integers(0, 44), st.integers(0, 44)).map(sorted),
    most=st.integers(1, 7),
    tombstones=st.sets(st.integers(0, 40)),
)
def test_gaps_are_passed_over_and_no_record_is(
    offsets: set[int], markers: int, bounds: Sequence[int], most: int, tombstones: set[int]
) -> None:
    standin = StandIn(most=most)
    log: dict[int, bytes | StandInRecord | None]
    log = {o: None if o in tombstones else b"%d" % o for o in offsets}
    topic = standin.create("events", p0=log)
    # Behind the last record there may be markers of transactions.
    topic.ends[0] = max([max(offsets, default=-1) + 1 + markers, bounds[1]])
    start, end = bounds
    # One without a value comes as an empty message, so that it is counted.
    expected = [(o, log[o] or b"") for o in sorted(log) if start <= o < end]
    assert records(standin, wanted(start, end)) == expected


def test_runs_are_where_offsets_follow_each_other(standin: StandIn) -> None:
    standin.most = 10
    standin.create("events", p0={n: b"%d" % n for n in (0, 1, 4, 5, 9)})
    (batch,) = read_records(standin, wanted(0, 10), Waiting())
    assert [(at, values.to_pylist()) for at, values in batch.runs()] == [
        (0, [b"0", b"1"]),
        (4, [b"4", b"5"]),
        (9, [b"9"]),
    ]


def test_a_read_that_gets_nothing_is_an_error_not_a_short_range(standin: StandIn) -> None:
    standin.create("events", p0={0: b"x"})
    standin.silent = True
    clock = Waiting()
    real_take: Callable[..., Any] = standin.log

    def log(*args: Any, **more: Any) -> Any:
        made = real_take(*args, **more)
        take = made.take
        made.take = lambda most, wait_s: (clock.advance(wait_s), take(most, wait_s))[1]
        return made

    standin.log = log  # type: ignore[method-assign]
    with pytest.raises(
        Unavailable, match=r"no record came in 30 s at offset 0, though the reported end is 1"
    ):
        records(standin, wanted(0, 1), clock)


def test_a_topic_made_anew_has_another_id_at_once(standin: StandIn) -> None:
    standin.create("events", p0={0: b"x"})
    source = supplier(standin)
    seen = source.available()
    standin.create("events", p0={})
    again = source.available(after={0: 1}, wait_ms=60_000, stream_id=seen.id)
    assert again.is_another(seen.id)


def test_news_are_waited_for_and_not_longer(standin: StandIn) -> None:
    topic = standin.create("events", p0={0: b"x"})
    clock = Waiting()
    source = supplier(standin, clock=clock)
    assert source.available(after={0: 1}, wait_ms=1000).partitions[0].latest == 1
    assert clock.monotonic_s() == pytest.approx(1.0)
    wait = clock.wait

    def send(condition: Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        topic.logs[0][1] = b"y"
        return wait(condition, timeout_s)

    clock.wait = send  # type: ignore[method-assign]
    assert source.available(after={0: 1}, wait_ms=60_000).partitions[0].latest == 2
    assert clock.monotonic_s() == pytest.approx(1.25)


def test_a_backlog_is_weighed_once(standin: StandIn) -> None:
    log: dict[int, bytes | StandInRecord | None] = dict.fromkeys(range(20000), b"12345678")
    standin.create("events", p0=log, p1={})
    source = supplier(standin)
    assert source.available(after={0: 19_000}).partitions[0].message_bytes == 0
    assert source.available(after={0: 0}).partitions[0].message_bytes == 8
    (found,) = source.ranges({0: 0, 1: 0}, {0: 10, 1: 0}, source.available())
    assert (found.start, found.end, found.bytes) == (0, 10, 80)


def test_a_task_whose_offsets_kafka_has_deleted_ends_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standin: StandIn
) -> None:
    topic = standin.create("events", p0={n: event(n) for n in range(6)}, p1={})
    monkeypatch.setattr("penstock.indexing.source.stream_opener.KafkaClients", lambda: standin)
    place = StreamLocation(type="kafka", name="events", properties={"bootstrap.servers": "k:9092"})
    world = OneTask(tmp_path, place=place, topic="events")
    world.engine.read = lambda r: records(standin, _of_kafka(r))
    world.run(lambda: world.announced() == list(range(6)))
    topic.logs[0] |= {n: event(n) for n in range(6, 12)}
    # They are deleted while they are read.
    reading = world.engine.read

    def delete(wanted_range: StreamRange) -> Iterable[tuple[int, bytes]]:
        topic.begins[0] = 9
        topic.logs[0] = {n: event(n) for n in range(9, 12)}
        try:
            return reading(wanted_range)
        except OffsetsGoneError as error:
            raise EngineFailure(str(error)) from error

    world.engine.read = delete
    world.run(lambda: world.task.result.state.complete)
    assert world.published() == list(range(6))
    assert world.task.result.error == ""
    world.metadata.close()


# Specs


def kafka_spec(**properties: Any) -> SupervisorSpec:
    given = {"bootstrap.servers": "k:9092", **properties}
    spec = spec_json(type="kafka", consumerProperties=given)
    spec["type"] = "kafka"
    return parse_supervisor_spec(spec)


def test_secrets_come_from_the_environment_and_are_not_shown(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"type": "environment", "variable": "PENSTOCK_INPUT_KAFKA"}
    spec = kafka_spec(**{"sasl.password": secret, "sasl.username": "me"})
    place = location_of(spec.io)
    assert "hush" not in place.model_dump_json()
    standin.create("flights", p0={0: b"x"})
    secrets = Secrets(variables={"PENSTOCK_INPUT_KAFKA": "hush"})
    source = KafkaSupplier(standin, Waiting(), place.name, place.properties, secrets)
    seen = source.available()
    assert standin.connected[0]["sasl.password"] == "hush"
    (found,) = source.ranges({0: 0}, {0: 1}, seen)
    assert dict(found.properties)["sasl.password"] == "hush"
    assert "hush" not in repr(found) + repr(place) + caplog.text
    missing = KafkaSupplier(standin, Waiting(), place.name, place.properties, Secrets())
    with pytest.raises(InvalidRequest, match="PENSTOCK_INPUT_KAFKA is not set"):
        missing.available()


def test_a_reference_is_looked_up_at_each_connection_and_stored_as_it_is(
    standin: StandIn, tmp_path: Path
) -> None:
    secrets = Secrets(tmp_path / "secrets")
    pem = "-----BEGIN CERTIFICATE-----"
    for name, value in (("kafka", "hush"), ("ca", pem), ("wrong", "hush")):
        secrets.store().set(name, value)
    given = {"sasl.password": "secret://kafka", "ssl.ca.pem": "secret://ca"}
    place = location_of(kafka_spec(**given).io)
    assert place.properties["sasl.password"] == "secret://kafka"
    standin.create("flights", p0={0: b"x"})
    KafkaSupplier(standin, Waiting(), place.name, place.properties, secrets).available()
    assert standin.connected[0]["sasl.password"] == "hush"
    assert standin.connected[0]["ssl.ca.pem"] == pem
    for wrong, said in (
        ({"sasl.password": "secret://absent"}, "unknown secret 'absent'"),
        ({"ssl.ca.pem": "secret://wrong"}, "must be the text of certificates"),
    ):
        place = location_of(kafka_spec(**wrong).io)
        with pytest.raises(InvalidRequest, match=said) as caught:
            KafkaSupplier(standin, Waiting(), "flights", place.properties, secrets).available()
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap.servers", "secret://a"),
        ("client.id", "secret://a"),
        ("client.id", {"variable": "PENSTOCK_INPUT_A"}),
        ("isolation.level", " SECRET://a"),
    ],
)
def test_a_setting_that_is_shown_must_not_name_a_secret(
    name: str, value: str | Mapping[str, str]
) -> None:
    with pytest.raises(InvalidRequest):
        location_of(kafka_spec(**{name: value}).io)
    with pytest.raises(InvalidRequest, match="must not name a secret"):
        kafka_settings.checked({name: EnvironmentSecret(variable="PENSTOCK_INPUT_A")})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("plugin.library.paths", "leave it out"),
        ("sasl.kerberos.kinit.cmd", "would run a command"),
        ("ssl.ca.location", "ssl.ca.pem"),
        ("ssl.truststore.location", "ssl.ca.pem"),
        ("sasl.jaas.config", "sasl.username"),
        ("debug", "level"),
        ("test.mock.num.brokers", "leave it out"),
    ],
)
def test_settings_that_run_code_or_read_files_are_refused(name: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy) as caught:
        location_of(kafka_spec(**{name: "value-of-it"}).io)
    assert caught.value.place == "spec.ioConfig.consumerProperties"
    assert "value-of-it" not in str(caught.value)


def test_settings_of_javas_client_become_those_of_this_one() -> None:
    io = kafka_spec(**{"group.id": "x", "fetch.max.wait.ms": 7, "socket.keepalive.enable": True}).io
    settings = kafka_settings.resolved(location_of(io).properties, Secrets())
    assert dict(settings) == {
        "bootstrap.servers": "k:9092",
        "fetch.wait.max.ms": "7",
        "isolation.level": "read_committed",
        "socket.keepalive.enable": "true",
    }


def test_uncommitted_records_are_read_only_if_the_spec_says_so() -> None:
    assert kafka_settings.checked({})["isolation.level"] == "read_committed"
    assert kafka_settings.checked({"isolation.level": "read_uncommitted"})
    with pytest.raises(InvalidRequest, match="must be read_committed or read_uncommitted"):
        kafka_settings.checked({"isolation.level": "some"})
    with pytest.raises(InvalidRequest, match="PEM"):
        kafka_settings.checked({"ssl.ca.pem": "/etc/passwd"})
    assert kafka_settings.checked({"ssl.ca.pem": EnvironmentSecret(variable="PENSTOCK_INPUT_CA")})


def test_a_supervisor_of_kafka_is_taken_and_a_wrong_setting_refused_at_once(
    make: Callable[..., Simulation], standin: StandIn
) -> None:
    sim = make()
    spec = spec_json(type="kafka", consumerProperties={"bootstrap.servers": "k:9", "debug": "all"})
    spec["type"] = "kafka"
    with pytest.raises(InvalidRequest, match="debug must not be set in a spec"):
        ask(sim, sim.overlord.supervisor_service.submit(spec))
