"""Which right each HTTP route of the broker needs: one table.

Owns the table and how the resource of a request is found: by the same parameters that the route
reads, decoded by the same function (`Request.query`; the first value of a repeated parameter
counts). `BrokerHttpApp` refuses to build a route without a rule. Does not own the meaning of the
rights (`broker.security.rights`) nor who has them (`core.access`).

The texts of the rules are in Markdown, for the reference page.

A missing parameter, and a name that no topic can have, are refused by the route itself, with NSQ's
codes in NSQ's order, before it does anything.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.security import rights as r
from penstock.broker.topic_names import NAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.http.exchange import Request
    from penstock.broker.security.rights import Right


class Unruled(enum.Enum):
    """Rules that name no resource."""

    OPEN = "none, and no credential"
    LISTED = "any; the answer has the topics and channels that the principal may see"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class OnTopic:
    """The topic of the parameter ``topic``; and the channel, if the request names one.

    Attributes:
        right: The right on the topic.
        on_channel: The right on the channel of the parameter ``channel``, if there is one.
    """

    right: Right
    on_channel: Right | None = None

    def require(self, request: Request) -> None:
        """Return if the principal has the right. Raises as `ConnectionRights.require`."""
        topic = _named(request, "topic")
        if topic is None:
            return
        request.require(self.right, topic)
        if self.on_channel is not None:
            channel = _named(request, "channel")
            if channel is not None:
                request.require(self.on_channel, r.channel_name(topic, channel))

    def __str__(self) -> str:
        needed = f"`{self.right}:TOPIC`"
        if self.on_channel is not None:
            needed += f", and `{self.on_channel}:TOPIC/CHANNEL` with `channel`"
        return needed


@dataclass(frozen=True, slots=True)
class OnChannel:
    """A channel of the topic of the parameter ``topic``.

    Attributes:
        right: The right on the channel.
        parameter: The parameter that names the channel.
    """

    right: Right
    parameter: str = "channel"

    def require(self, request: Request) -> None:
        """Return if the principal has the right. Raises as `ConnectionRights.require`."""
        topic, channel = _named(request, "topic"), _named(request, self.parameter)
        if topic is not None and channel is not None:
            request.require(self.right, r.channel_name(topic, channel))

    def __str__(self) -> str:
        return f"`{self.right}:TOPIC/{self.parameter.upper()}`"


@dataclass(frozen=True, slots=True)
class OnSystem:
    """A part of the system.

    Attributes:
        right: The right on it.
        name: Its name.
    """

    right: Right
    name: str

    def require(self, request: Request) -> None:
        """Return if the principal has the right. Raises as `ConnectionRights.require`."""
        request.require(self.right, self.name)

    def __str__(self) -> str:
        return f"`{self.right}:{self.name}`"


Rule = Unruled | OnTopic | OnChannel | OnSystem

CONFIG: Final = "/config/<option>"
"""Key of all paths of options."""

ACCESS_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "/ping": {"GET": Unruled.OPEN},
    "/status/ready": {"GET": Unruled.OPEN},
    "/info": {"GET": OnSystem(r.READ_SYSTEM, r.STATUS)},
    "/stats": {"GET": Unruled.LISTED},
    "/stats/topics": {"GET": Unruled.LISTED},
    "/pub": {"POST": OnTopic(r.WRITE_TOPIC)},
    "/mpub": {"POST": OnTopic(r.WRITE_TOPIC)},
    "/topic/create": {"POST": OnTopic(r.WRITE_TOPIC)},
    "/topic/delete": {"POST": OnTopic(r.MANAGE_TOPIC)},
    "/topic/empty": {"POST": OnTopic(r.MANAGE_TOPIC)},
    "/topic/pause": {"POST": OnTopic(r.MANAGE_TOPIC)},
    "/topic/unpause": {"POST": OnTopic(r.MANAGE_TOPIC)},
    "/topic/configure": {"GET": OnTopic(r.READ_TOPIC), "POST": OnTopic(r.MANAGE_TOPIC)},
    "/topic/redrive": {"POST": OnTopic(r.MANAGE_TOPIC)},
    "/channel/create": {"POST": OnChannel(r.WRITE_CHANNEL)},
    "/channel/delete": {"POST": OnChannel(r.MANAGE_CHANNEL)},
    "/channel/empty": {"POST": OnChannel(r.MANAGE_CHANNEL)},
    "/channel/seek": {"POST": OnChannel(r.WRITE_CHANNEL)},
    "/channel/pause": {"POST": OnChannel(r.MANAGE_CHANNEL)},
    "/channel/unpause": {"POST": OnChannel(r.MANAGE_CHANNEL)},
    CONFIG: {
        "GET": OnSystem(r.READ_SYSTEM, r.CLUSTER),
        "PUT": OnSystem(r.MANAGE_SYSTEM, r.CLUSTER),
    },
    "/lookup": {"GET": Unruled.LISTED},
    "/topics": {"GET": Unruled.LISTED},
    "/channels": {"GET": Unruled.LISTED},
    "/nodes": {"GET": Unruled.LISTED},
    "/debug": {"GET": Unruled.LISTED},
    "/offsets": {"GET": OnTopic(r.READ_TOPIC)},
    "/peek": {"GET": OnTopic(r.READ_TOPIC, r.READ_CHANNEL)},
    "/message": {"GET": OnTopic(r.READ_TOPIC)},
    "/fetch": {"GET": OnTopic(r.READ_TOPIC)},
    "/cursor": {
        "POST": OnChannel(r.WRITE_CHANNEL, "name"),
        "DELETE": OnChannel(r.WRITE_CHANNEL, "name"),
    },
}
"""The rule of each path and method."""


def _named(request: Request, parameter: str) -> str | None:
    """Return the value of a parameter; None if the route refuses the request because of it."""
    name = request.query.get(parameter)
    return name if name and len(name) <= NAME_BYTES_MAX else None
