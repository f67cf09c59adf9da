"""The rights that the broker's routes and commands need, and what a connection was allowed.

Owns which right stands for which kind of use of a topic or channel:

| use | right |
|---|---|
| publish, and create the topic by it | `write topic:TOPIC` |
| read messages without a channel: peek, fetch, offsets | `read topic:TOPIC` |
| consume from a channel, and create it by it | `read channel:TOPIC/CHANNEL` |
| create a channel, move it, set or delete a cursor of this name | `write channel:TOPIC/CHANNEL` |
| delete, empty or pause a channel | `manage channel:TOPIC/CHANNEL` |
| delete, empty, pause or configure a topic | `manage topic:TOPIC` |
| see all topics and clients in statistics and lists | `read system:metrics` |
| change options of the running broker | `manage system:cluster` |

Does not own who has a right (`core.access`).

Also owns the ends of uses in the audit: a request that changes something has one record each, and
reads and publishes have one for the connection, with their number.

Invariant: a remembered answer counts for one principal and one generation of the access control,
and never after the principal's expiry. Used on the broker's event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.access.audit import is_frequent
from penstock.core.access.rules import Action, Resource, ResourceKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.access.access_control import AccessControl
    from penstock.core.access.audit import RequestTrail
    from penstock.core.access.principal import Principal
    from penstock.core.access.quota_use import PublishQuota
    from penstock.core.clock import Clock

_REMEMBERED_MAX: Final = 1_024
_USES_MAX: Final = 256
"""Uses of one connection whose end is recorded; they take about 1 KB each."""
_BROKEN_OFF: Final = 0
"""Status of a request that has no answer, in the audit."""


class Right:
    """An action on one kind of resource. Compared by identity, which takes the least time.

    Args:
        action: The action.
        kind: The kind of resource.
    """

    __slots__ = ("action", "kind")

    def __init__(self, action: Action, kind: ResourceKind) -> None:
        self.action = action
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.action} {self.kind}"


READ_TOPIC: Final = Right(Action.READ, ResourceKind.TOPIC)
WRITE_TOPIC: Final = Right(Action.WRITE, ResourceKind.TOPIC)
MANAGE_TOPIC: Final = Right(Action.MANAGE, ResourceKind.TOPIC)
READ_CHANNEL: Final = Right(Action.READ, ResourceKind.CHANNEL)
WRITE_CHANNEL: Final = Right(Action.WRITE, ResourceKind.CHANNEL)
MANAGE_CHANNEL: Final = Right(Action.MANAGE, ResourceKind.CHANNEL)
READ_SYSTEM: Final = Right(Action.READ, ResourceKind.SYSTEM)
MANAGE_SYSTEM: Final = Right(Action.MANAGE, ResourceKind.SYSTEM)

STATUS: Final = "status"
METRICS: Final = "metrics"
CLUSTER: Final = "cluster"


def channel_name(topic: str, channel: str) -> str:
    """Return the name of a channel as a resource."""
    return f"{topic}/{channel}"


class ConnectionRights:
    """The rights that the client of one connection was found to have.

    Args:
        access: The access control.
        clock: For the expiry of credentials.
        origin: Address of the client, for the audit.
        messages_of: Returns how many messages a use published or received, for the audit; None:
            requests are counted.

    Attributes:
        in_progress: Records of the audit of the current request, whose end is to be recorded.
        publish_quota: The quota of the publishes of the principal in the last call of `require`;
            None: no limit.
    """

    __slots__ = (
        "_access",
        "_allowed",
        "_clock",
        "_expires_ms",
        "_generation",
        "_messages_of",
        "_principal",
        "_uses",
        "in_progress",
        "origin",
        "publish_quota",
    )

    def __init__(
        self,
        access: AccessControl,
        clock: Clock,
        origin: str = "",
        messages_of: Callable[[tuple[object, str]], int] | None = None,
    ) -> None:
        self._access = access
        self._messages_of = messages_of
        self._clock = clock
        self.origin = origin
        self.publish_quota: PublishQuota | None = None
        self._principal: Principal | None = None
        self._expires_ms: int | None = None
        self._generation = -1
        self._allowed: set[tuple[object, str]] = set()
        # Records of the audit: of the request that is carried out, and of uses of the connection.
        self.in_progress: list[RequestTrail] = []
        self._uses: dict[tuple[object, str], RequestTrail] = {}

    def remembers(self, use: tuple[object, str]) -> bool:
        """Return whether a use was allowed, and still is.

        Every command asks it, so it takes a fraction of a microsecond.
        """
        return (
            use in self._allowed
            and self._generation == self._access.generation
            and (self._expires_ms is None or self._clock.now_ms() < self._expires_ms)
        )

    def forget(self) -> None:
        """Forget what was allowed, because the client has another principal now."""
        self._allowed.clear()
        self._principal = None
        self.publish_quota = None

    def require(
        self,
        principal: Principal,
        right: Right,
        name: str,
        use: tuple[object, str] | None = None,
    ) -> None:
        """Return if a principal has a right on the resource of this name.

        Args:
            principal: The principal.
            right: The right.
            name: The name of the resource.
            use: The key for `remembers`; None: the right and the name.

        Raises:
            Unauthenticated: The principal is `NOBODY`.
            Forbidden: The principal does not have the right, or no longer.
        """
        use = use or (right, name)
        generation = self._access.generation
        if principal is not self._principal or generation != self._generation:
            self._allowed.clear()
            if self._uses and (self._principal is None or self._principal.id != principal.id):
                self.close()
            self._principal, self._generation = principal, generation
            self._expires_ms = principal.expires_ms
            self.publish_quota = self._access.quotas.publish_quota(principal)
        elif self.remembers(use):
            if self._uses and use in self._uses:
                self._uses[use].count += 1
            return
        resource = Resource(right.kind, name)
        trail = self._uses.get(use) or self._access.audit.trail(self.origin)
        self._access.require(principal, right.action, resource, origin=self.origin, trail=trail)
        if trail.allowed and not is_frequent(right.action, right.kind):
            self.in_progress.append(trail)
            return  # each one is recorded
        if trail.allowed and len(self._uses) < _USES_MAX:
            self._uses[use] = trail
        if len(self._allowed) >= _REMEMBERED_MAX:
            self._allowed.clear()
        self._allowed.add(use)

    def finish(self, status: int) -> None:
        """Record the end of the current request."""
        for trail in self.in_progress:
            self._access.audit.ended(trail, status)
        self.in_progress.clear()

    def close(self) -> None:
        """Record the ends of the uses of the connection."""
        self.finish(_BROKEN_OFF)
        uses, self._uses = self._uses, {}
        for use, trail in uses.items():
            if self._messages_of is None:
                self._access.audit.ended_use(trail, "requests", trail.count)
            else:
                self._access.audit.ended_use(trail, "messages", self._messages_of(use))

    def allows(self, principal: Principal, right: Right, name: str) -> bool:
        """Return whether a principal has a right on the resource of this name. Not audited."""
        return self._access.decide(principal, right.action, Resource(right.kind, name)).allowed
