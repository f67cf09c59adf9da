"""The tables as this release reads and writes them.

`migrations` creates the tables of the database; a test compares the two. Intervals are two columns
of milliseconds, payloads are JSON text.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, Table, Text

tables = MetaData()

format_table = Table(
    "penstock_format",
    tables,
    Column("id", Integer, primary_key=True),
    Column("number", Integer, nullable=False),
)

# One row. A transaction that changes visible data updates it first, so that writers take turns.
revision = Table(
    "penstock_revision",
    tables,
    Column("id", Integer, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("segments_revision", BigInteger, nullable=False),
)

tasks = Table(
    "penstock_tasks",
    tables,
    Column("id", Text, primary_key=True),
    Column("datasource", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("active", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("payload", Text, nullable=False),
)

supervisors = Table(
    "penstock_supervisors",
    tables,
    Column("id", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("tombstone", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    # For a tombstone: the supervisor has ended, and the source retains no messages for it.
    Column("released", Boolean, nullable=False),
)

offsets = Table(
    "penstock_offsets",
    tables,
    Column("supervisor_id", Text, primary_key=True),
    Column("offsets", Text, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("topic_id", Text, nullable=False),
)

counts = Table(
    "penstock_counts",
    tables,
    Column("supervisor_id", Text, primary_key=True),
    Column("processed", BigInteger, nullable=False),
    Column("unparseable", BigInteger, nullable=False),
    Column("thrown_away_late", BigInteger, nullable=False),
    Column("thrown_away_early", BigInteger, nullable=False),
    Column("thrown_away_filtered", BigInteger, nullable=False),
    Column("dead_letters", BigInteger, nullable=False),
)

segments = Table(
    "penstock_segments",
    tables,
    Column("id", Text, primary_key=True),
    Column("datasource", Text, nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("version", Text, nullable=False),
    Column("partition_number", Integer, nullable=False),
    Column("core_partitions", Integer, nullable=False),
    Column("used", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_changed_ms", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    # For a copy: the first segment that had the file; empty in that one itself.
    Column("upgraded_from", Text, nullable=False),
    # A revision that no reader had seen when the row was inserted, or last marked.
    Column("changed_revision", BigInteger, nullable=False),
    # The publish that wrote the rows, also for a copy; 0 if it was not recorded.
    Column("publish_id", BigInteger, nullable=False),
    # As in the payload, 0 if it has none. An index has them with all that sums are grouped by.
    Column("bytes", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
)

# Revisions [from, to) at which a segment was used before it was marked unused. At later revisions
# the row of the segment says it.
used_periods = Table(
    "penstock_used_periods",
    tables,
    Column("segment_id", Text, primary_key=True),
    Column("from_revision", BigInteger, primary_key=True),
    Column("to_revision", BigInteger, nullable=False),
    Column("datasource", Text, nullable=False),
)

# The oldest revision whose used segments are known: segments that were used before are killed. The
# empty name stands for all datasources.
oldest_revisions = Table(
    "penstock_oldest_revisions",
    tables,
    Column("datasource", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)

pending = Table(
    "penstock_pending",
    tables,
    Column("datasource", Text, primary_key=True),
    Column("start_ms", BigInteger, primary_key=True),
    Column("end_ms", BigInteger, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("partition_number", Integer, primary_key=True),
    Column("core_partitions", Integer, nullable=False),
    Column("sequence_name", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("previous_id", Text, nullable=False),
    Column("allocator_id", Text, nullable=False),
    Column("upgraded_from", Text, nullable=False),
)

# The highest number of a killed segment of each chunk: its id is never allocated again, because the
# deletion of its file may still be running.
killed = Table(
    "penstock_killed",
    tables,
    Column("datasource", Text, primary_key=True),
    Column("start_ms", BigInteger, primary_key=True),
    Column("end_ms", BigInteger, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("partition_number", Integer, nullable=False),
)

# Segments that were appended within the REPLACE lock of a task which has not committed yet: its
# commit lists them again under its version.
upgrades = Table(
    "penstock_upgrades",
    tables,
    Column("task_id", Text, primary_key=True),
    Column("segment_id", Text, primary_key=True),
    Column("version", Text, nullable=False),
)

announced = Table(
    "penstock_announced",
    tables,
    Column("task_id", Text, primary_key=True),
    Column("datasource", Text, primary_key=True),
    Column("sequence_name", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    # Empty if unknown.
    Column("reading", Text, nullable=False),
    # Id of the task root that `path` is relative to; empty if `path` is absolute.
    Column("root", Text, nullable=False),
)

# Current paths of the folders of tasks; a worker stores its own each time it starts.
task_roots = Table(
    "penstock_task_roots",
    tables,
    Column("id", Text, primary_key=True),
    Column("path", Text, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)

# Sequences that were published: a task that was interrupted after its publish must not announce
# them again, and learns here that its publish was committed.
published = Table(
    "penstock_published",
    tables,
    Column("datasource", Text, primary_key=True),
    Column("sequence_name", Text, primary_key=True),
    Column("task_id", Text, nullable=False),
    Column("start_offsets", Text, nullable=False),
    Column("end_offsets", Text, nullable=False),
    Column("published_ms", BigInteger, nullable=False),
)

# One row for each publish, kept longer than `published`: from a segment to its task, and back.
publishes = Table(
    "penstock_publishes",
    tables,
    Column("id", BigInteger, primary_key=True),
    Column("datasource", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("sequence_name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    # Empty for a batch task, as the topic, the offsets and the list of segments.
    Column("supervisor_id", Text, nullable=False),
    Column("topic_id", Text, nullable=False),
    Column("start_offsets", Text, nullable=False),
    Column("end_offsets", Text, nullable=False),
    Column("counts", Text, nullable=False),
    Column("segments", Text, nullable=False),
    Column("published_ms", BigInteger, nullable=False),
)

# The offsets of each publish of a stream, by stream partition.
publish_ranges = Table(
    "penstock_publish_ranges",
    tables,
    Column("supervisor_id", Text, primary_key=True),
    Column("stream_partition", Integer, primary_key=True),
    Column("start_offset", BigInteger, primary_key=True),
    Column("publish_id", BigInteger, primary_key=True),
    Column("end_offset", BigInteger, nullable=False),
)

leases = Table(
    "penstock_leases",
    tables,
    Column("service", Text, primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("extra", Text, nullable=False),
)

audit = Table(
    "penstock_audit",
    tables,
    Column("serial", BigInteger, primary_key=True),
    Column("key", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
)

# One row for each task of each lock; `partition_number` is -1 in a lock of all partitions.
task_locks = Table(
    "penstock_task_locks",
    tables,
    Column("task_id", Text, primary_key=True),
    Column("datasource", Text, primary_key=True),
    Column("granularity", Text, primary_key=True),
    Column("type", Text, primary_key=True),
    Column("start_ms", BigInteger, primary_key=True),
    Column("end_ms", BigInteger, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("partition_number", Integer, primary_key=True),
    Column("group_id", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

# One row for each service that has a leader. An empty holder has resigned.
terms = Table(
    "penstock_terms",
    tables,
    Column("service", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

rules = Table(
    "penstock_rules",
    tables,
    Column("datasource", Text, primary_key=True),
    Column("updated_ms", BigInteger, nullable=False),
    Column("rules", Text, nullable=False),
)

config = Table(
    "penstock_config",
    tables,
    Column("name", Text, primary_key=True),
    Column("updated_ms", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

# Small tables that statements and flows join by name.
lookups = Table(
    "penstock_lookups",
    tables,
    Column("name", Text, primary_key=True),
    # Both numbers only grow, even if a deleted lookup is declared again.
    Column("spec_version", BigInteger, nullable=False),
    # Empty: it was deleted.
    Column("spec", Text, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
    Column("content_version", BigInteger, nullable=False),
    Column("loaded_ms", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # When it is refreshed next; -1: never. The refresh that begins moves it.
    Column("due_ms", BigInteger, nullable=False),
    # Failed refreshes since the last one that succeeded; the reason is empty without any.
    Column("failures", BigInteger, nullable=False),
    Column("failed_ms", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    # The principal whose rights each refresh needs; empty: the installation.
    Column("owner", Text, nullable=False),
)

# The rows of each lookup, as a Parquet file. Apart, because lists of lookups do not read them.
lookup_contents = Table(
    "penstock_lookup_contents",
    tables,
    Column("name", Text, primary_key=True),
    Column("content_version", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
