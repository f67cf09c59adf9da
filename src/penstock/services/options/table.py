"""Table of options: one entry for each, from which all other forms of the option are derived.

An entry is a field of `PenstockOptions`: its name, type and default, how a given value is read, and
its help. The model (`PenstockOptions`), the options of the command line and their help, the
variables, the keys of `penstock.toml` and the reference page in the documentation come from here.
The table does not own the options of single packages; roles derive those from `PenstockOptions`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.core.durations import parse_duration
from penstock.core.network_guard import EVERY_HOST
from penstock.indexing.ports import DEFAULT_WORKER_CATEGORY
from penstock.services.options import option_values as read
from penstock.services.options.option_values import HostPort
from penstock.storage.sqlite_urls import sqlite_url

METADATA_FILE: Final = "metadata.db"
ACCESS_FOLDER: Final = "access"
TLS_FOLDER: Final = "tls"
VARIABLE_PREFIX: Final = "PENSTOCK_"


def _entry(
    kind: str,
    parse: Callable[[object], object],
    text: str,
    *,
    secret: bool = False,
    holds_secret: bool = False,
) -> dict[str, object]:
    return {
        "kind": kind,
        "parse": parse,
        "help": text,
        "secret": secret,
        "may_name_secret": secret or holds_secret,
    }


@dataclass(frozen=True, slots=True)
class PenstockOptions:
    """All options, resolved; `data_dir` is `--data-dir`, `PENSTOCK_DATA_DIR` and `data-dir`."""

    data_dir: Path = field(
        default=Path("data"),
        metadata=_entry("folder", read.path, "Folder that holds everything Penstock keeps."),
    )
    http: HostPort = field(
        default=HostPort("127.0.0.1", 8888),
        metadata=_entry(
            "address",
            read.address,
            "Where the API listens; port 0 picks a free one. Overlord, worker and flow use only"
            " the port of their own command line, because all roles of a host share the other"
            " settings.",
        ),
    )
    flight: HostPort | None = field(
        default=None,
        metadata=_entry(
            "address",
            read.address,
            "Address at which the router speaks Arrow Flight SQL [default: it does not]",
        ),
    )
    broker_http: HostPort | None = field(
        default=None,
        metadata=_entry(
            "address",
            read.address,
            "Address at which the broker accepts events over HTTP"
            " [default: 127.0.0.1:4151; other roles find the announced broker]",
        ),
    )
    broker_tcp: HostPort | None = field(
        default=None,
        metadata=_entry(
            "address",
            read.address,
            "Address at which the broker speaks NSQ's TCP protocol [default: 127.0.0.1:4150; other "
            "roles find the announced broker]",
        ),
    )
    broker_tcp_socket: Path | None = field(
        default=None,
        metadata=_entry(
            "path", read.path, "Unix socket where the broker speaks NSQ's TCP protocol, too."
        ),
    )
    broker_tcp_socket_mode: str = field(
        default="600",
        metadata=_entry(
            "mode", read.mode, "Permissions of that socket, which decide which users can connect."
        ),
    )
    broker_https_port: int | None = field(
        default=None,
        metadata=_entry(
            "port",
            read.number(0, 65_535),
            "Port of the broker's HTTP under TLS, on the host of --broker-http.",
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_entry(
            "file",
            read.path,
            "Certificate chain of this host, PEM, for all"
            " ports [default: the one of penstock tls init]",
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=_entry(
            "file",
            read.path,
            "Its key, PEM, without a passphrase [default: in the file of the certificate]",
        ),
    )
    tls_root_ca: Path | None = field(
        default=None,
        metadata=_entry(
            "file",
            read.path,
            "Authorities that sign clients' certificates, PEM [default: the"
            " one of penstock tls init]",
        ),
    )
    tls_ca: Path | None = field(
        default=None,
        metadata=_entry(
            "file",
            read.path,
            "Authorities that sign the certificates of Penstock's servers, PEM, for its clients"
            " [default: the one of penstock tls init, otherwise those of this machine]",
        ),
    )
    tls_client_auth_policy: str = field(
        default="none",
        metadata=_entry(
            "text",
            read.one_of("none", "require", "require-verify"),
            "Whether clients must present a certificate: none, require or require-verify.",
        ),
    )
    tls_required: str = field(
        default="remote",
        metadata=_entry(
            "text",
            read.one_of("false", "remote", "tcp-https", "true"),
            "Which clients must use TLS, if there is a certificate: remote (all except over"
            " loopback), true (all), tcp-https (all except HTTP) or false (none).",
        ),
    )
    tls_min_version: str = field(
        default="tls1.2",
        metadata=_entry(
            "text",
            read.one_of("tls1.2", "tls1.3"),
            "Minimum TLS version of all ports: tls1.2 or tls1.3.",
        ),
    )
    auth_http_addresses: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.texts,
            "Servers that authorize TCP clients: HOST:PORT or URLs, separated by commas.",
        ),
    )
    auth_http_request_method: str = field(
        default="get",
        metadata=_entry(
            "text",
            read.one_of("get", "post"),
            "HTTP method of requests to these servers: get or post.",
        ),
    )
    lookupd_tcp_addresses: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list", read.texts, "nsqlookupd servers that the broker registers with: HOST:PORT, …"
        ),
    )
    broadcast_address: str | None = field(
        default=None,
        metadata=_entry(
            "host",
            read.text,
            "Host that the broker reports to NSQ's clients as its address"
            " [default: the host of --broker-http]",
        ),
    )
    max_channel_consumers: int = field(
        default=0,
        metadata=_entry(
            "number",
            read.number(0, 1_000_000),
            "Maximum number of consumers of a channel; 0: unlimited.",
        ),
    )
    max_rdy_count: int = field(
        default=2_500,
        metadata=_entry(
            "number",
            read.number(1, 1_000_000),
            "Maximum number of messages of a consumer in flight.",
        ),
    )
    msg_timeout: str = field(
        default="1m",
        metadata=_entry(
            "duration", read.duration, "Default message time-out of a consumer that requests none."
        ),
    )
    max_msg_timeout: str = field(
        default="15m",
        metadata=_entry(
            "duration", read.duration, "Maximum message time-out that a consumer may request."
        ),
    )
    max_heartbeat_interval: str = field(
        default="1m",
        metadata=_entry(
            "duration", read.duration, "Maximum interval of heartbeats that a client may request."
        ),
    )
    mem_queue_size: int = field(
        default=10_000,
        metadata=_entry(
            "number",
            read.number(0, 1_000_000_000),
            "Number of a topic's newest messages to keep in memory for its channels; 0: none.",
        ),
    )
    mem_size: str = field(
        default="256m",
        metadata=_entry(
            "size", read.size, "Memory that the broker may use for messages and answers in total."
        ),
    )
    topic_retention: str | None = field(
        default=None,
        metadata=_entry(
            "duration",
            read.duration,
            "How long consumed messages of a topic are kept, such as 36h or 7d [default: forever]",
        ),
    )
    topic_retention_size: str | None = field(
        default=None,
        metadata=_entry(
            "size",
            read.size,
            "Size of a stream partition above which consumed messages are deleted, such as 20g"
            " [default: forever]",
        ),
    )
    metadata_url: str | None = field(
        default=None,
        metadata=_entry(
            "URL",
            read.text,
            "Metadata database: sqlite:///FILE or postgresql+psycopg://…"
            " [default: SQLite in the data folder]",
            holds_secret=True,
        ),
    )
    deep_storage: str | None = field(
        default=None,
        metadata=_entry(
            "URL",
            read.text,
            "Location of segments: a folder or any fsspec URL such as s3://…"
            " [default: the data folder]",
        ),
    )
    segment_cache_size: str = field(
        default="10g",
        metadata=_entry(
            "size",
            read.size,
            "Size limit of the copies of segments that a router keeps on its disk for queries, if"
            " the deep storage is remote; 0g: none.",
        ),
    )
    spark_master: str = field(
        default="local[*]",
        metadata=_entry(
            "text", read.text, "Spark master that the local Spark server runs its jobs on."
        ),
    )
    spark_secret_file: Path | None = field(
        default=None,
        metadata=_entry(
            "file",
            read.path,
            "File with the secret (spark.authenticate.secret) that the master and the workers of a"
            " standalone cluster share; needed with a spark:// master.",
        ),
    )
    spark_connect: str | None = field(
        default=None,
        metadata=_entry(
            "URL",
            read.spark_connect,
            "A Spark Connect server, sc://HOST:PORT, to use instead of a local one.",
            holds_secret=True,
        ),
    )
    spark_memory: str = field(
        default="2g", metadata=_entry("size", read.memory, "Heap of the local Spark server.")
    )
    spark_java_options: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.java_options,
            "Further options of the JVMs of local Spark servers, such as -Dname=value.",
        ),
    )
    query_memory: str | None = field(
        default=None,
        metadata=_entry(
            "size",
            read.memory_or_none,
            "Heap of a second local Spark server that only answers queries; none: queries and"
            " tasks share one [default: 2g or 1g where memory allows]",
        ),
    )
    query_connect: str | None = field(
        default=None,
        metadata=_entry(
            "URL",
            read.spark_connect,
            "A Spark Connect server only for queries [default: the one that tasks use]",
            holds_secret=True,
        ),
    )
    worker_capacity: int | None = field(
        default=None,
        metadata=_entry(
            "number",
            read.number(1, 1_000),
            "Maximum number of indexing tasks that run at once on a worker [default: cores - 1, at "
            "least 4]",
        ),
    )
    worker_spares: int = field(
        default=1,
        metadata=_entry(
            "number",
            read.number(0, 100),
            "Processes that a worker keeps warm, so that tasks start at once; 0: none, and each"
            " task imports everything in a process of its own",
        ),
    )
    worker_category: str = field(
        default=DEFAULT_WORKER_CATEGORY,
        metadata=_entry(
            "text",
            read.text,
            "Category of a worker, by which the worker selection sends tasks to it.",
        ),
    )
    worker_version: str = field(
        default="0",
        metadata=_entry(
            "text", read.text, "Version that a worker reports; an overlord may require a minimum."
        ),
    )
    worker_version_min: str = field(
        default="0",
        metadata=_entry(
            "text", read.text, "Workers of an older version get no tasks from this overlord."
        ),
    )
    worker_timeout: str = field(
        default="2m",
        metadata=_entry(
            "duration",
            read.duration,
            "A worker that does not answer for this time (at least 5 s) is lost: its tasks fail.",
        ),
    )
    task_queue_size: int = field(
        default=20_000,
        metadata=_entry(
            "number", read.number(1, 1_000_000), "Maximum number of active tasks of an overlord."
        ),
    )
    task_payload_size: str = field(
        default="16m",
        metadata=_entry("size", read.size_to("48m"), "Maximum size of a task, as JSON."),
    )
    task_context: str = field(
        default="{}",
        metadata=_entry(
            "JSON",
            read.json_object,
            "Default context of every task; the task's own context overrides it.",
        ),
    )
    kill_unused_after: str | None = field(
        default=None,
        metadata=_entry(
            "duration",
            read.duration,
            "Segments that were unused for this time, such as P30D, are deleted permanently, with"
            " their files [default: only kill tasks delete them]",
        ),
    )
    task_shutdown_timeout: str = field(
        default="10s",
        metadata=_entry(
            "duration",
            read.duration,
            "Time in which a task must stop, before it is killed.",
        ),
    )
    task_folders: tuple[Path, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.paths,
            "Folders, preferably on several disks, for the files of running tasks [default: the "
            "data folder]",
        ),
    )
    task_size: str | None = field(
        default=None,
        metadata=_entry(
            "size",
            read.size,
            "A task fails if its folder grows larger than this, such as 20g [default: unlimited]",
        ),
    )
    task_logs: str | None = field(
        default=None,
        metadata=_entry(
            "URL",
            read.text,
            "Location of logs and reports of ended tasks: a folder or any fsspec URL"
            " [default: the data folder]",
        ),
    )
    zookeeper: str | None = field(
        default=None,
        metadata=_entry(
            "list",
            read.text,
            "ZooKeeper servers, HOST:PORT separated by commas, for discovery and election"
            " [default: leases in the metadata]",
        ),
    )
    zookeeper_tls: str = field(
        default="false",
        metadata=_entry(
            "text",
            read.one_of("true", "false"),
            "Whether ZooKeeper is reached under TLS, with the authorities of --tls-ca: true or"
            " false.",
        ),
    )
    zookeeper_auth: str | None = field(
        default=None,
        metadata=_entry(
            "text",
            read.text,
            "USER:PASSWORD for ZooKeeper (scheme digest); only this user may then read and change"
            " Penstock's nodes.",
            secret=True,
        ),
    )
    zookeeper_base: str = field(
        default="/penstock",
        metadata=_entry("path", read.text, "Folder of Penstock in ZooKeeper."),
    )
    emitters: str = field(
        default="log,prometheus",
        metadata=_entry(
            "list",
            read.emitters,
            "Destinations of events: log, prometheus and http, separated by commas; or none.",
        ),
    )
    emitter_feeds: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list", read.emitters_by_feed, "Feeds with other destinations: FEED=EMITTER+EMITTER, …"
        ),
    )
    emitter_log_level: str = field(
        default="info",
        metadata=_entry(
            "text",
            read.one_of("debug", "info", "warning"),
            "Level of events in the log: debug, info or warning; alerts are at least warnings.",
        ),
    )
    emitter_log_metrics: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.texts,
            "Metrics that are logged, separated by commas [default: all of them]",
        ),
    )
    emitter_url: str | None = field(
        default=None,
        metadata=_entry(
            "URL",
            read.text,
            "URL to which events are posted; {feed} in it is replaced by their feed.",
        ),
    )
    emitter_auth: str | None = field(
        default=None,
        metadata=_entry("text", read.text, "USER:PASSWORD for that URL.", secret=True),
    )
    emitter_gzip: str = field(
        default="false",
        metadata=_entry(
            "text",
            read.one_of("true", "false"),
            "Whether posted events are compressed: true or false.",
        ),
    )
    emitter_framing: str = field(
        default="array",
        metadata=_entry(
            "text",
            read.one_of("array", "newlines", "only_events"),
            "Format of events in a body: array ([a,b]), newlines or only_events (a,b).",
        ),
    )
    emitter_flush: str = field(
        default="1m",
        metadata=_entry("duration", read.duration, "Maximum age of events before they are posted."),
    )
    flow_modules: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.flow_modules,
            "Folders and packages whose processors, prioritizers and functions flows may name"
            " [default: only those that Penstock includes]",
        ),
    )
    readable_folders: tuple[Path, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.paths,
            "Folders from which flows, tasks and statements may read files [default: all that"
            " Penstock's user may read, except Penstock's own]",
        ),
    )
    reachable_hosts: tuple[str, ...] = field(
        default=(EVERY_HOST,),
        metadata=_entry(
            "list",
            read.reachable_hosts,
            "Hosts to which flows, tasks and statements may connect: `NAME`, `*.NAME`, an address"
            " or a network, each with `:PORT` if wanted; `*` is every host except this one, which"
            " must be listed with a port, such as `*,localhost:5432`",
        ),
    )
    segments_group: str | None = field(
        default=None,
        metadata=_entry(
            "group",
            read.text,
            "Group that may read the segments, for engines that run as another user"
            " [default: only the user of Penstock]",
        ),
    )
    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_entry(
            "list",
            read.hosts,
            "Further hosts that HTTP requests may name in `Host`, such as penstock.example.com or"
            " *.example.com [default: loopback names and the configured addresses]",
        ),
    )
    insecure: bool = field(
        default=False,
        metadata=_entry(
            "flag",
            read.flag,
            "Listen on addresses that other hosts reach without TLS, or without a token: every"
            " host and user of the network may then do everything.",
        ),
    )
    token: str | None = field(
        default=None,
        metadata=_entry(
            "text",
            read.text,
            "Secret that every HTTP request must send as bearer token.",
            secret=True,
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=_entry("file", read.path, "File that holds the token, in one line."),
    )
    access_folder: Path | None = field(
        default=None,
        metadata=_entry(
            "folder",
            read.path,
            "Folder of users, tokens, roles and the key of processes; several hosts of one"
            " installation need the same contents [default: access in the data folder]",
        ),
    )
    audit: str = field(
        default="changes",
        metadata=_entry(
            "text",
            read.one_of("changes", "everything"),
            "Events that the audit records: changes, logins and refusals (changes), or allowed"
            " reads, queries and publishes as well (everything).",
        ),
    )
    audit_topic: str | None = field(
        default=None,
        metadata=_entry(
            "text",
            read.topic,
            "Topic to which all processes publish the audit; its name is also that of the"
            " datasource, and both need the right read system:access.",
        ),
    )

    provenance_topic: str | None = field(
        default=None,
        metadata=_entry(
            "text",
            read.topic,
            "Topic to which the flow publishes the provenance of its FlowFiles; its name is also"
            " that of the datasource, which is created [default: provenance is not recorded].",
        ),
    )
    provenance_retention: str = field(
        default="24h",
        metadata=_entry(
            "duration",
            read.duration,
            "How long provenance, and content for replays, are kept, with --provenance-topic.",
        ),
    )
    provenance_retention_size: str = field(
        default="1g",
        metadata=_entry(
            "size",
            read.size,
            "Size of provenance, and size of content for replays, above which the oldest are"
            " deleted, with --provenance-topic.",
        ),
    )

    @property
    def provenance_retention_ms(self) -> int:
        """Return the retention of provenance in milliseconds."""
        return max(1, parse_duration(self.provenance_retention))

    @property
    def provenance_retention_bytes(self) -> int:
        """Return the retention of provenance in bytes."""
        return max(1, read.bytes_of(self.provenance_retention_size))

    @property
    def access_path(self) -> Path:
        """Return the absolute path of the folder of access, with its default filled in."""
        return (self.access_folder or self.data_dir / ACCESS_FOLDER).absolute()

    @property
    def topic_retention_ms(self) -> int | None:
        """Return the retention in milliseconds; None means forever."""
        return None if self.topic_retention is None else parse_duration(self.topic_retention)

    @property
    def topic_retention_bytes(self) -> int | None:
        """Return the retention in bytes; None means unlimited."""
        given = self.topic_retention_size
        return None if given is None else read.bytes_of(given)

    @property
    def worker_slots(self) -> int:
        """Return the worker's capacity, with its default filled in.

        Tasks mostly wait for the broker and for Spark, and a stream needs two slots for each task
        while it rolls over, so a small machine has more slots than cores.
        """
        return self.worker_capacity or max(4, (os.cpu_count() or 1) - 1)

    @property
    def segment_cache_bytes(self) -> int:
        """Return the size limit of the cache of segments, in bytes; 0: there is no cache."""
        return read.bytes_of(self.segment_cache_size)

    @property
    def task_bytes(self) -> int | None:
        """Return the size limit of a task's folder, in bytes; None means unlimited."""
        return None if self.task_size is None else read.bytes_of(self.task_size)

    @property
    def task_payload_bytes(self) -> int:
        """Return the size of the largest task, in bytes."""
        return read.bytes_of(self.task_payload_size)

    @property
    def task_body_bytes(self) -> int:
        """Return the size limit of a request that contains a task, in bytes, with white space."""
        return self.task_payload_bytes + (1 << 20)

    @property
    def task_logs_address(self) -> str:
        """Return the log store's URL, with its default filled in."""
        given = self.task_logs
        if given and "://" in given:
            local = local_path(given)  # fsspec does not decode it
            return given if local is None else str(local)
        return str((Path(given) if given else self.data_dir / "log" / "tasks").absolute())

    @property
    def broker_http_address(self) -> HostPort:
        """Return the address at which a broker listens for HTTP, with its default filled in."""
        return self.broker_http or HostPort("127.0.0.1", 4151)

    @property
    def broker_tcp_address(self) -> HostPort:
        """Return the address of the broker's NSQ TCP protocol, with its default filled in."""
        return self.broker_tcp or HostPort("127.0.0.1", 4150)

    @property
    def mem_bytes(self) -> int:
        """Return the broker's memory in bytes."""
        return read.bytes_of(self.mem_size)

    @property
    def metadata_address(self) -> str:
        """Return the metadata URL, with its default filled in."""
        return self.metadata_url or sqlite_url(self.data_dir.absolute() / METADATA_FILE)

    @property
    def deep_storage_address(self) -> str:
        """Return the deep storage URL, with its default filled in."""
        given = self.deep_storage
        if given and "://" in given:
            return given
        return str((Path(given) if given else self.data_dir / "segments").absolute())


def local_path(address: str) -> Path | None:
    """Return the folder of this host that a store's address names; None if it is remote."""
    if address.startswith("file://"):
        return Path(unquote(urlsplit(address).path))
    return None if "://" in address else Path(address)


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """One option, as documentation and the command line show it."""

    key: str
    field_name: str
    kind: str
    default: str
    help: str
    is_secret: bool
    """Not accepted on the command line, which every user of a host can read."""
    may_name_secret: bool
    """Whether its value may be `secret://NAME`, which each process looks up for itself."""

    @property
    def flag(self) -> str:
        """Return the option's name on the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Return the option's name in the environment."""
        return VARIABLE_PREFIX + self.field_name.upper()


def _shown(default: object) -> str:
    if default is None or default is False:
        return ""
    return ",".join(default) if isinstance(default, tuple) else str(default)


def option_entries() -> tuple[OptionEntry, ...]:
    """Return every option, in the order of the documentation."""
    return tuple(
        OptionEntry(
            key=item.name.replace("_", "-"),
            field_name=item.name,
            kind=str(item.metadata["kind"]),
            default=_shown(item.default),
            help=str(item.metadata["help"]),
            is_secret=bool(item.metadata["secret"]),
            may_name_secret=bool(item.metadata["may_name_secret"]),
        )
        for item in fields(PenstockOptions)
    )
