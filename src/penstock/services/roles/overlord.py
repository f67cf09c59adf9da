"""Overlord process: its composition and its participation in leader election.

Owns how the options of the process become overlord options, duties and components.
`LeadingOverlord` begins and ends a term of the overlord when the election reports a change.
`EmittedEvents` passes indexing events to the emitter of the process. Any number of overlord
processes may run: one leads, the others forward requests to it. Does not own what a leader does
(`penstock.indexing.overlord`) or the election (`services.membership.election`).
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import string
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from penstock.core.durations import parse_duration
from penstock.core.errors import Dependency, InvalidRequest
from penstock.core.waits import merged
from penstock.indexing.overlord import Overlord, OverlordOptions, OverlordPorts
from penstock.indexing.overlord.compaction.compaction_duty import CompactionDuty
from penstock.indexing.overlord.duties import Duty, DutyTools
from penstock.indexing.overlord.duties.janitor import JanitorDuty
from penstock.indexing.overlord.duties.retention import ChangedRules, RetentionDuty
from penstock.indexing.overlord.duties.unused_segments import UnusedSegmentsDuty
from penstock.indexing.overlord.duties.uploads import UploadsDuty
from penstock.indexing.overlord.runner.runner_options import RunnerOptions
from penstock.indexing.overlord.task_queue import TaskQueueOptions
from penstock.indexing.ports import TaskLocation
from penstock.indexing.specs.task_context import checked_context
from penstock.indexing.worker.log_store import LogStore
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.asgi import application
from penstock.services.api.broker_port import HttpBrokerPort
from penstock.services.api.indexer.overlord_routes import OverlordParts, overlord_routes
from penstock.services.api.indexer.request_parts import ACTION_BYTES_MAX
from penstock.services.api.indexer.task_files import peon_reports
from penstock.services.api.leader_only import LeaderOnly
from penstock.services.api.process_clients import HttpTaskClient, LeasedWorkers
from penstock.services.emitter.emitter import Emitter, send_alert
from penstock.services.emitter.events import MetricEvent
from penstock.services.http_server import HttpServer
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.membership.election import LeaderSelector
from penstock.services.membership.leases import no_leader
from penstock.services.membership.membership import BrokerFinder, Membership
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Check
from penstock.services.roles.mailbox import role_mailbox
from penstock.services.roles.process_metrics import process_metrics
from penstock.services.roles.runtime import RoleContext
from penstock.storage.metadata import MetadataStore
from penstock.storage.uploads import UPLOADS_FOLDER, UploadStore

if TYPE_CHECKING:
    from penstock.storage.metadata import Term


_START_TIMEOUT_S: Final = 30.0


class LeadingOverlord:
    """`LeaderListener` of an overlord.

    Args:
        overlord: The overlord; its mailbox runs.
    """

    def __init__(self, overlord: Overlord) -> None:
        self._overlord = overlord

    def become_leader(self, term: Term) -> None:
        """Begin the term; raises the errors of the overlord's start, and TimeoutError."""
        self._overlord.start(term).result(_START_TIMEOUT_S)

    def stop_being_leader(self) -> None:
        """End the current term, if any."""
        self._overlord.stop().result(_START_TIMEOUT_S)


logger = logging.getLogger(__name__)


class EmittedEvents:
    """`penstock.indexing.operator_events.Events` over an emitter."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        """Emit a metric."""
        self._emitter.emit(MetricEvent(metric, value, dimensions))

    def alert(self, description: str, **data: str) -> None:
        """Log an alert and emit it."""
        send_alert(self._emitter, logger, description, data=data)


# Workers are polled every second; several consecutive polls must be allowed to fail.
WORKER_TIMEOUT_MS_MIN = 5_000


def task_suffix() -> str:
    """Return a suffix of eight letters for task ids, because people read and type them."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(8))


def overlord_options(options: PenstockOptions) -> OverlordOptions:
    """Return the overlord's options for the options of the process.

    Raises:
        InvalidRequest: The default context of tasks has a field that no task may have, or the
            time-out of workers is shorter than their polls.
    """
    worker_timeout_ms = parse_duration(options.worker_timeout)
    if worker_timeout_ms < WORKER_TIMEOUT_MS_MIN:
        raise InvalidRequest(
            f"{options.worker_timeout} is less than {WORKER_TIMEOUT_MS_MIN // 1000} s, in which "
            "even a healthy worker may be unable to answer; give more",
            place="--worker-timeout",
        )
    runner = RunnerOptions(
        worker_timeout_ms=worker_timeout_ms,
        worker_version_min=options.worker_version_min,
    )
    queue = TaskQueueOptions(
        max_tasks=options.task_queue_size,
        payload_bytes_max=options.task_payload_bytes,
        context=checked_context(json.loads(options.task_context), "--task-context"),
        runner=runner,
    )
    return OverlordOptions(queue=queue)


def compose(context: RoleContext) -> Lifecycle:
    """Build the process."""
    options, clock = context.options, context.clock
    store = MetadataStore.open(options.metadata_address, clock=clock)
    mailbox, mailbox_handler = role_mailbox(context)
    deep_store = DeepStore(options.deep_storage_address)
    membership = Membership(options, store, clock)
    broker = BrokerFinder(options, membership.directory)
    workers = LeasedWorkers(membership.directory, context.bearer)
    lanes = ThreadLanes("overlord")
    lock_lanes = ThreadLanes("locks")

    def locate(task_id: str) -> TaskLocation | None:
        return overlord.task_service.location(task_id)

    overlord = Overlord(
        mailbox.processor,
        OverlordPorts(
            metadata=store,
            broker=HttpBrokerPort(lambda: broker.http().url, context.bearer),
            peons=HttpTaskClient(locate, context.access.key.peon_bearer),
            workers=workers,
            lanes=lanes,
            lock_lanes=lock_lanes,
            clock=clock,
            new_token=task_suffix,
            duties=partial(duties_of, options, deep_store),
            events=EmittedEvents(context.emitter),
            deposed=lambda: selector.poll(),  # made below  # noqa: PLW0108
        ),
        overlord_options(options),
    )
    address = context.address
    url = address.url
    selector = LeaderSelector(
        membership.contest("overlord", url),
        LeadingOverlord(overlord),
        clock,
        context.emitter,
        context.request_stop,
    )
    readiness = context.readiness(
        [
            Check("read the metadata", Dependency.METADATA, store.leases.list),
            Check("know the leader", Dependency.OVERLORD, lambda: _led(overlord, selector, url)),
        ],
        lambda: merged([membership.waits(), selector.waits.all(), overlord.waits()]),
    )
    server = HttpServer(
        application(
            _routes(context, overlord, workers),
            access=context.access,
            metrics=process_metrics(
                "overlord",
                more=lambda: itertools.chain(context.samples(), readiness.samples()),
                faults={"discovery": membership.faults, "election": lambda: selector.faults},
            ),
            body_bytes_max=ACTION_BYTES_MAX,
            inside=[Middleware(LeaderOnly, leadership=selector, address=url)],
            ready=readiness.state,
        ),
        context.listener,
        context.guard,
        tls=context.tls,
    )
    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("metadata", stop=store.close))
    lifecycle.add_handler(mailbox_handler)
    lifecycle.add_handler(LifecycleHandler("lanes", stop=lanes.close))
    lifecycle.add_handler(LifecycleHandler("locks", stop=lock_lanes.close))
    lifecycle.add_handler(LifecycleHandler("HTTP", server.start, server.stop), StartStage.SERVER)
    lifecycle.add_handler(
        LifecycleHandler("election", selector.start, selector.stop), StartStage.SERVER
    )
    membership.add_to(lifecycle, "overlord", context.instance, context.address)
    context.publish_audit(lifecycle, broker.http)
    lifecycle.add_handler(
        LifecycleHandler("readiness", readiness.start, readiness.stop), StartStage.ANNOUNCEMENTS
    )
    return lifecycle


def duties_of(options: PenstockOptions, deep_store: DeepStore, tools: DutyTools) -> list[Duty]:
    """Return the duties of a term for the options of the process."""
    retention = RetentionDuty(tools.metadata, tools.clock)
    duties: list[Duty] = [
        JanitorDuty(tools.metadata, deep_store, tools.clock),
        retention,
        ChangedRules(tools.metadata, retention),
        CompactionDuty(tools),
        UploadsDuty(tools.index, UploadStore(options.data_dir / UPLOADS_FOLDER, tools.clock)),
    ]
    if options.kill_unused_after is not None:
        buffer_ms = parse_duration(options.kill_unused_after)
        duties.append(UnusedSegmentsDuty(tools, deep_store, buffer_ms))
    return duties


def _routes(context: RoleContext, overlord: Overlord, workers: LeasedWorkers) -> list[BaseRoute]:
    options = context.options
    return overlord_routes(
        OverlordParts(
            overlord=overlord,
            workers=workers,
            address=context.address.url,
            clock=context.clock,
            live_report=peon_reports(context.access.key.peon_bearer),
            logs=LogStore(options.task_logs_address),
            task_body_bytes_max=options.task_body_bytes,
            uploads=UploadStore(context.folder.path / UPLOADS_FOLDER, context.clock),
        )
    )


def _led(overlord: Overlord, selector: LeaderSelector, address: str) -> None:
    """Check that this overlord leads and has begun to, or that another one leads.

    Args:
        overlord: The overlord.
        selector: Its election.
        address: The URL of this process.

    Raises:
        Unavailable: No overlord leads, or this one has just begun.
    """
    if selector.is_leader:
        overlord.require_full()
        return
    # After its term has expired, this process may still be registered as the leader.
    if selector.leader() in {None, address}:
        remedy = "wait for the election"
        raise no_leader("no overlord leads", selector.waits.all(), remedy=remedy)
