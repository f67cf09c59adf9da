"""Summary of a flow's status: closed groups as one entry each, for flows with many components.

The whole status of 10,000 processors has megabytes. A summary has the components of open groups
one by one, the sums of each closed group, and the queues between these nodes, as a page draws them.
Owns how long a status is used again. Does not own the status (`flow.controller.flow_status`).
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.flow.controller.controller import FlowController
from penstock.flow.controller.flow_status import ComponentStatus, ConnectionStatus, FlowStatus
from penstock.flow.scheduling.component_lifecycle import DesiredState
from penstock.services.api.flow.flow_json import Json, component_json, connection_json

NODES_MAX: Final = 300
"""Components and closed groups in one summary: more cannot be read in one picture."""

ALL_OPEN_MAX: Final = 60
"""Components up to which all groups are open, unless the request names the open ones."""

FOUND_MAX: Final = 50

REUSED_COST_S: Final = 0.05
"""A status that took less time is made again for each summary."""

REUSED_TIMES: Final = 20
"""How many times as long as it took to make a status is used again: one core spends at most five
percent on it."""

STUCK_MAX: Final = 20
_OPEN_MAX: Final = 1_000
_KEYS: Final = re.compile(r"([0-9a-f]{1,8}\.)*\.?")


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A request for a summary.

    Attributes:
        open_groups: Paths of the open groups; None: all of a small flow, none of a large one.
        open_keys: The same as `group_key` of each path; None: `open_groups` counts.
        nodes_max: Maximum number of components and groups.
        search: Text of names to list in `found`; empty: none.
        part: Id of a component or connection to show, also in a closed group; empty: none.
    """

    open_groups: frozenset[str] | None = None
    open_keys: frozenset[str] | None = None
    nodes_max: int = NODES_MAX
    search: str = ""
    part: str = ""


def parse_open_groups(text: str | None) -> frozenset[str] | None:
    """Return the paths in a JSON list; None if there is none.

    Raises:
        InvalidRequest: The text is not a list of up to 1,000 paths.
    """
    if text is None:
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:  # narrow: translates
        found = None
    if (
        not isinstance(found, list)
        or len(found) > _OPEN_MAX
        or not all(isinstance(one, str) for one in found)
    ):
        raise InvalidRequest(
            f"{quoted(text)} is not a JSON list of up to {_OPEN_MAX} paths of groups, such as"
            ' ["Ingest", "Ingest/Clean"]',
            place="open",
        )
    return frozenset(found)


def group_key(path: str) -> str:
    """Return the name of a group in short requests: the CRC-32 of its path, in hexadecimal digits.

    Two groups with the same key open together, which is harmless and has a chance of one to a
    million in a flow of a hundred groups.
    """
    return f"{zlib.crc32(path.encode()):x}"


def parse_open_keys(text: str | None) -> frozenset[str] | None:
    """Return the keys in a text with a full stop after each; None if there is no text.

    Raises:
        InvalidRequest: The text has something else, or more than 1,000 keys.
    """
    if text is None:
        return None
    if _KEYS.fullmatch(text) is None or text.count(".") > _OPEN_MAX:
        raise InvalidRequest(
            f"{quoted(text)} does not have up to {_OPEN_MAX} keys of groups with a full stop after"
            " each, such as 4006a4a.cb238d2a.: a key is the CRC-32 of a path in UTF-8, in"
            " hexadecimal digits",
            place="openKeys",
        )
    return frozenset(text.split(".")) - {""}


class RecentStatus:
    """The last status of a large flow, for summaries that follow each other, as of opened groups.

    Any thread; the kept status is replaced in one step. A status that a command has overtaken while
    it was made is not used again, and neither is one of a former revision.

    Args:
        clock: Measures the cost and the age.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: _KeptStatus | None = None
        self._command = object()  # the last one that has changed something

    def of(self, flow: FlowController) -> FlowStatus:
        """Return a status of the flow that may be a few seconds old if it is costly."""
        began_s, kept, command = self._clock.monotonic_s(), self._kept, self._command
        if (
            kept is not None
            and kept.command is command
            and kept.status.revision == flow.applied.revision
            and kept.cost_s >= REUSED_COST_S
            and began_s - kept.made_s <= REUSED_TIMES * kept.cost_s
        ):
            return kept.status
        status = flow.status()
        ended_s = self._clock.monotonic_s()
        self._kept = _KeptStatus(status, ended_s, ended_s - began_s, command)
        return status

    def forget(self) -> None:
        """Do not use the kept status again, because a command has changed something."""
        self._command = object()
        self._kept = None


@dataclass(frozen=True, slots=True)
class _KeptStatus:
    status: FlowStatus
    made_s: float
    cost_s: float
    command: object


@dataclass(slots=True)
class _ClosedGroup:
    """Sums of the components of a closed group, and of the groups in it."""

    path: str
    states: Counter[str] = field(default_factory=Counter)
    components: int = 0
    problems: int = 0
    failures: int = 0
    active_tasks: int = 0
    in_count: int = 0
    out_count: int = 0
    created_count: int = 0
    queued: int = 0
    queued_bytes: int = 0
    full: int = 0
    causes: int = 0

    def add(self, status: ComponentStatus) -> None:
        """Add a component."""
        scheduling, sessions = status.scheduling, status.sessions
        self.components += 1
        self.states[scheduling.state.value] += 1
        self.problems += bool(status.problems)
        self.failures += scheduling.failures
        self.active_tasks += scheduling.active_tasks
        self.in_count += sessions.in_count
        self.out_count += sessions.out_count
        self.created_count += sessions.created_count

    def add_queue(self, status: ConnectionStatus) -> None:
        """Add a queue between two components of the group."""
        self.queued += status.size.count
        self.queued_bytes += status.size.size_bytes
        self.full += status.is_full

    def to_json(self) -> Json:
        """Return the JSON of the group."""
        return {
            "id": _node_of_group(self.path),
            "path": self.path,
            "components": self.components,
            "states": dict(self.states),
            "problems": self.problems,
            "failures": self.failures,
            "activeTasks": self.active_tasks,
            "in": self.in_count,
            "out": self.out_count,
            "created": self.created_count,
            "queued": self.queued,
            "queuedBytes": self.queued_bytes,
            "full": self.full,
            "causes": self.causes,
        }


@dataclass(slots=True)
class _Edge:
    """The queues between two nodes."""

    first: ConnectionStatus
    connections: int = 0
    queued: int = 0
    queued_bytes: int = 0
    swapped: int = 0
    penalized: int = 0
    full: int = 0

    def add(self, status: ConnectionStatus) -> None:
        """Add a queue; a full one is the one to choose."""
        if status.is_full and not self.full:
            self.first = status
        self.connections += 1
        self.queued += status.size.count
        self.queued_bytes += status.size.size_bytes
        self.swapped += status.size.swapped_count
        self.penalized += status.size.penalized_count
        self.full += status.is_full


def causes_of(connections: Sequence[ConnectionStatus]) -> set[str]:
    """Return the components that hold others up: the ends of chains of full connections.

    A full connection stops its source. Its destination is the cause, unless a full connection stops
    that in turn.
    """
    full = [one for one in connections if one.is_full]
    stopped = {one.source for one in full}
    return {one.destination for one in full if one.destination not in stopped}


def groups_of(name: str) -> Iterator[str]:
    """Yield the paths of the groups around a component, the outermost first."""
    end = name.find("/")
    while end >= 0:
        yield name[:end]
        end = name.find("/", end + 1)


def summary_json(status: FlowStatus, wanted: SummaryRequest) -> Json:
    """Return the parts of a summary that replace the lists of components and connections."""
    # By group, because thousands of components share a few groups.
    around = {one.name.rpartition("/")[0]: "" for one in status.components}
    paths = dict.fromkeys(path for group in around for path in groups_of(f"{group}/") if group)
    opened = wanted.open_groups
    if wanted.open_keys is not None:
        opened = frozenset(path for path in paths if group_key(path) in wanted.open_keys)
    if opened is None:
        opened = frozenset(paths if len(status.components) <= ALL_OPEN_MAX else ())
    for group in around:
        parents = groups_of(f"{group}/") if group else ()
        around[group] = next((path for path in parents if path not in opened), "")
    causes = causes_of(status.connections)
    drawn: list[ComponentStatus] = []
    groups: dict[str, _ClosedGroup] = {}
    node_of: dict[str, str] = {}
    omitted: set[str] = set()
    for one in status.components:
        closed = around[one.name.rpartition("/")[0]]
        node = _node_of_group(closed) if closed else one.id
        is_known = closed in groups
        if not is_known and len(drawn) + len(groups) >= wanted.nodes_max:
            omitted.add(node)
            continue
        node_of[one.id] = node
        if not closed:
            drawn.append(one)
            continue
        if not is_known:
            groups[closed] = _ClosedGroup(closed)
        sums = groups[closed]
        sums.add(one)
        sums.causes += one.id in causes
    edges = _edges(status.connections, node_of, groups)
    return {
        "components": [component_json(one) for one in drawn],
        "groups": [one.to_json() for one in groups.values()],
        "edges": [
            {
                "from": source,
                "to": destination,
                "connection": edge.first.id,
                "name": edge.first.name,
                "connections": edge.connections,
                "queued": edge.queued,
                "queuedBytes": edge.queued_bytes,
                "swapped": edge.swapped,
                "penalized": edge.penalized,
                "full": edge.full,
            }
            for (source, destination), edge in edges.items()
        ],
        "openGroups": [path for path in paths if path in opened][:NODES_MAX],
        "omitted": len(omitted),
        "causes": [one.id for one in drawn if one.id in causes],
        "held": list(status.held)[:FOUND_MAX],
        "totals": _totals(status, len(paths), len(causes)),
        "stuck": _stuck(status.components),
        "holdups": _holdups(status, causes),
        "found": _found(status.components, wanted.search),
        "part": _part(status, wanted.part, causes),
    }


def _node_of_group(path: str) -> str:
    # Not an id of a component: those are UUIDs.
    return f"group {path}"


def _edges(
    connections: Sequence[ConnectionStatus],
    node_of: dict[str, str],
    groups: dict[str, _ClosedGroup],
) -> dict[tuple[str, str], _Edge]:
    """Return the queues between nodes; add those inside of a closed group to its sums."""
    by_node = {_node_of_group(path): group for path, group in groups.items()}
    edges: dict[tuple[str, str], _Edge] = {}
    for one in connections:
        source, destination = node_of.get(one.source), node_of.get(one.destination)
        if source is None or destination is None:
            continue
        if source == destination and source in by_node:
            by_node[source].add_queue(one)
            continue
        edges.setdefault((source, destination), _Edge(one)).add(one)
    return edges


def _totals(status: FlowStatus, groups: int, causes: int) -> Json:
    sizes = [one.size for one in status.connections]
    return {
        "components": len(status.components),
        "connections": len(status.connections),
        "groups": groups,
        "states": dict(Counter(one.scheduling.state.value for one in status.components)),
        "queued": sum([one.count for one in sizes]),
        "queuedBytes": sum([one.size_bytes for one in sizes]),
        "penalized": sum([one.penalized_count for one in sizes]),
        "full": sum([one.is_full for one in status.connections]),
        "causes": causes,
        "in": sum(one.sessions.in_count for one in status.components),
        "created": sum(one.sessions.created_count for one in status.components),
    }


def _found(components: Sequence[ComponentStatus], search: str) -> list[Json]:
    text = search.lower()
    named = (one for one in components if text and text in one.name.lower())
    return [
        {"id": one.id, "name": one.name, "type": one.type, "state": one.scheduling.state.value}
        for one, _ in zip(named, range(FOUND_MAX), strict=False)
    ]


def _stuck(components: Sequence[ComponentStatus]) -> list[Json]:
    """Return components that should run and cannot, such as those whose owner lost a right."""
    wanted = (
        one for one in components if one.problems and one.scheduling.desired is DesiredState.RUNNING
    )
    return [
        {"id": one.id, "name": one.name, "type": one.type, "problem": one.problems[0]}
        for one, _ in zip(wanted, range(STUCK_MAX), strict=False)
    ]


def _holdups(status: FlowStatus, causes: Collection[str]) -> list[Json]:
    """Return the components that hold others up, each with the full queues before it."""
    queues: dict[str, list[str]] = {}
    for one in status.connections:
        if one.is_full and one.destination in causes:
            queues.setdefault(one.destination, []).append(one.name)
    held = (one for one in status.components if one.id in queues)
    return [
        {"id": one.id, "name": one.name, "full": len(queues[one.id]), "queue": queues[one.id][0]}
        for one, _ in zip(held, range(STUCK_MAX), strict=False)
    ]


def _part(status: FlowStatus, part: str, causes: Collection[str]) -> Json | None:
    """Return a component or connection of this id; None: there is none."""
    if not part:
        return None
    for component in status.components:
        if component.id == part:
            return {"component": component_json(component), "isCause": part in causes}
    for connection in status.connections:
        if connection.id == part:
            names = {one.id: one.name for one in status.components}
            return {
                "connection": connection_json(connection),
                "source": names.get(connection.source, ""),
                "destination": names.get(connection.destination, ""),
            }
    return None
