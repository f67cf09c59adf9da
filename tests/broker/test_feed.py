"""Where a channel gets its messages: what was appended while there was none is read from disk."""

from __future__ import annotations

from dataclasses import replace

from broker_harness import RunningBroker
from v2 import V2

from penstock.broker.options import BrokerOptions


def test_a_channel_after_a_pause_without_any_reads_what_came_meanwhile(
    options: BrokerOptions,
) -> None:
    with RunningBroker(replace(options, tcp_port=0)) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as producer, V2(port) as first, V2(port) as second:
            first.subscribe("t", "a")
            producer.publish("t", b"heard")
            first.finish(first.message().id)
            first.send(b"NOP\n")
            assert broker.ask("POST", "/channel/delete?topic=t&channel=a").status == 200
            producer.publish("t", b"unheard")
            second.subscribe("t", "b", ready=10)
            assert second.message().body == b"unheard"
