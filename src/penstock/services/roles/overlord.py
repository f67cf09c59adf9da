"""The overlord's process: supervisors and the task queue, Druid's task API, a lease."""

from __future__ import annotations

import secrets
import string

from penstock.indexing.lanes import ThreadLanes
from penstock.indexing.overlord import Overlord, OverlordPorts
from penstock.indexing.overlord.duties.compaction import CompactionDuty
from penstock.indexing.overlord.duties.retention import RetentionDuty
from penstock.indexing.overlord.janitor import Janitor
from penstock.indexing.ports import TaskLocation
from penstock.segments.deepstore import DeepStore
from penstock.services.api.asgi import application
from penstock.services.api.brokerport import HttpBrokerPort
from penstock.services.api.clients import HttpTaskClient, LeasedWorkers
from penstock.services.api.overlord import (
    ACTION_BYTES_MAX,
    SegmentRoutes,
    SupervisorRoutes,
    TaskRoutes,
)
from penstock.services.httpserver import HttpServer
from penstock.services.leases import Announcement, Announcer, Directory
from penstock.services.lifecycle import Handler, Lifecycle, Stage
from penstock.services.roles.mailbox import role_mailbox
from penstock.services.roles.processmetrics import process_metrics
from penstock.services.roles.runtime import RoleContext
from penstock.storage.metadata import MetadataStore

_START_TIMEOUT_S = 30.0


def task_suffix() -> str:
    """Return eight letters that no other task ends in: they are read aloud and typed."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(8))


def compose(context: RoleContext) -> Lifecycle:
    """Put the process together."""
    options, clock = context.options, context.clock
    store = MetadataStore.open(options.metadata_address, clock=clock)
    mailbox, mailbox_handler = role_mailbox(context)
    workers = LeasedWorkers(Directory(store.leases), options.token)
    lanes = ThreadLanes("overlord")
    lock_lanes = ThreadLanes("locks")

    def locate(task_id: str) -> TaskLocation | None:
        return overlord.desk.location(task_id)

    overlord = Overlord(
        mailbox.processor,
        OverlordPorts(
            metadata=store,
            broker=HttpBrokerPort(options.broker_http.url, options.token),
            peons=HttpTaskClient(locate, options.token),
            workers=workers,
            lanes=lanes,
            lock_lanes=lock_lanes,
            clock=clock,
            new_token=task_suffix,
            janitor=Janitor(store, DeepStore(options.deep_storage_address), clock),
            duties=lambda tools: [
                RetentionDuty(tools.metadata, tools.clock),
                CompactionDuty(tools),
            ],
        ),
    )
    address = context.address
    routes = [
        *TaskRoutes(overlord, workers, f"http://{address}").routes(),
        *SupervisorRoutes(overlord).routes(),
        *SegmentRoutes(store).routes(),
    ]
    server = HttpServer(
        application(
            routes,
            token=options.token,
            metrics=process_metrics("overlord"),
            body_bytes_max=ACTION_BYTES_MAX,
        ),
        context.listener,
    )
    announcement = Announcement("overlord", context.instance, address)
    announcer = Announcer(store.leases, announcement, clock)
    lifecycle = Lifecycle()
    lifecycle.add_handler(Handler("metadata", stop=store.close))
    lifecycle.add_handler(mailbox_handler)
    lifecycle.add_handler(Handler("lanes", stop=lanes.close))
    lifecycle.add_handler(Handler("locks", stop=lock_lanes.close))
    lifecycle.add_handler(
        Handler(
            "supervisors",
            lambda: overlord.start().result(_START_TIMEOUT_S),
            lambda: overlord.stop().result(_START_TIMEOUT_S),
        )
    )
    lifecycle.add_handler(Handler("HTTP", server.start, server.stop), Stage.SERVER)
    lifecycle.add_handler(Handler("lease", announcer.start, announcer.stop), Stage.ANNOUNCEMENTS)
    lifecycle.add_handler(Handler("readiness", context.say_ready), Stage.ANNOUNCEMENTS)
    return lifecycle
