"""`penstock sub` and `penstock tail` against a real broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.broker.options import BrokerOptions
from penstock.core.errors import NotFound
from penstock.services.cli.entry import run
from tests.broker.broker_kit import RunningBroker


def test_sub_prints_and_finishes_and_tail_takes_from_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0, tcp_port=0)
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"one", b"two", b"three"])
        assert run(["sub", "t", "-c", "c", "--max", "2", "--broker-url", broker.url]) == 0
        assert capfd.readouterr().out == "one\ntwo\n"
        topic = broker.server.broker.topics.get("t")
        ended = threading.Event()

        def tail() -> None:
            run(["tail", "t", "--max", "1", "--broker-url", broker.url])
            ended.set()

        tailing = threading.Thread(target=tail)
        tailing.start()
        while not any(name.startswith("tail-") for name in tuple(topic.channels)):
            assert not ended.is_set()
        client.publish("t", [b"four"])
        tailing.join(30)
        assert capfd.readouterr().out == "four\n"
        assert run(["sub", "t", "-c", "c", "--max", "2", "--broker-url", broker.url]) == 0
        assert capfd.readouterr().out == "three\nfour\n"


def _is_finished(client: BrokerClient) -> bool:
    """Say whether all of the topic is done with in its channel."""
    try:
        return not client.peek("t", channel="c")["messages"]
    except NotFound:  # there is no channel yet
        return False


def test_sub_takes_as_many_as_it_was_told_and_no_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0, tcp_port=0)
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"one"])
        ended = threading.Event()

        def subscribe() -> None:
            run(["sub", "t", "-c", "c", "--max", "2", "--broker-url", broker.url])
            ended.set()

        subscribing = threading.Thread(target=subscribe)
        subscribing.start()
        while not _is_finished(client):
            assert not ended.is_set()
        client.publish("t", [b"two", b"three"])
        subscribing.join(30)
        assert capfd.readouterr().out == "one\ntwo\n"
        peeked = client.peek("t", channel="c")
        messages = peeked["messages"]
        assert isinstance(messages, list)
        # One that was taken and given back would have been delivered before.
        assert [message["attempts"] for message in messages] == [0]


def test_a_broker_without_the_protocol_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0)
    with RunningBroker(options) as broker:
        assert run(["sub", "t", "-c", "c", "--broker-url", broker.url]) == 2
        assert "does not speak NSQ's TCP protocol" in capfd.readouterr().err


def test_a_wrong_port_is_told_and_nothing_is_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0, tcp_port=0)
    with RunningBroker(options) as broker:
        port = broker.server.broker.tcp_port
        assert run(["sub", "t", "-c", "c", "--broker-url", f"http://127.0.0.1:{port}"]) == 3
        error = capfd.readouterr().err
        assert "check that it is not the port of NSQ's TCP protocol" in error
        assert "messages of" not in error
