"""Options of a channel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """Options of a channel.

    Attributes:
        max_attempts: Maximum deliveries of a message before it is given up; 0 means unlimited.
        dead_letter_topic: Topic that receives such messages; None: they are dropped and counted.
        message_ttl_ms: Age at which a message expires; 0: never.
        requeue_on_disconnect: Requeue a consumer's messages as soon as it disconnects, instead of
            after their time-out.
        max_backlog: Maximum backlog of an ephemeral channel; the newest messages beyond are
            dropped.
    """

    max_attempts: int = 0
    dead_letter_topic: str | None = None
    message_ttl_ms: int = 0
    requeue_on_disconnect: bool = True
    max_backlog: int = 10_000
