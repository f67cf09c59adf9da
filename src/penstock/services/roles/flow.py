"""Process of the flow service: a running flow, and its HTTP API."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.core.errors import Dependency, Unavailable
from penstock.core.garbage_collection import collect_for_flows
from penstock.core.metrics import MetricRegistry, Sample
from penstock.core.threads import JobTimer
from penstock.core.uuids import RandomUuids
from penstock.core.waits import DependencyWait
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.controller.flow_metrics import flow_samples
from penstock.flow.controller.flow_owner import FlowOwner
from penstock.flow.processors.service_lookups import SERVICE_LOOKUPS
from penstock.flow.processors.topics.service_addresses import SERVICE, ServiceAddresses
from penstock.flow.repository.commit_spool import SpoolOptions
from penstock.flow.write_guard import WRITE_GUARD
from penstock.services.api.asgi import METRICS_TYPE, application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.flow.flow_access import rights_of_processors
from penstock.services.emitter.events import AlertEvent, Severity
from penstock.services.host.audit_publisher import BrokerAuditTopic
from penstock.services.host.host_plan import spark_cache_folder
from penstock.services.host.private_files import private_places
from penstock.services.host.provenance_process import ProvenanceProcess
from penstock.services.host.provenance_service import (
    ProvenanceDatasource,
    ProvenanceLookups,
    ProvenanceOptions,
    ProvenanceService,
    SupervisedTopic,
)
from penstock.services.host.restart_policy import FLOW_ENDS_MAX, STEADY_S
from penstock.services.http_server import HttpServer
from penstock.services.json_client import JsonClient
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.membership.membership import BrokerFinder, Membership
from penstock.services.options.option_values import without_scheme
from penstock.services.options.table import PenstockOptions, local_path
from penstock.services.processors import registry_for
from penstock.services.readiness import Check
from penstock.services.roles.process_metrics import process_metrics
from penstock.services.roles.runtime import RoleContext
from penstock.spark.connect.java import java_homes
from penstock.spark.flow.service_spark import SERVICE_SPARK
from penstock.storage.deletion_hold import HoldingFileSystem
from penstock.storage.lookup_rows import LookupTables
from penstock.storage.metadata import MetadataStore

logger = logging.getLogger(__name__)

# The environment variable of each file, and its default name in the folder `.aws`.
_AWS_FILES = (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))


class FlowStarts:
    """Counts unexpected ends of the flow's process in a row, and then keeps components stopped.

    A file has the number of ends, including the current run. It is written before the components
    start, and deleted once the process has run for `STEADY_S` or ends cleanly. A process that ends
    in any other way leaves the file. The thread of the controller and a timer use it; each change
    replaces or deletes the file.

    Args:
        path: The file.
        alert: Reports that the components are not started.
    """

    def __init__(self, path: Path, alert: Callable[[str], None]) -> None:
        self._path = path
        self._alert = alert

    def may_start(self) -> bool:
        """Return whether to start the components: false after several unexpected ends in a row."""
        ends = self._ends()
        if ends < FLOW_ENDS_MAX:
            self._begin(ends + 1)
            return True
        self._alert(
            f"the process of the flow ended unexpectedly {ends} times in a row: its components are"
            " not started. See the log for the reason, stop or correct the component that ends the"
            " process (penstock flow stop NAME), and start the others (penstock flow start)"
        )
        return False

    def released(self) -> None:
        """Record that an operator starts components again."""
        self._begin(1)

    def forget(self) -> None:
        """Record that the process ran for a while, or ends cleanly."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _begin(self, ends: int) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(0o700, exist_ok=True)
            fresh.write_text(str(ends))
            fresh.replace(self._path)
            JobTimer("flow starts", STEADY_S, self.forget).start()
        except (OSError, RuntimeError) as error:
            logger.warning("%s cannot be updated: %s", self._path, error)

    def _ends(self) -> int:
        try:
            return int(self._path.read_text()[:9])
        except (OSError, ValueError):
            return 0


class FlowHost:
    """Opens the controller when the process starts, and closes it when the process ends.

    Its mutex guards one reference, because requests run on other threads than the start.

    Args:
        context: Context of the role.
        broker: Finds the broker for processors without an address.
        lookups: The lookups for processors; None: there are none.
    """

    def __init__(
        self, context: RoleContext, broker: BrokerFinder, lookups: LookupTables | None = None
    ) -> None:
        self._lookups = lookups
        self._context = context
        self._broker = broker
        self._mutex = threading.Lock()
        self._controller: FlowController | None = None
        self._starts = FlowStarts(context.folder.run / "flow-ends", self._held)
        self._owner = FlowOwner(context.access, rights_of_processors)
        self._provenance: ProvenanceService | None = None
        self._registry = MetricRegistry()
        self._is_restarting = False  # replaced in one step by a thread of the repository

    def start(self) -> None:
        """Recover the committed state, and start the components that were running.

        Raises:
            PenstockError: The state cannot be opened; the message has the remedy.
        """
        context = self._context
        # Processors are created from the flow's file, which contains no addresses.
        options = context.options
        # A separate lock, so that a second service is refused before it changes anything.
        work_folder = context.folder.tmp / "flow" / str(os.getpid())
        work_folder.mkdir(parents=True, exist_ok=True)
        SERVICE_SPARK.set(options.spark_connect, work_folder)
        SERVICE_LOOKUPS.set(self._lookups)
        SERVICE.set(
            ServiceAddresses(
                broker_http=lambda: self._broker.http().url,
                broker_tcp=lambda: without_scheme(self._broker.tcp().url),
                overlord=options.http.url,
                tokens=self._owner.tokens,
                insecure=options.insecure,
            )
        )
        WRITE_GUARD.set(own_places(options, os.environ), program_places(os.environ))
        # Before the repository creates it: with --segments-group, the umask leaves new folders open
        # to this user's own group. The repository reports problems of the folder.
        with suppress(OSError):
            context.folder.flow.mkdir(0o700, exist_ok=True)
        controller = FlowController.open(
            str(context.folder.flow),
            fs=HoldingFileSystem(str(context.folder.path), context.clock),
            clock=context.clock,
            registry=registry_for(options.flow_modules),
            new_uuid=RandomUuids(),
            environment=os.environ,
            options=ControllerOptions(
                guard=self._starts, owner=self._owner, provenance=_spool_options(options)
            ),
        )
        with self._mutex:  # first, so that a failure below closes it cleanly
            self._controller = controller
        controller.call_when_stopped(self._repository_stopped)
        self._start_provenance(controller)
        collect_for_flows()
        # Files left by killed services; no other service runs now.
        for left in work_folder.parent.iterdir():
            if left != work_folder:
                shutil.rmtree(left, ignore_errors=True)

    def stop(self) -> None:
        """Stop everything in order."""
        with self._mutex:
            controller, self._controller = self._controller, None
            provenance, self._provenance = self._provenance, None
        if provenance is not None:
            provenance.stop()
        if controller is not None:
            controller.close()
            if not self._is_restarting:
                self._starts.forget()

    def _start_provenance(self, controller: FlowController) -> None:
        context, options, spool = self._context, self._context.options, controller.spool
        if spool is None or options.provenance_topic is None:
            return
        bearer = context.access.key.process_bearer
        wanted = ProvenanceOptions(
            options.provenance_topic,
            options.provenance_retention_ms,
            options.provenance_retention_bytes,
        )
        datasource = ProvenanceDatasource(
            wanted,
            lambda: JsonClient(self._broker.http().url, token=bearer),
            lambda: JsonClient(options.http.url, token=bearer),
        )
        topic = BrokerAuditTopic(wanted.topic, lambda: self._broker.http().url, bearer)
        provenance = ProvenanceService(
            spool,
            ProvenanceProcess(spool.folder, os.environ),
            SupervisedTopic(topic, datasource, context.clock),
            context.clock,
            self._registry,
        )
        replays = controller.replays
        for name, about, read in (
            (
                "penstock_provenance_replays_total",
                "FlowFiles that were replayed",
                lambda: float(replays.count),
            ),
            (
                "penstock_provenance_replays_refused_total",
                "Replays that were refused, because the content is no longer kept",
                lambda: float(replays.refused),
            ),
        ):
            self._registry.read("counter", name, about, read)
        provenance.start()
        with self._mutex:
            self._provenance = provenance

    def provenance(self) -> ProvenanceLookups | None:
        """Return the record of provenance; None: it is not kept."""
        with self._mutex:
            provenance = self._provenance
        return None if provenance is None else provenance.lookups

    def _held(self, text: str) -> None:
        logger.error("%s", text)
        self._context.emitter.emit(AlertEvent(text, Severity.SERVICE_FAILURE))

    def _repository_stopped(self) -> None:
        """End the process in order: the launcher restarts it, and it recovers from the journal."""
        self._is_restarting = True
        try:
            text = "the FlowFile repository stopped; the flow's process restarts"
            self._context.emitter.emit(AlertEvent(text, Severity.SERVICE_FAILURE))
        finally:
            self._context.request_stop()

    def controller(self) -> FlowController:
        """Return the controller.

        Raises:
            Unavailable: The controller is still being opened, or was closed.
        """
        with self._mutex:
            controller = self._controller
        if controller is None:
            raise Unavailable("the flow is still being opened, or is being closed: try again")
        return controller

    def check_synced(self) -> None:
        """Check that commits of the flow reach the disk in time.

        Raises:
            Unavailable: They do not, or the flow is not open.
        """
        self.controller().check_synced()

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that processors wait for; none while the flow is not open."""
        with self._mutex:
            controller = self._controller
        return () if controller is None else controller.waits()

    def metrics(self) -> Iterator[Sample]:
        """Return the metrics of the flow. Raises as `controller`."""
        controller = self.controller()
        samples = flow_samples(controller.status(), controller.bulletins.count)
        return itertools.chain(samples, self._registry.snapshot())


def _spool_options(options: PenstockOptions) -> SpoolOptions | None:
    if options.provenance_topic is None:
        return None
    return SpoolOptions(options.provenance_retention_ms, options.provenance_retention_bytes)


def own_places(options: PenstockOptions, environment: Mapping[str, str]) -> list[Path]:
    """Return the local folders and files of a Penstock, which flows must not change.

    Two of them decide which code runs: the file of options, and the cache of Spark's starts, whose
    classes a JVM runs.
    """
    files = (options.tls_cert, options.tls_root_ca, options.broker_tcp_socket)
    stores = (local_path(options.deep_storage_address), local_path(options.task_logs_address))
    places = [options.data_dir, *(one for one in (*files, *stores) if one is not None)]
    places.append(spark_cache_folder(environment))
    return [*private_places(options, environment), *(one.absolute() for one in places)]


def program_places(environment: Mapping[str, str]) -> list[Path]:
    """Return the local folders and files that decide which programs a Penstock runs.

    These are the folders in which programs are looked up by name, Java, and the settings of AWS,
    which may name a program that AWS clients run for credentials.
    """
    places = [Path(one) for one in environment.get("PATH", os.defpath).split(os.pathsep)]
    places += java_homes(environment)
    home = Path(environment.get("HOME") or Path.home())
    for variable, name in _AWS_FILES:
        places.append(Path(environment.get(variable) or home / ".aws" / name))
    return list({one.resolve(): None for one in places})


def compose(context: RoleContext) -> Lifecycle:
    """Build the process."""
    options = context.options
    store = MetadataStore.open(options.metadata_address, clock=context.clock)
    membership = Membership(options, store, context.clock)
    broker = BrokerFinder(options, membership.directory)
    host = FlowHost(context, broker, LookupTables(store.lookups))
    readiness = context.readiness(
        [
            Check("read the metadata", Dependency.METADATA, store.leases.list),
            Check("open the flow", Dependency.DISK, host.controller),
            Check("sync the flow", Dependency.DISK, host.check_synced),
        ],
        lambda: (*membership.waits(), *host.waits()),
    )
    metrics = process_metrics(
        "flow",
        more=lambda: itertools.chain(context.samples(), readiness.samples(), host.metrics()),
        faults={"discovery": membership.faults},
    )

    def metrics_text(_request: Request) -> Response:
        return PlainTextResponse(metrics(), media_type=METRICS_TYPE)

    flow_routes = FlowRoutes(
        *(host.controller, context.clock, host.provenance, options.provenance_topic or "")
    )
    routes = flow_routes.routes()
    # The router forwards `/flow/…`, so monitoring needs only the router's address.
    routes.append(Route("/flow/metrics", metrics_text))
    app = application(routes, access=context.access, metrics=metrics, ready=readiness.state)
    server = HttpServer(app, context.listener, context.guard, tls=context.tls)
    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("metadata", stop=store.close))
    lifecycle.add_handler(LifecycleHandler("flow", host.start, host.stop))
    lifecycle.add_handler(LifecycleHandler("HTTP", server.start, server.stop), StartStage.SERVER)
    membership.add_to(lifecycle, "flow", context.instance, context.address)
    context.publish_audit(lifecycle, broker.http)
    lifecycle.add_handler(
        LifecycleHandler("readiness", readiness.start, readiness.stop), StartStage.ANNOUNCEMENTS
    )
    return lifecycle
