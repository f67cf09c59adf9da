"""Constructors take no callbacks of their package, but objects; events are returned or mailed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cohesion

# Functions that constructors take although another module of the package passes them, by reason.
EXEMPT = {
    "time, randomness, ids and files are parameters, so that tests decide them": {
        "broker.lookupd.announcer.LookupdAnnouncer": {"jitter"},
        "broker.security.auth_servers.AuthServers": {"choose"},
        "broker.topics.topic_files.TopicFiles": {"new_id"},
        "client.options.Environment": {"random", "sleep"},
        "flow.provenance.replay.FlowFileReplays": {"new_uuid"},
        "flow.session.services.SessionServices": {"new_uuid"},
        "indexing.batch.retries.RetryBudget": {"chance"},
        "indexing.overlord.duties.duty.DutyTools": {"new_token"},
        "indexing.supervisor.supervisor_ports.SupervisorPorts": {"new_token"},
        "services.host.audit_publisher.AuditPublisher": {"random"},
    },
    "code of a user or of a processor, or a check and an order that a user chooses": {
        "client.handler_pool.HandlerPool": {"handler"},
        "client.options.ConsumerOptions": {"give_up"},
        "flow.controller.processor_node.ProcessorPlan": {"kind", "properties"},
        "flow.graph.check_context.CheckContext": {"check_prioritizer"},
        "flow.processor.properties.ExpressionProperty": {"validator"},
        "flow.processor.properties.Property": {"validator"},
        "flow.processor.property_types.PropertyType": {"parse"},
        "flow.queue.drop_requests.DropRequest": {"predicate"},
        "flow.queue.ordered_store.OrderedStore": {"keys"},
        "flow.queue.swap_cursors.SwapWindows": {"keys"},
        "flow.session.commit.PreparedCommit": {"callbacks"},
    },
    "an entry of a table, or a choice between forms: a function of its arguments alone": {
        "broker.http_server.guard.HttpGuard": {"error_body"},
        "flow.processors.records.formats.format_protocols.RecordSource": {"open"},
        "indexing.worker.peon_task.TaskKind": {"make"},
        "services.api.endpoints.Endpoint": {"answer"},
        "services.api.router.RouterParts": {"mistakes"},
        "services.api.sql.AskedQuery": {"check", "write"},
        "services.native.answers.NativeStatement": {"shape"},
        "services.emitter.http_sink.HttpByFeedSink": {"make"},
        "spark.batch.input.file_finder.FileFinder": {"check"},
        "spark.chunk_work.ReadWork": {"make_parser"},
        "spark.datasource_stream.DatasourceStreamReader": {"check"},
    },
    "only runs what it is given: threads, mailboxes, transactions, steps of a start": {
        "core.threads.OwnedThread": {"body"},
        "flow.controller.connection_queues.ConnectionQueues": {"background"},
        "flow.queue.queue.FlowFileQueue": {"background"},
        "flow.queue.swap_policy.ReadAhead": {"background"},
        "flow.scheduling.scheduler_inbox.SchedulerInbox": {"receive"},
        "mailbox.alarm.Alarm": {"check_thread"},
        "mailbox.mail.Mail": {"action"},
        "mailbox.mailbox_processor.MailboxProcessor": {"default_action"},
        "services.lifecycle.LifecycleHandler": {"start", "stop"},
        "services.readiness.Check": {"attempt"},
        "storage.metadata.sql_database.GuardedDatabase": {"check"},
        "storage.queue.group_commit.Syncer": {"run_pass"},
    },
    "code of a user reads and closes the stream at any time, and its session counts the bytes": {
        "flow.session.content_streams.ContentSource": {"count"},
        "flow.session.content_streams.ContentStream": {"ended"},
    },
    "a port towards a part that may be absent, or in another thread and answers with a future": {
        "indexing.overlord.duties.duty.DutyTools": {"slots", "submit"},
        "services.api.iceberg.catalog_commits.CatalogCommits": {"overlord"},
    },
    "a session reports to the process that runs it, and knows no scheduler": {
        "flow.session.services.SessionServices": {"revision"},
        "flow.session.services.SessionContext": {"yield_for"},
    },
    "the peon alone shows the waits of a task; a port would need an empty one for all others": {
        "indexing.batch.retrying_caller.RetryingCaller": {"waits_changed"},
    },
    "messages and failures arrive at any time; as methods they would be in the API of `Consumer`": {
        "client.connections.Inbound": {"failed", "forget", "put"},
    },
    "a timer's thread reports it after ten seconds; only the service knows the query it means": {
        "spark.connect.running_calls.RunningCall": {"on_ignored"},
    },
    "finds or asks a part that may be absent, or at another address at each call": {
        "services.api.broker_port.HttpBrokerPort": {"find"},
        "services.api.flow.components.ComponentEndpoints": {"controller"},
        "services.api.flow.flow_routes.FlowRoutes": {"controller", "provenance"},
        "services.api.flow.provenance.ProvenanceEndpoints": {"controller", "lookups"},
        "services.api.flow.queues.QueueEndpoints": {"controller"},
        "services.host.provenance_service.ProvenanceDatasource": {"broker", "router"},
        "services.api.indexer.overlord_routes.OverlordParts": {"live_report"},
        "services.api.indexer.sql_task.SqlTaskRoutes": {"overlord"},
        "services.api.indexer.task_files.TaskFiles": {"live_report"},
        "services.api.overview.ProcessOverview": {"own_state"},
        "services.api.process_clients.HttpTaskClient": {"locate"},
        "services.api.router.RouterParts": {"ready"},
        "services.backup.restore.RestoreTarget": {"import_metadata"},
        "services.host.liveness.LivenessCheck": {"send_question"},
        "services.membership.election.TermContest": {"refuses"},
        "services.membership.leases.LeaseDirectory": {"waits"},
        "services.readiness.Readiness": {"waits"},
    },
    "keys come from another thread and another host, and must not hold the lock of their reader": {
        "core.access.oidc.OidcAuthenticator": {"fetch"},
        "core.access.oidc_keys.OidcKeys": {"changed", "fetch"},
    },
    "the key of the installation may be replaced while a process uses it": {
        "core.access.row_rules.MaskKey": {"key"},
    },
    "what names mean, and which addresses this host has, belongs to the operating system": {
        "core.guarded_connections.ServiceNetworkGuard": {"is_here", "resolve"},
    },
    "who may read a datasource is decided above Spark, for each principal": {
        "spark.tables.readable_tables.ReadableTables": {"may_read"},
    },
    "each task has a token of its own, which only roles can derive": {
        "services.api.process_clients.HttpTaskClient": {"bearer_of"},
        "services.roles.peon_processes.PeonOptions": {"credentials"},
    },
    "the process that has the authority's key renews the certificate before the files are read": {
        "broker.security.tls.ServerTls": {"before_look"},
    },
    "a key may come from a command or a variable, and tests need bytes that repeat": {
        "storage.secrets.secret_store.SecretStore": {"keys_elsewhere", "random_bytes"},
    },
    "rules and credentials change while a process runs: what they mean now is asked at each use": {
        "broker.redrive.redriver.RedriveRequest": {"admit"},
        "core.access.quota_use.QuotaUse": {"quotas_of"},
        "core.access.represented.RepresentedPrincipals": {"credential_problem"},
        "flow.controller.processor_node.ProcessorNode": {"refusal"},
    },
    "the messages of a connection are counted by the connection, and its rights end with it": {
        "broker.security.rights.ConnectionRights": {"messages_of"},
    },
    "no callback: a node of the syntax tree, whose class has the name of such a type elsewhere": {
        "core.sql.tree.LateralView": {"call"},
        "core.sql.tree.TableFunction": {"call"},
    },
    "the broker may move, and the token of a process counts for minutes": {
        "services.host.audit_publisher.BrokerAuditTopic": {"bearer", "broker"},
    },
    "roles put processes together: a part below them has the process end, or reports its state": {
        "services.api.peon.PeonRoutes": {"stop"},
        "services.api.sql_answer.SqlAnswer": {"on_abandoned"},
        "services.host.launcher.ChildPlan": {"command", "restart_reason"},
        "services.host.launcher.Launcher": {"on_ready", "print_line"},
        "services.membership.election.LeaderSelector": {"broken"},
        "services.roles.peon.PeonRole": {"notify_worker"},
    },
}


def test_no_constructor_takes_a_callback_of_its_package() -> None:
    found = cohesion.callbacks_in_constructors(cohesion.read_modules(cohesion.ROOT / "src"))
    exempt = {
        (name, parameter)
        for classes in EXEMPT.values()
        for name, parameters in classes.items()
        for parameter in parameters
    }
    new = {one: sorted(creators) for one, creators in found.items() if one not in exempt}
    assert not new, "pass the object, return a value, report by mail, or give a reason"
    assert exempt <= found.keys(), "these are gone: remove their exemption"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    below = """
from collections.abc import Callable
from dataclasses import dataclass

Hook = Callable[[int], None]

@dataclass(frozen=True)
class Ports:
    size: int
    notify: Callable[[], None]

class Part:
    def __init__(self, size: int, *, done: Hook | None = None, late: "Callable[[], int]") -> None:
        self.other: Callable[[], None] = print

class Private:
    def __init__(self, done: Hook) -> None: ...

class Apart:
    def __init__(self, done: Hook) -> None: ...

Private(print)
"""
    files = {
        "__init__.py": "",
        "broker/__init__.py": "",
        "broker/below.py": below,
        "broker/owner.py": "from penstock.broker.below import Part, Ports\nPart(1)\nPorts(1)\n",
        "flow/__init__.py": "",
        "flow/user.py": "from penstock.broker.below import Apart\nApart(print)\n",
    }
    for name, text in files.items():
        path = tmp_path / "penstock" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_callables_of_parameters_fields_and_aliases_are_found(source: Path) -> None:
    found = cohesion.callbacks_in_constructors(cohesion.read_modules(source))
    assert found == {
        ("broker.below.Part", "done"): {"broker.owner"},
        ("broker.below.Part", "late"): {"broker.owner"},
        ("broker.below.Ports", "notify"): {"broker.owner"},
    }
