"""Settings of the Spark Connect server: of Spark, its log, its scheduler and the JVM.

Generates text only: `spark_server` writes the files and starts the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.spark.connect.unstoppable_work import STUCK_CONF, stuck_file, stuck_log_conf

SERVER_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
PYTHON_DAEMON: Final = "penstock.spark.connect.python_daemon"
STANDALONE: Final = "spark://"
LOCAL_CLUSTER: Final = "local-cluster["
# Masters that generate no secret by themselves; a standalone cluster's operator sets it.
NEEDS_SECRET: Final = (STANDALONE, LOCAL_CLUSTER)
SUBMIT_CLASS: Final = "org.apache.spark.deploy.SparkSubmit"

# Spark accesses these packages of the JDK by reflection. Its launcher, a separate JVM that Penstock
# does not use, would set these options.
_OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_LOG_BYTES_MAX: Final = "16MB"
# Several times the size that a day of streams and queries needs.
_METASPACE_MAX: Final = "512m"

SCHEDULER_POOLS: Final = """<?xml version="1.0"?>
<!-- All jobs share the cores: a query does not wait for the end of an indexing job. -->
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""


def jvm_options(memory: str, temp_folder: Path, log_conf: Path, java_version: int) -> list[str]:
    """Return the options of the JVM."""
    options = [
        f"-Xmx{memory}",
        f"-XX:MaxMetaspaceSize={_METASPACE_MAX}",
        # The heap follows the used memory: by default a JVM that is never idle grows to the maximum
        # and stays there, as its young collections find enough room. Spark's periodic collection
        # (`spark.cleaner.periodicGC.interval`) is a full one, after which unused memory is
        # returned; a concurrent one would count garbage of the young generation as used.
        "-XX:MinHeapFreeRatio=20",
        "-XX:MaxHeapFreeRatio=50",
        # A JVM that has run out of memory cannot continue; it is restarted and work is retried.
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.net.preferIPv6Addresses=false",
        f"-Djava.io.tmpdir={temp_folder}",
        f"-Dlog4j2.configurationFile={log_conf.as_uri()}",
        "-Dio.netty.tryReflectionSetAccessible=true",
        # XML in SQL functions must not make the JVM open files or URLs.
        *(f"-Djavax.xml.accessExternal{kind}=" for kind in ("DTD", "Schema", "Stylesheet")),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    ]
    if java_version >= 24:
        options += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    return options


def spark_conf(
    *, host: str, port: int, master: str, cores: int, temp_folder: Path, pools: Path
) -> dict[str, str]:
    """Return the settings of Spark."""
    return {
        "spark.app.name": "penstock",
        "spark.master": with_retries(master),
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
        # There are few sessions, so idle ones are kept; a lost session is created again.
        "spark.connect.session.manager.defaultSessionTimeout": "24h",
        # Ids of ended operations become free at once: see `running_calls`.
        "spark.connect.execute.manager.abandonedTombstonesSize": "0",
        "spark.connect.session.inactiveOperations.cacheExpiration": "0",
        **STUCK_CONF,
        # Releases shuffle files and broadcasts of ended work, and memory: see `jvm_options`. Spark
        # could delete shuffle files when a query ends (`spark.sql.connect.shuffleDependency
        # .fileCleanup.enabled`), but computes what a cancelled query did not reach to find them.
        "spark.cleaner.periodicGC.interval": "5min",
        # Spark's cache of file listings is keyed by query, so no other query reads its entries,
        # and it would only grow, up to 250 MB.
        "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The JVM's own folder is the temporary one. A path would be split at each comma.
        "spark.local.dir": ".",
        "spark.sql.warehouse.dir": str(temp_folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.scheduler.mode": "FAIR",
        # Hadoop does not decode percent signs in the text of a path.
        "spark.scheduler.allocation.file": hadoop_path(pools),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.variable.substitute": "false",
        "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Files are listed individually in the metadata: no job only to list them.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.daemon.module": PYTHON_DAEMON,
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


def authentication(master: str, secret: str) -> dict[str, str]:
    """Return the settings by which Spark's own ports refuse clients without a secret.

    The ports of the driver's RPC and of its blocks would otherwise deserialize objects of any user
    of the host. Local mode generates a new secret in memory at each start, and so do YARN and
    Kubernetes; the operator sets the secret of a standalone cluster.

    Args:
        master: The Spark master.
        secret: Secret of a standalone cluster; empty for other masters.
    """
    conf = {
        "spark.authenticate": "true",
        # Handshake and encryption of the newer protocol, for RPC and blocks between processes. An
        # attacker between them could ask for the older one, SASL, which does not encrypt.
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.saslFallback": "false",
    }
    if not master.startswith("local"):
        # Shuffle files and spilled blocks are on disks of other hosts.
        conf["spark.io.encryption.enabled"] = "true"
        conf["spark.io.encryption.keySizeBits"] = "256"
    if secret:
        conf["spark.authenticate.secret"] = secret
    return conf


def python_sockets(master: str) -> dict[str, str]:
    """Return the settings by which a local Spark and its Python workers talk over Unix sockets.

    A TCP port starts a process for each connection, and reads up to 2 GB before it compares the
    secret, so any user of the host could exhaust processes and memory. On a Unix socket Spark
    requires no secret, so its folder must be accessible only for this user. The folder is the JVM's
    working folder, which its daemons inherit, because a path could exceed the socket's 107 bytes.

    Args:
        master: The Spark master. Executors of a cluster have their own working folders.
    """
    if not master.startswith("local"):
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": ".",
    }


def with_retries(master: str) -> str:
    """Let a local master retry failed tasks, as clusters do.

    Otherwise the loss of one Python worker process fails the whole job.
    """
    match = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{match[1] or 1}, 4]" if match else master


def hadoop_path(path: Path) -> str:
    """Return a local path in the form that Hadoop reads: the unescaped path with a scheme."""
    return f"file://{path.absolute()}"


def properties(conf: Mapping[str, str]) -> str:
    """Return settings as the text of a properties file."""

    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n")

    return "".join(f"{key} {escaped(value)}\n" for key, value in sorted(conf.items()))


def log_value(path: Path) -> str:
    """Return a path as a value of a logging configuration.

    Log4j reads the file as ISO 8859-1, with the escapes of Java's properties.
    """
    units = str(path).replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


def log_conf(log_folder: Path, run_folder: Path) -> str:
    """Return the logging configuration: warnings, to a file that is rolled by size."""
    folder = log_value(log_folder)
    return f"""{stuck_log_conf(log_value(stuck_file(run_folder)))}status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.filePattern = {folder.replace("%", "%%")}/spark.%i.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSXX}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {_LOG_BYTES_MAX}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
# A query that needs no further rows ends its Python worker; that is not logged.
logger.python.name = org.apache.spark.api.python
logger.python.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.window.name = org.apache.spark.sql.execution.window
logger.window.level = error
"""
