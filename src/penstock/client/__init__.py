"""Producers and consumers for programs: NSQ's V2 protocol over TCP, on asyncio.

They work with Penstock and nsqd. Independent of the server's code.
"""

from penstock.client.consumer import Consumer, ConsumerStatistics, Handler
from penstock.client.errors import AnswerLost
from penstock.client.message import Message, finish_all
from penstock.client.options import (
    BackoffOptions,
    ConnectionOptions,
    ConsumerOptions,
    Environment,
    ProducerOptions,
)
from penstock.client.producer import Producer

__all__ = [
    "AnswerLost",
    "BackoffOptions",
    "ConnectionOptions",
    "Consumer",
    "ConsumerOptions",
    "ConsumerStatistics",
    "Environment",
    "Handler",
    "Message",
    "Producer",
    "ProducerOptions",
    "finish_all",
]
