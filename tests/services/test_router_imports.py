"""Processes load no modules of other roles at their start, and none loads pandas.

Nor psycopg, which only metadata on PostgreSQL needs.
"""

from __future__ import annotations

import subprocess
import sys

# A port that accepts connections takes the place of Spark.
CHECK = """
import socket
from penstock.indexing.engine import EngineUnavailable
from penstock.spark.connect import spark_sessions
spark_sessions.ANSWER_TIMEOUT_S = 0.1
with socket.create_server(("127.0.0.1", 0)) as server:
    try:
        spark_sessions.check_answers(f"sc://localhost:{server.getsockname()[1]}/;token=x")
    except EngineUnavailable:
        pass
"""

# A plan of Spark on its way to whoever asked for it, in each format.
EXPLAIN = """
from penstock.services.api.sql_results import CONTENT_TYPES, write_rows
from penstock.spark.sql.service import explanation
table = explanation("Scan hidden ü", {"clicks": "hidden"}).table
for form in CONTENT_TYPES:
    written = b"".join(write_rows(table, form, header=True))
    assert form in {"parquet", "arrow"} or "Scan clicks ü" in written.decode()
"""


def loaded(role: str, work: str = "") -> list[str]:
    """Return what the process of a role has loaded when it begins, and after some work."""
    return loaded_by(f"import penstock.services.roles.{role}\n{work}")


def loaded_by(work: str) -> list[str]:
    script = f"import sys\n{work}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


def test_the_router_loads_neither_overlord_nor_worker():
    """It may run without them, and pandas would keep all who ask it at that moment waiting."""
    names = loaded("router", EXPLAIN)
    indexing = ("overlord", "lockbox", "supervisor", "worker", "task.")
    others = tuple(f"penstock.indexing.{name}" for name in indexing)
    assert [name for name in names if name.startswith(others)] == []
    assert not {"pandas", "psycopg", "pyarrow.flight", "google.protobuf"} & set(names)


def test_a_peon_does_without_pandas():
    """It takes half a second and 40 MB, and each task is a process."""
    assert not {"pandas", "psycopg"} & set(loaded("peon"))


def test_a_worker_checks_spark_without_pyspark():
    """It takes 80 MB."""
    names = loaded("worker", CHECK)
    assert "grpc" in names
    assert "psycopg" not in names
    assert [name for name in names if name.startswith("pyspark.")] == []


def test_a_data_source_does_without_the_models_of_specs():
    """Spark plans each read in a new process, and the models take it most of its time."""
    names = loaded_by("import penstock.spark.datasource, penstock.spark.topic.source")
    assert not {"penstock.indexing.specs", "pydantic", "fsspec"} & set(names)
