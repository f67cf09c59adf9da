"""`penstock doctor`: checks of this machine, each with a remedy for its findings.

Owns the checks. They change nothing, except that one writes a file in the data folder and removes
it, and the last one starts Spark in a temporary folder there and stops it.
"""

from __future__ import annotations

import enum
import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.credentials import CredentialFile
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, counted
from penstock.core.host_memory import total_memory_bytes
from penstock.core.intervals import format_time, parse_time
from penstock.core.tls_trust import ROLES
from penstock.services.host.data_folder import FORMAT, FORMAT_FILE, DataFolder, check_path
from penstock.services.host.host_plan import spark_cache_folder, trial_options
from penstock.services.host.memory import query_spark
from penstock.services.host.process import listen
from penstock.services.host.query_isolation import Isolation, isolation_for_doctor
from penstock.services.host.tls_settings import tls_folder
from penstock.services.json_client import JsonClient
from penstock.services.json_values import part
from penstock.services.options.option_values import HostPort
from penstock.services.options.resolution import with_secrets
from penstock.services.options.table import PenstockOptions
from penstock.spark.connect.connect_address import shown
from penstock.spark.connect.java import REMEDY, find_java
from penstock.storage.secrets.secret_sources import Secrets

DISK_FREE_BYTES_MIN = 2 << 30
MEMORY_BYTES_MIN = 4 << 30
PYSPARK_VERSION = "4.3"
# Time limit for a JVM on a slow, busy machine.
SPARK_START_S = 120.0
_ANSWER_S = 10.0
# The clock of a machine that runs this release cannot correctly be in an earlier year.
RELEASED_MS = parse_time("2026-01-01T00:00:00Z")


class DoctorVerdict(enum.Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warn"
    FAILED = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check; `remedy` is empty if the verdict is OK."""

    subject: str
    verdict: DoctorVerdict
    text: str
    remedy: str = ""

    @property
    def passes(self) -> bool:
        """Return whether Penstock can run with it."""
        return self.verdict is not DoctorVerdict.FAILED

    def to_json(self) -> dict[str, str]:
        """Return its fields."""
        return {
            "subject": self.subject,
            "verdict": self.verdict.name.lower(),
            "text": self.text,
            "mend": self.remedy,
        }


def examine(
    options: PenstockOptions,
    environment: Mapping[str, str],
    clock: Clock,
    token_for: Callable[[str], str | None] | None = None,
) -> Iterator[Finding]:
    """Run every check, and yield each finding before the next check begins.

    Args:
        options: The options of this Penstock.
        environment: Variables.
        clock: Time.
        token_for: Returns the token to send to the server at a URL; None: the option.
    """
    running: Mapping[str, object] | None = None
    unreadable: list[Finding] = []
    secrets = Secrets(DataFolder(options.data_dir.absolute()).secrets, environment, clock=clock)
    try:
        options = with_secrets(options, secrets)
    except PenstockError as error:
        text, _, remedy = str(error).rpartition(": ")
        unreadable.append(Finding("secrets", DoctorVerdict.FAILED, text, remedy))
    try:
        running = DataFolder(options.data_dir).read_client_file()
    except PenstockError as error:
        text, _, remedy = str(error).rpartition(": ")
        unreadable.append(Finding("server", DoctorVerdict.FAILED, text, remedy))
    # A broker that runs alone stores topics and needs no metadata.
    is_broker_alone = running is not None and "http" not in running
    needs_metadata = options.metadata_url is None and not is_broker_alone
    checks: list[Callable[[], Finding]] = [
        _python,
        lambda: _java(options, environment),
        _pyspark,
        _arrow,
        lambda: _memory(Path("/proc/meminfo")),
        lambda: _queries(options, total_memory_bytes()),
        lambda: _isolation(options, environment),
        lambda: _data_folder(options, needs_metadata=needs_metadata),
        lambda: _disk(options),
        lambda: _time(clock),
        lambda: _access(options, clock),
    ]
    if tls_folder(options).exists():
        checks.append(lambda: _certificate(options, clock))
    if running is not None:
        if "http" in running:
            api = str(running.get("http"))
            checks.append(lambda: _server(api, token_for(api) if token_for else options.token))
        else:
            url = running.get("broker_http")
            checks.append(
                lambda: Finding("server", DoctorVerdict.OK, f"only a broker runs at {url}")
            )
    elif not unreadable:
        checks.append(lambda: _port(options.http, "--http"))
        checks.append(lambda: _port(options.broker_http_address, "--broker-http"))
        checks.append(lambda: _port(options.broker_tcp_address, "--broker-tcp"))
    needed: list[Finding] = []
    for check in checks:
        finding = check()
        yield finding
        # A port that is in use does not prevent the start of Spark.
        if not finding.subject.startswith("port "):
            needed.append(finding)
    yield from unreadable
    if running is None and not unreadable and not options.spark_connect:
        yield _start_of_spark(options, environment, clock, needed)


def _certificate(options: PenstockOptions, clock: Clock) -> Finding:
    """Check the certificate of `penstock tls init`."""
    # Imported here, because its library is large.
    from penstock.services.host.tls_authority import TlsAuthority  # noqa: PLC0415

    authority = TlsAuthority(tls_folder(options), clock)
    # The one that expires first.
    has = [one for one in map(authority.current, ("", *ROLES)) if one is not None]
    found = min(has, key=lambda one: one.expires_ms, default=None)
    if found is None:
        text = f"{authority.folder} has no certificate"
        return Finding("certificate", DoctorVerdict.WARNING, text, "run penstock tls init")
    text = f"for {', '.join(found.names)} until {format_time(found.expires_ms)}"
    if found.expires_ms <= clock.now_ms():
        verdict = DoctorVerdict.WARNING if authority.can_issue else DoctorVerdict.FAILED
        remedy = "run penstock tls renew where the authority's key is"
        return Finding("certificate", verdict, f"expired: {text}", remedy)
    if found.is_due(clock.now_ms()) and not authority.can_issue:
        text += ", and it cannot be renewed without the authority's key"
        remedy = "renew it where the key is, and copy its files from the folder tls"
        return Finding("certificate", DoctorVerdict.WARNING, text, remedy)
    return Finding("certificate", DoctorVerdict.OK, text)


def _server(url: str, token: str | None) -> Finding:
    """Check whether all processes of a running Penstock are ready."""
    try:
        answer = JsonClient(url, token=token, timeout_s=_ANSWER_S).get("/status")
    except PenstockError as error:
        text = f"running at {url}, but it does not answer: {error}"
        return Finding(
            "server", DoctorVerdict.FAILED, text, "read log/router.log and log/router.out"
        )
    text = f"running at {url}; the ports were not checked"
    if part(answer, "ready") is not False:
        return Finding("server", DoctorVerdict.OK, text)
    reasons = part(answer, "reasons")
    listed = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    remedy = "make the named dependencies available; Penstock retries by itself"
    return Finding(
        "server", DoctorVerdict.FAILED, f"running at {url}, but not ready: {listed}", remedy
    )


def _access(options: PenstockOptions, clock: Clock) -> Finding:
    """Check the files of users, tokens and roles."""
    folder = AccessFolder(options.access_path)
    try:
        policy = folder.read_rules()
        credentials = CredentialFile(folder.credentials, clock).read()
    except PenstockError as error:
        text, _, remedy = str(error).rpartition(": ")
        return Finding("access", DoctorVerdict.FAILED, text, remedy)
    counts = (
        counted(len(credentials.users), "user"),
        counted(len(credentials.tokens), "token"),
        counted(len(policy.own_roles), "role"),
    )
    text = ", ".join(counts)
    if not credentials.users and not credentials.tokens and not folder.rules.exists():
        text = "not configured: only the user who runs Penstock is let in, on this host"
    return Finding("access", DoctorVerdict.OK, text)


def _python() -> Finding:
    text = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", DoctorVerdict.OK, text)


def _java(options: PenstockOptions, environment: Mapping[str, str]) -> Finding:
    if options.spark_connect:
        place = shown(options.spark_connect)
        return Finding("Java", DoctorVerdict.OK, f"not needed: Spark is at {place}")
    with tempfile.TemporaryDirectory(prefix="penstock-doctor-") as shim:
        try:
            java = find_java(environment, Path(shim))
        except PenstockError as error:
            return Finding(
                "Java", DoctorVerdict.FAILED, str(error).removesuffix(f": {REMEDY}"), REMEDY
            )
    return Finding(
        "Java", DoctorVerdict.OK, f"{java.release} from {java.origin} ({java.executable})"
    )


def _start_of_spark(
    options: PenstockOptions,
    environment: Mapping[str, str],
    clock: Clock,
    before: Sequence[Finding],
) -> Finding:
    """Start Spark as `penstock up` does, in a temporary folder next to the data folder.

    The class archive, which halves the time of later starts, is created here if it is missing.
    If Penstock created it when it stops, the user would have to wait.
    """
    subject = "Spark starts"
    if not all(finding.passes for finding in before):
        text = "not tried, because another check failed"
        return Finding(
            subject,
            DoctorVerdict.WARNING,
            text,
            "fix the failed check, then run this command again",
        )
    # Imported here, because a remote Spark needs none of this.
    from penstock.spark.connect.spark_server import SparkServer, prepare_spark  # noqa: PLC0415

    path = options.data_dir.absolute()
    parent = path if path.exists() else _existing_parent(path)
    began_s = clock.monotonic_s()
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".penstock-doctor-") as folder:
            trial = trial_options(Path(folder) / path.name, options, environment)
            server = SparkServer(trial, clock, environment)
            try:
                server.start()
                server.wait_ready(SPARK_START_S)
            finally:
                server.stop(0.0)
    except (PenstockError, OSError) as error:
        remedy = (
            "fix the named problem; penstock.toml and PENSTOCK_SPARK_… set how Spark is started"
        )
        return Finding(subject, DoctorVerdict.FAILED, str(error), remedy)
    text = f"after {clock.monotonic_s() - began_s:.1f} s"
    try:
        if prepare_spark(spark_cache_folder(environment), environment, clock):
            text += "; its class archive was created, so later starts take half the time"
    except (PenstockError, OSError) as error:
        text += f"; later starts take as long, because its class archive cannot be created: {error}"
    return Finding(subject, DoctorVerdict.OK, text)


def _pyspark() -> Finding:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "Spark", DoctorVerdict.FAILED, "pyspark is not installed", "pip install penstock-io"
        )
    if not version.startswith(PYSPARK_VERSION):
        return Finding(
            "Spark",
            DoctorVerdict.FAILED,
            f"pyspark {version} is not {PYSPARK_VERSION}",
            f"pip install 'pyspark[connect]=={PYSPARK_VERSION}.0'",
        )
    files = importlib.metadata.files("pyspark") or []
    if not any(file.name.startswith("spark-connect_") for file in files):
        return Finding(
            "Spark",
            DoctorVerdict.FAILED,
            f"pyspark {version} lacks its Connect server",
            f"pip install --force-reinstall 'pyspark[connect]=={version}'",
        )
    return Finding("Spark", DoctorVerdict.OK, f"pyspark {version} with its Connect server")


def _arrow() -> Finding:
    missing = [name for name in ("pyarrow", "pandas", "grpcio") if _version(name) is None]
    if missing:
        names = ", ".join(missing)
        return Finding(
            "packages", DoctorVerdict.FAILED, f"not installed: {names}", "pip install penstock-io"
        )
    if (_version("pandas") or "").startswith("3"):
        return Finding(
            "packages",
            DoctorVerdict.FAILED,
            "pandas 3 does not work with PySpark",
            "pip install 'pandas<3'",
        )
    return Finding("packages", DoctorVerdict.OK, f"pyarrow {_version('pyarrow')}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory(meminfo: Path) -> Finding:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return Finding("memory", DoctorVerdict.WARNING, "unknown: this system does not report it")
    text = f"{free / (1 << 30):.1f} GiB available"
    if free < MEMORY_BYTES_MIN:
        return Finding(
            "memory",
            DoctorVerdict.WARNING,
            f"{text}; Spark and its workers need {MEMORY_BYTES_MIN >> 30} GiB",
            "close other programs, or start with --spark-memory 1g",
        )
    return Finding("memory", DoctorVerdict.OK, text)


def _queries(options: PenstockOptions, total_bytes: int | None) -> Finding:
    found = query_spark(options, total_bytes)
    if found.is_warning:
        remedy = (
            "lower --spark-memory, or set --query-memory 1g anyway; otherwise a query can end the"
            " Spark of the tasks"
        )
        return Finding("queries", DoctorVerdict.WARNING, found.reason, remedy)
    return Finding("queries", DoctorVerdict.OK, found.reason)


def _isolation(options: PenstockOptions, environment: Mapping[str, str]) -> Finding:
    subject = "isolation"
    if query_spark(options, total_memory_bytes()).memory is None:
        text = "queries have no local Spark of their own, so they are not isolated"
        return Finding(subject, DoctorVerdict.OK, text)
    path = options.data_dir.absolute()
    parent = path if path.exists() else _existing_parent(path)
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".penstock-doctor-") as name:
            found = isolation_for_doctor(
                options, DataFolder(Path(name) / "data"), spark_cache_folder(environment)
            )
    except OSError as error:
        found = Isolation(None, f"{error.filename}: {error.strerror}")
    if found.plan is not None:
        return Finding(subject, DoctorVerdict.OK, found.text)
    text = f"queries are not isolated: {found.text}"
    if os.geteuid():
        return Finding(subject, DoctorVerdict.OK, text)
    remedy = "run Penstock as a user of its own; the manual has the conditions of isolation"
    return Finding(subject, DoctorVerdict.WARNING, text, remedy)


def _data_folder(options: PenstockOptions, *, needs_metadata: bool) -> Finding:
    subject = "data folder"
    path = options.data_dir.absolute()
    try:
        check_path(path, "--data-dir")
    except PenstockError as error:
        text, _, remedy = str(error).rpartition(": ")
        return Finding(subject, DoctorVerdict.FAILED, text, remedy)
    remedy = "give this user write permission, or name another folder with --data-dir"
    probe = path if path.exists() else _existing_parent(path)
    if not probe.is_dir():
        return Finding(subject, DoctorVerdict.FAILED, f"{probe} is not a folder", remedy)
    folder = DataFolder(path)
    try:
        folder.check()
        if needs_metadata:
            folder.require_metadata()
    except PenstockError as error:
        refused = "do what the message says: penstock up refuses the folder until then"
        return Finding(subject, DoctorVerdict.FAILED, str(error), refused)
    try:
        # Write a file, because permission bits do not show a read-only mount.
        with tempfile.TemporaryFile(dir=probe):  # has no name, so no file can be left behind
            pass
    except OSError as error:
        text = f"{probe} cannot be written: {error.strerror}"
        return Finding(subject, DoctorVerdict.FAILED, text, remedy)
    if not path.exists():
        return Finding(subject, DoctorVerdict.OK, f"{path} will be created")
    if not (path / FORMAT_FILE).exists():
        return Finding(
            subject, DoctorVerdict.OK, f"{path} is empty; penstock up will make it a data folder"
        )
    return Finding(subject, DoctorVerdict.OK, f"{path}, format {FORMAT}")


def _existing_parent(path: Path) -> Path:
    return next((parent for parent in path.parents if parent.exists()), Path("/"))


def _disk(options: PenstockOptions) -> Finding:
    path = options.data_dir.absolute()
    free = shutil.disk_usage(path if path.exists() else _existing_parent(path)).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < DISK_FREE_BYTES_MIN:
        return Finding(
            "disk",
            DoctorVerdict.WARNING,
            f"{text}; publishing stops when the disk is nearly full",
            "free disk space, or use a data folder on another disk with --data-dir",
        )
    return Finding("disk", DoctorVerdict.OK, text)


def _time(clock: Clock) -> Finding:
    now_ms = clock.now_ms()
    text = format_time(now_ms)
    if now_ms < RELEASED_MS:
        return Finding(
            "time",
            DoctorVerdict.FAILED,
            f"the clock shows {text}, which is before the release of this version",
            "set the clock: timedatectl set-ntp true",
        )
    return Finding("time", DoctorVerdict.OK, text)


def _port(address: HostPort, option: str) -> Finding:
    subject = f"port {address.port}"
    try:
        listen(address, option).close()
    except PenstockError as error:
        text, _, remedy = str(error).partition("; ")  # the problem; the remedy
        return Finding(subject, DoctorVerdict.FAILED, text, remedy)
    return Finding(subject, DoctorVerdict.OK, f"{address} is free")
