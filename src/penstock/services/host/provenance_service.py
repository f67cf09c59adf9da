"""Provenance in the process of the flow: look-ups, replays, and the events on their way to SQL.

Owns the order of start and stop, and the topic and the datasource of the events: created and
supervised without an operator, once. An operator who terminates the supervisor keeps it so. Does
not own the events (`flow.provenance`), the publisher, nor the process that reads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from penstock.core.errors import Conflict, NotFound, PenstockError
from penstock.flow.provenance.provenance_events import EVENT_COLUMNS
from penstock.services.host.audit_publisher import AuditPublisher
from penstock.services.host.provenance_records import ProvenanceRecords
from penstock.services.json_client import JsonClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.metrics import MetricRegistry
    from penstock.flow.controller.controller import FlowController
    from penstock.flow.provenance.provenance_reader import Lineage
    from penstock.flow.provenance.provenance_selection import (
        ChosenFlowFile,
        EventFilter,
        FlowFileVersion,
        SelectionStep,
    )
    from penstock.flow.provenance.replay import Replayed
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.repository.commit_spool import CommitSpool
    from penstock.services.host.audit_publisher import AuditTopic, Lines
    from penstock.services.host.provenance_process import ProvenanceProcess, ProvenanceQueries

_INDEXER: Final = "/druid/indexer/v1/supervisor"
_RULES: Final = "/druid/coordinator/v1/rules"
_AGAIN_S: Final = 30.0
_HOUR_MS: Final = 3_600_000
_DAYS_AS_HOURS: Final = 7 * 24
_HTTP_TIMEOUT_S: Final = 20.0
_EXAMPLES_MAX: Final = 5  # for each outcome

REPLAYED: Final = "replayed"
ALREADY: Final = "already"
QUEUED: Final = "queued"
CONTENT: Final = "content"
CONNECTION: Final = "connection"
FULL: Final = "full"
NEVER_QUEUED: Final = "never_queued"
UNCLEAR: Final = "unclear"
OBSTACLES: Final = {
    ALREADY: "it was replayed before",
    QUEUED: "it is still in a queue",
    CONTENT: (
        "its content is damaged or no longer kept: content is kept for --provenance-retention, up"
        " to --provenance-retention-size"
    ),
    CONNECTION: "its connection is no longer in the flow",
    FULL: "its queue is full: replay it later",
    NEVER_QUEUED: "no commit that is still kept put it into a queue",
    UNCLEAR: "it has too many events to see whether it matches: replay it alone",
}
"""Outcomes of FlowFiles that are not replayed, with their reasons."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProvenanceOptions:
    """Where events of provenance go, and how long they are kept.

    Attributes:
        topic: Topic of the events, and name of the datasource.
        retention_ms: How long commits, content, messages and rows are kept.
        retention_bytes: Most bytes of commits, of content, and of messages.
    """

    topic: str
    retention_ms: int
    retention_bytes: int

    @property
    def retention_hours(self) -> int:
        """Return the retention in hours, rounded up."""
        return max(1, -(-self.retention_ms // _HOUR_MS))


def provenance_supervisor(options: ProvenanceOptions) -> dict[str, object]:
    """Return the spec of the supervisor that indexes the events."""
    is_short = options.retention_hours < _DAYS_AS_HOURS
    dimensions = [
        {"type": "long" if kind == "long" else "string", "name": name}
        for name, kind in EVENT_COLUMNS.items()
    ]
    return {
        "type": "penstock",
        "spec": {
            "dataSchema": {
                "dataSource": options.topic,
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": {"dimensions": dimensions},
                "granularitySpec": {
                    "segmentGranularity": "HOUR" if is_short else "DAY",
                    "queryGranularity": "NONE",
                    "rollup": False,
                },
            },
            "ioConfig": {
                "topic": options.topic,
                "taskCount": 1,
                "taskDuration": "PT1H",
                "useEarliestOffset": True,
            },
            "tuningConfig": {"type": "penstock"},
        },
    }


class ProvenanceDatasource:
    """The topic's retention, the supervisor and the rules, through the HTTP APIs. One thread.

    Args:
        options: Names and retention.
        broker: Returns a client of the broker's HTTP API.
        router: Returns a client of the router's API.
    """

    def __init__(
        self,
        options: ProvenanceOptions,
        broker: Callable[[], JsonClient],
        router: Callable[[], JsonClient],
    ) -> None:
        self._options = options
        self._broker = broker
        self._router = router

    def ensure(self) -> None:
        """Set the retention of the topic; create the supervisor and its rules, if it never existed.

        Raises:
            PenstockError: A server refuses, or does not answer.
        """
        options, name = self._options, quote(self._options.topic, safe="")
        query = {
            "topic": options.topic,
            "retention_ms": options.retention_ms,
            "retention_bytes": options.retention_bytes,
        }
        self._broker().post(f"/topic/configure?{urlencode(query)}")
        router = self._router()
        try:
            router.get(f"{_INDEXER}/{name}/history")
        except NotFound:  # narrow: it never existed
            if not router.get(f"{_RULES}/{name}"):
                period = f"PT{options.retention_hours}H"
                router.post(f"{_RULES}/{name}", [{"type": "dropBeforeByPeriod", "period": period}])
            router.post(_INDEXER, provenance_supervisor(options))
            _logger.info("created the supervisor of datasource %s", options.topic)


class SupervisedTopic:
    """The topic, which gets its datasource after the first publish. One thread.

    Args:
        topic: The topic.
        datasource: Its datasource.
        clock: For the time between attempts.
    """

    def __init__(self, topic: AuditTopic, datasource: ProvenanceDatasource, clock: Clock) -> None:
        self._topic = topic
        self._datasource = datasource
        self._clock = clock
        self._is_ensured = False
        self._next_s = 0.0

    def publish(self, lines: Lines, producer: tuple[str, int]) -> None:
        """Append events. Raises as `AuditTopic.publish`."""
        self._topic.publish(lines, producer)
        if self._is_ensured or self._clock.monotonic_s() < self._next_s:
            return
        try:
            self._datasource.ensure()
        except PenstockError as error:
            self._next_s = self._clock.monotonic_s() + _AGAIN_S
            _logger.warning("the datasource of provenance is not supervised yet: %s", error)
        else:
            self._is_ensured = True

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._topic.close()


class ProvenanceService:
    """Provenance of one flow.

    Args:
        spool: Commits of the flow.
        process: Reads them.
        topic: The topic of the events.
        clock: Time.
        registry: Metrics of the process.

    Attributes:
        lookups: The look-ups and replays of the flow.
    """

    def __init__(
        self,
        spool: CommitSpool,
        process: ProvenanceProcess,
        topic: AuditTopic,
        clock: Clock,
        registry: MetricRegistry,
    ) -> None:
        self._process = process
        self.lookups = ProvenanceLookups(process)
        self._publisher = AuditPublisher(
            ProvenanceRecords(spool, process, registry), topic, clock, name="provenance"
        )

    def start(self) -> None:
        """Begin to publish."""
        self._publisher.start()

    def stop(self) -> None:
        """Stop; events that remain are published after the next start."""
        self._process.close()
        self._publisher.stop()


@dataclass(slots=True)
class ReplayStep:
    """Outcome of one step of a replay of many FlowFiles.

    Attributes:
        outcomes: Number of FlowFiles for each outcome.
        examples: FlowFiles that are not replayed, each with its outcome and the reason.
        following: Number of the event at which the next step begins; None: this was the last one.
        until: Number of the last commit of the selection.
        time_ms: Time of the last event that was read; 0: there was none.
    """

    outcomes: Counter[str]
    examples: list[tuple[int, str, str]]
    following: int | None
    until: int
    time_ms: int


class ProvenanceLookups:
    """Look-ups and replays. Any thread.

    The mutex lets one replay run at a time. Otherwise a FlowFile could be replayed alone after a
    replay of many has chosen it, and would be copied twice.

    Args:
        queries: Reads the record of provenance.
    """

    def __init__(self, queries: ProvenanceQueries) -> None:
        self._queries = queries
        self._mutex = threading.Lock()

    def of_flowfile(self, flowfile: int, depth: int) -> Lineage:
        """Return the lineage of a FlowFile, including events of the newest durable commits.

        Args:
            flowfile: Its id.
            depth: Most steps to a parent or a child.

        Raises:
            Unavailable: The record cannot be read now.
        """
        return self._queries.lineage([flowfile], depth)

    def of_message(self, topic: str, partition: int, offset: int, depth: int) -> Lineage:
        """Return the lineage of the FlowFiles that were received as a message, or sent as it.

        Raises:
            Unavailable: The record cannot be read now.
        """
        flowfiles = self._queries.flowfiles_of(topic, partition, offset)
        return self._queries.lineage(flowfiles, depth)

    def version(self, flowfile: int, event: str = "") -> FlowFileVersion:
        """Return a FlowFile as it was in a queue.

        Raises:
            NotFound: No commit that is still kept put it into a queue.
            Unavailable: The record cannot be read now.
        """
        found = self._queries.version(flowfile, event)
        if found is None:
            what = f"FlowFile {flowfile}" if not event else f"event {event} of FlowFile {flowfile}"
            raise NotFound(
                f"{what} is not in the record of provenance: it is older than"
                " --provenance-retention, or never was in a queue"
            )
        return found

    def replay(
        self, flow: FlowController, flowfile: int, event: str, key: str, principal: str = ""
    ) -> Replayed:
        """Replay a FlowFile; see `FlowFileReplays.replay`.

        Raises:
            NotFound: It is not in the record.
            Conflict: Its queue or its content does not exist any more.
            InvalidRequest: The key is invalid.
            Unavailable: Nothing was changed.
        """
        known = flow.replays.find(key)
        if known is not None and known.parent == flowfile:
            return known
        version = self.version(flowfile, event)
        try:
            queue = flow.queue(version.queue)
        except NotFound:
            raise Conflict(
                f"FlowFile {flowfile} cannot be replayed: its connection {version.queue} is no"
                " longer in the flow"
            ) from None
        with self._mutex:
            return flow.replays.replay(version, queue, key, principal)

    def preview_many(
        self, flow: FlowController, wanted: EventFilter, following: int, until: int
    ) -> ReplayStep:
        """Return what `replay_many` would do; damaged content is only found by the replay.

        Raises:
            Unavailable: The record cannot be read now.
        """
        found = self._queries.select(wanted, following, until)
        step = _step_of(found)
        for version, _ in _replayable(flow, found, step):
            if flow.replays.is_kept(version):
                step.outcomes[REPLAYED] += 1
            else:
                _count(step, version.flowfile.id, CONTENT)
        return step

    def replay_many(
        self,
        flow: FlowController,
        wanted: EventFilter,
        following: int,
        until: int,
        principal: str = "",
    ) -> ReplayStep:
        """Replay the FlowFiles that one step of a selection chooses, in one commit.

        A FlowFile that was replayed before is not replayed again. The commits of earlier steps are
        in the record before this one is chosen, so a step may be repeated after a lost answer.

        Args:
            flow: The flow.
            wanted: Chooses the FlowFiles.
            following: Number of the event at which the step begins.
            until: Number of the last commit of the selection; 0: the newest one.
            principal: Id of the principal of the request.

        Raises:
            Unavailable: Nothing was changed.
        """
        with self._mutex:
            if flow.spool is not None:
                flow.spool.flush()
            found = self._queries.select(wanted, following, until)
            step = _step_of(found)
            replayable = _replayable(flow, found, step)
            done = flow.replays.replay_many(replayable, principal)
        step.outcomes[REPLAYED] = len(done)
        for version, _ in replayable:
            if version.flowfile.id not in done:
                _count(step, version.flowfile.id, CONTENT)
        return step


def _step_of(found: SelectionStep) -> ReplayStep:
    return ReplayStep(Counter({REPLAYED: 0}), [], found.following, found.until, found.time_ms)


def _replayable(
    flow: FlowController, found: SelectionStep, step: ReplayStep
) -> list[tuple[FlowFileVersion, FlowFileQueue]]:
    """Return the FlowFiles that have a queue with space, and count the others in the step."""
    replayable: list[tuple[FlowFileVersion, FlowFileQueue]] = []
    for one in found.chosen:
        version = one.version
        outcome = _obstacle(one)
        if outcome or version is None:
            _count(step, one.flowfile, outcome)
            continue
        try:
            queue = flow.queue(version.queue)
        except NotFound:  # narrow: it is not in the flow
            _count(step, one.flowfile, CONNECTION)
            continue
        if queue.is_full:
            _count(step, one.flowfile, FULL)
        else:
            replayable.append((version, queue))
    return replayable


def _obstacle(one: ChosenFlowFile) -> str:
    """Return the outcome of a FlowFile that cannot be replayed, by the record; empty: it can."""
    if one.replayed_as is not None:
        return ALREADY
    if one.is_unclear:
        return UNCLEAR
    if one.is_queued:
        return QUEUED
    return NEVER_QUEUED if one.version is None else ""


def _count(step: ReplayStep, flowfile: int, outcome: str) -> None:
    step.outcomes[outcome] += 1
    if sum(known == outcome for _, known, _ in step.examples) < _EXAMPLES_MAX:
        step.examples.append((flowfile, outcome, OBSTACLES[outcome]))
