"""Common base of SparkSQL and SparkScript: a batch of FlowFiles is one job.

Owns the path of the records: contents into views, one Spark session per processor, results into
FlowFiles. The subclass defines the computation.

Invariant: FlowFiles are sent on only after the whole job; a lost Spark costs one attempt.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import NetworkDestination
from penstock.core.read_guard import READ_GUARD
from penstock.core.store_urls import check_store_url, store_destinations
from penstock.flow.processor import (
    ExpressionProperty,
    FlowFile,
    InputRequirement,
    Problem,
    ProcessContext,
    ProcessError,
    ProcessSession,
    Property,
    PropertyValue,
    Relationship,
    list_of,
)
from penstock.flow.processors.failure import WRITES_REASON, fail
from penstock.flow.processors.files.folders import change_problems
from penstock.flow.processors.records.base import RecordProcessor, accept_only, record_attributes
from penstock.flow.processors.records.formats.format_protocols import BadRecords, common_schema
from penstock.flow.processors.records.formats.record_formats import RecordFormat
from penstock.flow.queue.queue import FilterVerdict
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.spark.connect.connect_address import SCHEME, ConnectAddress
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.flow.service_spark import SERVICE_SPARK
from penstock.spark.flow.work_folder import WorkFolder, work_folder
from penstock.spark.sql_guard import OUTLINE_CONF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

RESULT: Final = "spark.result"
_BATCH_MAX: Final = 10_000
_LOOKED_AT_MAX: Final = 20_000
_CONF: Final[Mapping[str, str]] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Not Parquet's old timestamp type, which has no time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
    **OUTLINE_CONF,
}
_TABLE_FORMATS: Final = ("parquet", "csv", "json")
_FILE: Final = "file://"
# Hadoop reads a path with one of these characters as a pattern.
_PATTERN: Final = frozenset("*?[]{}\\")


def _table(text: str) -> tuple[str, str, str]:
    name, _, place = text.partition("=")
    kind = place.rstrip("/").rpartition(".")[2]
    kind = "json" if kind == "jsonl" else kind
    if not name.isidentifier() or kind not in _TABLE_FORMATS:
        raise InvalidRequest(
            f"invalid table {text!r}: write name=place, where the place ends with .parquet, .csv, "
            ".json or .jsonl"
        )
    return name, kind, _normal_place(place)


def _normal_place(place: str) -> str:
    """Return the place of a table as Hadoop understands it: a path of this machine, or a URL.

    Raises:
        InvalidRequest: It is relative, a pattern, or of a file system that flows must not use.
    """
    scheme, colon, rest = place.partition(":")
    is_url = bool(colon) and "/" not in scheme
    if is_url and scheme != "file":
        if not rest.startswith("//"):
            raise InvalidRequest(f"{place!r} cannot be opened: write a path, or a URL with ://")
        check_store_url(place)
        return place
    path = rest.removeprefix("//") if is_url else place
    if not path.startswith("/") or path.startswith("//"):
        raise InvalidRequest(
            f"{place!r} is not an absolute path, and Spark would look for it in its own folder: "
            "write a path from the root, or a URL"
        )
    if found := sorted(_PATTERN.intersection(path)):
        raise InvalidRequest(
            f"{place!r} contains {' '.join(found)}, which Spark reads as a pattern: name one file, "
            "or a folder of files"
        )
    # Hadoop removes `..` before it follows links.
    path = posixpath.normpath(path)
    return f"{_FILE}{path}" if is_url else path


def _check_readable(place: str) -> None:
    """Check that flows may read a table; its files are opened by Spark, without another check.

    Raises:
        InvalidRequest: It is, leads to, or contains a file that they must not read, or it is on a
            host to which they must not connect.
    """
    for destination in store_destinations(place):
        NETWORK_GUARD.check(destination)
    path = place.removeprefix(_FILE)
    if not path.startswith("/"):
        return
    reads, walked = READ_GUARD.now(), set[str]()
    reads.path(path)
    # As Spark does, this follows links to folders; each folder once, so that a loop of links ends.
    for folder, folders, files in os.walk(path, followlinks=True):
        real = reads.path(folder)
        if real in walked:
            folders.clear()
            continue
        walked.add(real)
        for name in (*folders, *files):
            reads.path(posixpath.join(folder, name))


def _check_view(name: str) -> None:
    if not name.isidentifier():
        raise InvalidRequest(f"invalid view name {name!r}: use letters, digits and _ only")


def _check_tables(texts: tuple[str, ...] | None) -> None:
    for text in texts or ():
        _table(text)


class SparkProcessor(RecordProcessor):
    """Base of processors that run one Spark job over the contents of a batch of FlowFiles."""

    input = InputRequirement.REQUIRED
    # Views belong to the processor's Spark session.
    triggers_serially = True
    reads_attributes: ClassVar[Mapping[str, str]] = {"of the view": "Attributes named by `view`."}
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "Type of the result.",
        "record.count": "Number of records of the result.",
        RESULT: "Name of the result.",
        **WRITES_REASON,
    }

    output_format = Property(
        RecordFormat, about="Format of results; default: the format of the input."
    )
    view = ExpressionProperty(
        str,
        default="input",
        validator=_check_view,
        about="Name of the view with a FlowFile's records.",
    )
    tables = Property(
        list_of(str),
        validator=_check_tables,
        about="Further views of files that Spark reads, as name=place: .parquet, .csv with a "
        "header, .json or .jsonl, a file or a folder, by an absolute path or a URL.",
    )
    needs = Property(
        list_of(str),
        default="",
        about="Views that a job waits for: it runs once each of them has a FlowFile.",
    )
    max_flowfiles = Property(
        int, default=100, about="Maximum number of FlowFiles of one job for a view."
    )
    send_empty = Property(
        bool, default=True, about="Whether a result without records becomes a FlowFile."
    )
    spark = Property(
        str,
        sensitive=True,
        about="Address of Spark: sc://host:port, or local[2] for a Spark with two cores that this "
        "service starts; default: the service's. Processors of one service use Connect addresses "
        "or local[N], not both.",
    )
    work_folder = Property(
        Path,
        about="Folder of files for Spark, which must see them as the same user. Default: in the "
        "data folder of the service.",
    )

    original = Relationship("The input FlowFiles of a successful job.")
    failure = Relationship("The content cannot be read, or Spark refuses the job itself.")

    def __init__(self, /, **properties: PropertyValue) -> None:
        super().__init__(**properties)
        self._sessions: SparkSessions | None = None

    def check(self) -> Iterator[Problem]:
        """Yield problems between properties."""
        if self.spark:
            try:
                SparkSessionOptions(self.spark)
            except InvalidRequest as error:
                yield Problem("spark", str(error))
        if self.work_folder is not None:
            yield from change_problems("work_folder", str(self.work_folder))
        for text in self.tables or ():
            try:
                _check_readable(_table(text)[2])
            except InvalidRequest as error:
                yield Problem("tables", str(error))
        if not 1 <= self.max_flowfiles <= _BATCH_MAX:
            yield Problem("max_flowfiles", f"must be from 1 to {_BATCH_MAX:,}")

    @contextlib.contextmanager
    def views(self, spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
        """Define the views of a job for a block."""
        try:
            for name, frame in frames.items():
                frame.createOrReplaceTempView(name)
            yield
        finally:
            for name in frames:
                spark.catalog.dropTempView(name)

    @abstractmethod
    def results(
        self, spark: SparkSession, frames: Mapping[str, DataFrame]
    ) -> Mapping[str, DataFrame]:
        """Return the results to compute, by relationship; the views are defined.

        Raises:
            ProcessError: The results cannot be computed.
        """

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: ARG002
        """Store the address of Spark, which is used only when there is work.

        Raises:
            InvalidRequest: The address is missing, flows must not connect to it, or this process
                uses the other kind of Spark.
        """
        if self.spark and self.spark.startswith(SCHEME):
            address = ConnectAddress.parse(self.spark)
            NETWORK_GUARD.check(NetworkDestination("sc", address.host, address.port))
        options = SparkSessionOptions(
            self.spark or SERVICE_SPARK.address(),
            "penstock-flow",
            _CONF,
            gets_environment_token=not self.spark,
        )
        sessions = SparkSessions(options)
        sessions.reserve()
        self._sessions = sessions

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: ARG002
        """End the Spark session."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Run one job."""
        views = self._views(context, session)
        if not views or not self._is_connected(context, session):
            return
        own = self.work_folder
        folder = work_folder(own or SERVICE_SPARK.work_folder, is_ours=own is None)
        with folder as work:
            urls = self._written(context, session, views, work)
            readable = [flowfile for given in views.values() for flowfile in given]
            if not readable:
                return
            try:
                names = self._compute(urls, work)
                self._deliver(session, readable, names, work)
            except EngineUnavailable as error:
                context.log.warning("%s: the job will be retried", error)
                # The job may be the cause of Spark's failure, so others come first.
                session.rollback(penalize=True)
                context.report_unavailable(error)
                context.yield_()
            except (EngineFailure, ProcessError) as error:
                for flowfile in readable:
                    fail(context, session, flowfile, self.failure, error)

    def _is_connected(self, context: ProcessContext, session: ProcessSession) -> bool:
        """Check that Spark answers; otherwise return all FlowFiles, which are not the cause."""
        try:
            self._reached().get()
        except EngineUnavailable as error:
            context.log.warning("%s: the job will be retried", error)
            session.rollback()
            context.report_unavailable(error)
            context.yield_()
            return False
        return True

    def _reached(self) -> SparkSessions:
        if self._sessions is None:
            raise AssertionError("on_trigger was called before on_scheduled")
        return self._sessions

    def _views(self, context: ProcessContext, session: ProcessSession) -> dict[str, list[FlowFile]]:
        """Take the FlowFiles of one job, by view; none if a required view has no FlowFile."""
        now_ms = context.clock.now_ms()
        names: dict[int, str] = {}
        reasons: dict[int, ProcessError] = {}
        counts: Counter[str] = Counter()

        def look(flowfile: FlowFile) -> FilterVerdict:
            try:
                name = self.view.of(flowfile, now_ms=now_ms)
            except ProcessError as error:
                reasons[flowfile.id] = error
            else:
                if counts[name] < self.max_flowfiles:
                    counts[name] += 1
                    names[flowfile.id] = name
            seen = len(names) + len(reasons)
            return FilterVerdict.REJECT_AND_STOP if seen >= _LOOKED_AT_MAX else FilterVerdict.REJECT

        session.get_where(look)
        ready = counts.keys() >= set(self.needs)
        wanted = reasons.keys() | (names.keys() if ready else set())
        if names and not ready:
            context.yield_()
        if not wanted:
            return {}
        views: dict[str, list[FlowFile]] = {}
        for flowfile in session.get_where(accept_only(wanted)):
            if flowfile.id in reasons:
                fail(context, session, flowfile, self.failure, reasons[flowfile.id])
            else:
                views.setdefault(names[flowfile.id], []).append(flowfile)
        return views

    def _written(
        self,
        context: ProcessContext,
        session: ProcessSession,
        views: dict[str, list[FlowFile]],
        work: WorkFolder,
    ) -> dict[str, list[str]]:
        """Write all contents for Spark, by view; unreadable ones fail and leave `views`."""
        urls: dict[str, list[str]] = {}
        for name, flowfiles in list(views.items()):
            good: list[FlowFile] = []
            schema, alike = self._common(context, session, flowfiles)
            options = replace(self.reading_options(), schema=schema)
            for flowfile in alike:
                try:
                    url = work.add(self.records(session, flowfile, options))
                except BadRecords as error:
                    fail(context, session, flowfile, self.failure, error)
                else:
                    good.append(flowfile)
                    urls.setdefault(name, []).append(url)
            views[name] = good
        return urls

    def _common(
        self, context: ProcessContext, session: ProcessSession, flowfiles: list[FlowFile]
    ) -> tuple[pa.Schema | None, list[FlowFile]]:
        """Return the common schema of all readable FlowFiles, and these FlowFiles."""
        if self.schema is not None:
            return self.schema, flowfiles
        found: list[tuple[FlowFile, pa.Schema]] = []
        for flowfile in flowfiles:
            try:
                found.append(
                    (flowfile, self.records(session, flowfile, self.reading_options()).schema)
                )
            except BadRecords as error:
                fail(context, session, flowfile, self.failure, error)
        readable = [flowfile for flowfile, _ in found]
        try:
            schema = _fields([schema for _, schema in found])
        except BadRecords as error:
            for flowfile in readable:
                fail(context, session, flowfile, self.failure, error)
            return None, []
        return schema, readable

    def _compute(self, urls: Mapping[str, list[str]], work: WorkFolder) -> list[str]:
        """Run the job; return the names of its results, ordered by their numbers."""
        with self._reached().use() as spark:
            frames = {name: spark.read.parquet(*files) for name, files in urls.items()}
            for text in self.tables or ():
                name, kind, place = _table(text)
                try:
                    _check_readable(place)
                    frames[name] = _read(spark, kind, place)
                except InvalidRequest as error:
                    raise ProcessError(f"tables: {error}") from error
            with self.views(spark, frames):
                results = self.results(spark, frames)
                for number, frame in enumerate(results.values()):
                    frame.write.parquet(work.output_url(number))
            return list(results)

    def _deliver(
        self, session: ProcessSession, flowfiles: list[FlowFile], names: list[str], work: WorkFolder
    ) -> None:
        target = self.output_format or self.input_format
        made: list[tuple[FlowFile, str, int]] = []
        try:
            for number, name in enumerate(names):
                result, count = session.create(flowfiles), 0
                made.append((result, name, 0))
                records = work.output(number)
                with session.write(result) as out:
                    writer = self.writer(target, out, records.schema)
                    for batch in records.batches:
                        writer.write(batch)
                        count += batch.num_rows
                    writer.close()
                made[-1] = (result, name, count)
        except BaseException:
            session.remove([result for result, _, _ in made])
            raise
        for result, name, count in made:
            if not count and not self.send_empty:
                session.remove(result)
                continue
            session.put_attributes(result, {**record_attributes(target, count), RESULT: name})
            session.transfer(result, name)
        session.transfer(flowfiles, self.original)


def _fields(schemas: list[pa.Schema]) -> pa.Schema:
    schema = common_schema(schemas) if schemas else pa.schema([])
    if schemas and not len(schema):
        raise BadRecords("there are no records, so no fields are known: set a schema")
    return schema


def _read(spark: SparkSession, kind: str, place: str) -> DataFrame:
    if kind == "csv":
        return spark.read.csv(place, header=True, inferSchema=True)
    if kind == "json":
        return spark.read.json(place)
    return spark.read.schema(_plain(spark.read.parquet(place).schema)).parquet(place)


def _plain(schema: StructType) -> StructType:
    """Return a schema without the metadata of its fields.

    Spark reads metadata from the footers of files, and evaluates the default values in it.
    """
    # As everywhere, PySpark is imported once there is a session.
    from pyspark.sql.types import (  # noqa: PLC0415
        ArrayType,
        DataType,
        MapType,
        StructField,
        StructType,
    )

    def struct(given: StructType) -> StructType:
        return StructType(
            [StructField(one.name, plain(one.dataType), one.nullable) for one in given.fields]
        )

    def plain(kind: DataType) -> DataType:
        match kind:
            case StructType():
                return struct(kind)
            case ArrayType():
                return ArrayType(plain(kind.elementType), kind.containsNull)
            case MapType():
                return MapType(plain(kind.keyType), plain(kind.valueType), kind.valueContainsNull)
            case _:
                return kind

    return struct(schema)
