"""What a channel may be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """What a channel may be told.

    Attributes:
        max_attempts: Deliveries of a message before it is given up; 0: no end.
        dead_letter_topic: Where messages go that were given up; None: they are dropped, counted.
        message_ttl_ms: Age at which a message is not delivered any more; 0: never.
        requeue_on_disconnect: A consumer's messages are due again as soon as it is gone, not only
            when their time is over.
        max_backlog: Messages that an ephemeral channel is behind at most; the newest beyond go.
    """

    max_attempts: int = 0
    dead_letter_topic: str | None = None
    message_ttl_ms: int = 0
    requeue_on_disconnect: bool = True
    max_backlog: int = 10_000
