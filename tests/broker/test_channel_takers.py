"""Whom a channel gives messages to, and that finding it costs the same however many wait."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.channel.delivery import Delivery, ReadyConsumers
from penstock.broker.channel.in_flight import InFlight


class Consumer:
    """A consumer that counts how often it is asked."""

    message_timeout_ms = 1_000
    sample_rate = 0

    def __init__(self, number: int, ready: int = 0) -> None:
        self.number = number
        self.ready = ready
        self.open = True
        self.asked = 0

    @property
    def writable(self) -> bool:
        self.asked += 1
        return self.open

    def deliver(self, batch: Delivery) -> None:
        raise AssertionError

    def evict(self) -> None:
        raise AssertionError


def test_of_ten_thousand_consumers_few_are_asked() -> None:
    in_flight = InFlight()
    takers = ReadyConsumers(in_flight)
    consumers = [Consumer(number, ready=1) for number in range(1, 10_001)]
    for consumer in consumers:
        takers.update(consumer)
    for consumer in consumers:
        consumer.asked = 0
    served = []
    for offset in range(1_000):
        taker, room = takers.first()[0]
        assert room == 1
        in_flight.put_range(offset, offset + 1, taker.number, 0, 1_000)
        takers.served(taker)
        served.append(taker.number)
    assert len(set(served)) == 1_000
    assert sum(consumer.asked for consumer in consumers) < 1_000 * 70


def test_the_consumer_with_most_room_comes_first_and_the_one_served_last_comes_last() -> None:
    in_flight = InFlight()
    takers = ReadyConsumers(in_flight)
    a, b, c = (Consumer(number, ready) for number, ready in ((1, 5), (2, 9), (3, 5)))
    for consumer in (a, b, c):
        takers.update(consumer)
    assert takers.first() == [(b, 9), (a, 5), (c, 5)]
    in_flight.put_range(0, 4, b.number, 0, 1_000)
    takers.served(b)
    takers.served(a)
    assert takers.first() == [(c, 5), (b, 5), (a, 5)]


class AgainstAll(RuleBasedStateMachine):
    """Whatever happens to consumers, nobody who may take is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight()
        self.takers = ReadyConsumers(self.in_flight)
        self.consumers = {number: Consumer(number) for number in range(1, 6)}
        self.next = 0

    @rule(number=st.integers(1, 5), ready=st.integers(0, 3))
    def say_ready(self, number: int, ready: int) -> None:
        self.consumers[number].ready = ready
        self.takers.update(self.consumers[number])

    @rule(number=st.integers(1, 5), open_=st.booleans())
    def clog(self, number: int, open_: bool) -> None:
        self.consumers[number].open = open_
        if open_:
            self.takers.update(self.consumers[number])

    @rule()
    def deliver(self) -> None:
        for consumer, room in self.takers.first()[:2]:
            self.in_flight.put_range(self.next, self.next + room, consumer.number, 0, 1_000)
            self.next += room
            self.takers.served(consumer)

    @rule(number=st.integers(1, 5))
    def finish(self, number: int) -> None:
        self.in_flight.take(number, np.arange(self.next))
        self.takers.update(self.consumers[number])

    @rule(number=st.integers(1, 5))
    def reconnect(self, number: int) -> None:
        self.takers.remove(self.consumers[number])
        self.in_flight.release(number)
        self.consumers[number] = Consumer(number)

    @invariant()
    def all_that_may_are_found(self) -> None:
        wanted = {
            number: room
            for number, consumer in self.consumers.items()
            if (room := consumer.ready - self.in_flight.of(number)) > 0 and consumer.open
        }
        assert {consumer.number: room for consumer, room in self.takers.first()} == wanted


TestAgainstAll = AgainstAll.TestCase
