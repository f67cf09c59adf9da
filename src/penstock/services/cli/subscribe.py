"""`penstock sub` and `penstock tail`: messages of a channel to standard output.

A message is finished after it was written, so messages lost by a broken pipe are delivered again.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import urlsplit

import typer

from penstock.core.errors import InvalidRequest, PenstockError, counted
from penstock.core.tls_trust import TRUST
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import warn, write_bodies
from penstock.services.json_client import JsonClient

Topic = Annotated[str, typer.Argument(help="Name of the topic.")]
Max = Annotated[
    int, typer.Option("--max", min=0, help="Stop after this many messages; 0: no limit.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("sub")(subscribe)
    app.command("tail")(tail)


def subscribe(
    topic: Topic,
    channel: Annotated[str, typer.Option("--channel", "-c", help="Name of the channel.")],
    limit: Max = 0,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", min=1, max=2_500, help="Maximum number of messages in flight."),
    ] = 200,
) -> None:
    """Print the messages of a channel, one per line, and finish them.

    Topic and channel are created if missing, and are kept. The first channel of a topic gets all
    its messages, a later one only new messages.
    """
    _print(topic, channel, limit, in_flight)


def tail(topic: Topic, limit: Max = 0) -> None:
    """Print the messages of a topic as they arrive, one per line.

    Other consumers still get them: a channel of its own is used and deleted at the end.
    """
    _print(topic, f"tail-{os.getpid()}#ephemeral", limit, 200)


def _print(topic: str, channel: str, limit: int, in_flight: int) -> None:
    with _counted(topic) as written:
        asyncio.run(_consume(topic, channel, limit, in_flight, written))


@contextmanager
def _counted(topic: str) -> Iterator[list[int]]:
    written = [0]
    failed = False
    try:
        yield written
    except PenstockError:  # narrow: only chooses the message
        failed = True
        raise
    finally:
        if written[0] or not failed:
            warn(f"{counted(written[0], 'message')} of {topic}")


async def _consume(
    topic: str, channel: str, limit: int, in_flight: int, written: list[int]
) -> None:
    # Imported here, because no other command needs it.
    from penstock.client import (  # noqa: PLC0415
        ConnectionOptions,
        Consumer,
        ConsumerOptions,
        finish_all,
    )

    url = CLI.found_broker_url()
    token = CLI.token_for(url)
    address, tls = _address(url, token)
    options = ConsumerOptions(connection=ConnectionOptions(auth_secret=token, tls=tls))
    wanted = min(in_flight, limit) if limit else in_flight
    async with Consumer(
        topic, channel, addresses=[address], max_in_flight=wanted, options=options
    ) as consumer:
        while not limit or written[0] < limit:
            left = limit - written[0] if limit else in_flight
            messages = await consumer.take(left)
            if not messages:
                return
            write_bodies(message.body for message in messages)
            written[0] += len(messages)
            if limit:
                # Before the answers make room: later messages would have to be returned.
                consumer.set_max_in_flight(min(in_flight, limit - written[0]))
            finish_all(messages)


def _address(url: str, token: str | None) -> tuple[str, ssl.SSLContext | None]:
    """Return the address of NSQ's TCP protocol of the broker with an HTTP address, and its TLS."""
    info = JsonClient(url, token=token).get("/info")
    port = info.get("tcp_port") if isinstance(info, dict) else None
    if not isinstance(port, int) or port < 0:
        raise InvalidRequest(f"the broker at {url} does not speak NSQ's TCP protocol")
    parts = urlsplit(url)
    tls = TRUST.context() if parts.scheme == "https" else None
    return f"[{parts.hostname}]:{port}", tls  # in brackets, because it may be IPv6
