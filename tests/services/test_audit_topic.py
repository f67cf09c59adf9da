"""The audit in a topic of a real broker: its records, its readers, and an absent broker."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer
from penstock.core.access.access_control import AccessControl
from penstock.core.access.audit import REFUSALS_PER_SECOND_MAX, AuditOptions
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.rules import Action, Resource
from penstock.core.clock import SystemClock
from penstock.core.errors import Forbidden, NotReachable
from penstock.core.metrics import MetricRegistry
from penstock.indexing.specs.supervisor_spec import parse_supervisor_spec
from penstock.services.examples import example
from penstock.services.host.audit_files import AuditFiles, audit_into
from penstock.services.host.audit_publisher import AuditPublisher, BrokerAuditTopic


@contextmanager
def broker(folder: Path, access: AccessControl) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = BrokerServer(BrokerOptions(folder=str(folder), http_port=0), access=access)
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(120)
        yield f"http://127.0.0.1:{server.http_port}"
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(120)
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(120)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class AuditedBroker:
    """Parts of a broker's process for the audit, with tokens of several roles."""

    def __init__(self, folder: Path) -> None:
        clock = SystemClock()
        self.registry = MetricRegistry()
        self.access = AccessControl(
            folder / "access",
            clock,
            process="broker",
            registry=self.registry,
            audit=AuditOptions("audit", records_everything=True),
        )
        credentials = CredentialFile(folder / "access" / "credentials.json", clock)
        self.tokens = {
            role: credentials.add_token(f"of-{role}", (role,)).text
            for role in ("admin", "operator", "publisher", "consumer")
        }
        self.access.refresh()
        self.files = AuditFiles(folder / "audit", "broker", clock, self.registry)
        self.url = "http://127.0.0.1:1"
        self.asked = 0  # for tokens
        self.topic = BrokerAuditTopic("audit", lambda: self.url, self._bearer)
        self.publisher = AuditPublisher(self.files, self.topic, clock)

    def _bearer(self) -> str:
        self.asked += 1
        return self.access.key.process_bearer()

    def published(self) -> int:
        return self.access.audit.counts()["audit_published_total"]

    def client(self, role: str) -> BrokerClient:
        return BrokerClient(self.url, token=self.tokens[role])

    def close(self) -> None:
        self.topic.close()
        self.files.close()


@pytest.fixture
def audited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[AuditedBroker]:
    caplog.set_level(logging.INFO, "penstock.audit")
    made = AuditedBroker(tmp_path)
    with audit_into(made.files):
        yield made
    made.close()


def test_records_wait_for_the_broker_and_do_not_record_themselves(
    audited: AuditedBroker, tmp_path: Path
) -> None:
    audited.access.authenticator.of_bearer(b"wrong")
    with pytest.raises(NotReachable):
        audited.publisher.publish_next()
    audited.topic.close()  # as the thread does after a failure
    with broker(tmp_path / "topics", audited.access) as audited.url:
        with audited.client("publisher") as client:
            client.publish("clicks", [b"secret content"])
        with audited.client("consumer") as client, pytest.raises(Forbidden):
            client.delete_topic("clicks")
        until_s = time.monotonic() + 20  # the broker notices the end of a connection later
        while audited.published() < 4 and time.monotonic() < until_s:
            audited.publisher.publish_next()
        assert not audited.publisher.publish_next(), "publishing is not recorded"
        with audited.client("operator") as client:
            found = client.peek("audit", count=100)["messages"]
        assert isinstance(found, list)
        records = [json.loads(one["body"]) for one in found]
        assert sorted((one["event"], one["principal"], one["allowed"]) for one in records) == [
            ("decision", "token:of-consumer", False),
            ("decision", "token:of-publisher", True),
            ("end", "token:of-publisher", True),
            ("login", "token", False),
        ]
        assert {"action": "manage"}.items() <= next(
            one for one in records if not one["allowed"] and one["event"] == "decision"
        ).items()
        assert "secret content" not in json.dumps(records)
        for role in ("publisher", "consumer"):
            with audited.client(role) as client, pytest.raises(Forbidden):
                client.peek("audit")
        for role in audited.tokens:
            with audited.client(role) as client, pytest.raises(Forbidden):
                client.publish("audit", [b'{"event":"forged"}'])
        with audited.client("operator") as client, pytest.raises(Forbidden):
            client.delete_topic("audit")
        counts = audited.access.audit.counts()
        assert counts["access_denied_total"] == 8
        assert counts["access_failed_logins_total"] == 1
        assert counts["audit_published_total"] == 4
        assert counts["audit_lost_total_deleted"] == 0


def test_a_restarted_publisher_repeats_nothing(audited: AuditedBroker, tmp_path: Path) -> None:
    audited.access.authenticator.of_bearer(b"one")
    with broker(tmp_path / "topics", audited.access) as audited.url:
        position = audited.files.position()
        assert audited.publisher.publish_next()
        # As if the process had ended before it noted the answer.
        audited.files.set_position(type(position)(position.producer, 1, 1))
        audited.access.authenticator.of_bearer(b"two")
        while audited.publisher.publish_next():
            pass
        assert audited.asked == 3, "each publish needs a token that counts then"
        with audited.client("admin") as client:
            (partition, *_) = client.offsets("audit").partitions
        assert partition.latest == 2
    audited.topic.close()
    with broker(tmp_path / "topics", audited.access) as audited.url:
        audited.files.set_position(type(position)(position.producer, 1, 2))
        assert audited.publisher.publish_next()
        with audited.client("admin") as client:
            (partition, *_) = client.offsets("audit").partitions
        assert partition.latest == 2


def test_the_example_of_a_supervisor_has_every_field(audited: AuditedBroker) -> None:
    spec = parse_supervisor_spec(example("audit-supervisor.json"))
    assert spec.data_schema.datasource == "audit"
    access = audited.access
    admin = access.authenticator.of_bearer(audited.tokens["admin"].encode())
    assert admin is not None
    trail = access.audit.trail("127.0.0.1:5000")
    access.require(admin, Action.MANAGE, Resource.parse("topic:clicks"), origin="x", trail=trail)
    for _ in range(REFUSALS_PER_SECOND_MAX * 3):
        access.authenticator.of_bearer(b"wrong", origin="x")
    access.audit.ended(trail, 200)
    for counted in ("messages", "requests"):
        used = access.audit.trail("127.0.0.1:5000")
        access.require(admin, Action.MANAGE, Resource.parse("topic:clicks"), trail=used)
        access.audit.ended_use(used, counted, 1)
    lines = audited.files.read(1, 1_000, 1 << 20).lines
    fields = {name for line in lines for name in json.loads(line)}
    dimensions = json.loads(example("audit-supervisor.json"))["spec"]["dataSchema"][
        "dimensionsSpec"
    ]
    named = {one if isinstance(one, str) else one["name"] for one in dimensions["dimensions"]}
    assert fields == named | {"time"}
