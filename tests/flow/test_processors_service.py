"""Processors of topics find the broker and the overlord of the service that they run in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.core.errors import Unavailable
from penstock.flow.processors.topics.consume_topic import ConsumeTopic
from penstock.flow.processors.topics.service_addresses import SERVICE, ServiceAddresses
from penstock.testing.flow import ProcessorRunner

OWN = ServiceAddresses(lambda: "http://own:1", lambda: "own:2", "http://own:3", lambda: "secret")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    SERVICE.set(ServiceAddresses())


def test_without_a_word_it_is_the_default_ports() -> None:
    assert SERVICE.addresses().broker("", "") == ("http://127.0.0.1:4151", "")


def test_the_token_of_the_service_goes_to_the_service_alone() -> None:
    SERVICE.set(OWN)
    own = SERVICE.addresses()
    assert own.broker("", "") == ("http://own:1", "secret")
    assert own.broker("http://other:4151", "") == ("http://other:4151", "")
    assert own.broker("http://other:4151", "theirs") == ("http://other:4151", "theirs")
    assert own.overlord_of("", "") == ("http://own:3", "secret")
    assert own.overlord_of("http://other:8888", "") == ("http://other:8888", "")


def test_a_consumer_needs_an_address_only_elsewhere() -> None:
    assert not ConsumeTopic.problems({"topic": "t", "channel": "c"})
    assert ConsumeTopic.problems({"topic": "t", "channel": "c", "addresses": ""})


def test_a_consumer_whose_broker_is_not_found_yet_leaves_no_loop() -> None:
    asked: list[threading.Thread] = []

    def find() -> str:
        asked.append(threading.current_thread())
        raise Unavailable("no broker announces itself yet")

    SERVICE.set(replace(OWN, broker_tcp=find))
    before = set(threading.enumerate())
    with (
        pytest.raises(Unavailable, match="no broker"),
        ProcessorRunner(ConsumeTopic, {"topic": "t", "channel": "c"}),
    ):
        pytest.fail("it began without a broker")
    # Finding it waits for a database, which a loop must not do.
    assert asked == [threading.current_thread()]
    assert set(threading.enumerate()) <= before  # those of tests before may have ended
