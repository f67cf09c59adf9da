"""The checks of readiness that roles are composed with, tried one by one."""

from __future__ import annotations

import dataclasses
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import sqlalchemy

from penstock.core.clock import SystemClock
from penstock.core.errors import (
    Dependency,
    MetadataUnavailable,
    StorageUnavailable,
    Unavailable,
)
from penstock.core.waits import DependencyWait
from penstock.indexing.engine import EngineUnavailable
from penstock.services.emitter.service_emitter import service_emitter
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Check, Readiness
from penstock.services.roles import flow, overlord, router, worker
from penstock.services.roles.runtime import RoleContext, access_control_of
from penstock.spark.connect import spark_sessions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.storage.metadata import MetadataStore
from tests.services.start_kit import Start

COMPOSES = {
    "router": router.compose,
    "worker": worker.compose,
    "overlord": overlord.compose,
    "flow": flow.compose,
}
STORAGE, METADATA = "reach the deep storage", "read the metadata"


@dataclasses.dataclass(frozen=True)
class Composing(RoleContext):
    """Keeps the checks that a role is composed with."""

    checks: dict[str, Check] = dataclasses.field(default_factory=dict)

    def readiness(
        self, checks: Sequence[Check], waits: Callable[[], Sequence[DependencyWait]] = tuple
    ) -> Readiness:
        self.checks.update({one.work: one for one in checks})
        return RoleContext.readiness(self, checks, waits)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections, whose process answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def checks_of(role: str, folder: Path, spark_port: int) -> dict[str, Check]:
    options = PenstockOptions(
        data_dir=folder, spark_connect=f"sc://localhost:{spark_port}/;token=secret"
    )
    folder.mkdir(exist_ok=True)
    MetadataStore.open(options.metadata_address).close()
    (folder / "segments").mkdir()
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        emitter = service_emitter(options, clock, role)
        access = access_control_of(options, clock, role)
        context = Composing(*(role, options, clock, listener, Start(), int, emitter), access=access)
        COMPOSES[role](context)
    return context.checks


def test_each_role_tries_every_part_of_its_work(tmp_path: Path, silent_port: int) -> None:
    """Without one of these a process is ready although its requests fail."""
    tried = {role: list(checks_of(role, tmp_path / role, silent_port)) for role in COMPOSES}
    assert tried == {
        "router": [METADATA, STORAGE, "answer a query"],
        "worker": [METADATA, "find the overlord", STORAGE, "reach Spark", "answer for tasks"],
        "overlord": [METADATA, "know the leader"],
        "flow": [METADATA, "open the flow", "sync the flow"],
    }


@pytest.mark.parametrize("role", ["router", "worker"])
def test_a_process_that_needs_segments_tries_the_deep_storage(
    role: str, tmp_path: Path, silent_port: int
) -> None:
    check = checks_of(role, tmp_path, silent_port)[STORAGE]
    check.attempt()
    shutil.rmtree(tmp_path / "segments")
    with pytest.raises(StorageUnavailable):
        check.attempt()


@pytest.mark.parametrize("role", COMPOSES)
def test_a_process_tries_the_metadata(
    role: str, tmp_path: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_engine: sqlalchemy.Engine) -> NoReturn:
        raise sqlalchemy.exc.TimeoutError

    check = checks_of(role, tmp_path, silent_port)[METADATA]
    check.attempt()
    monkeypatch.setattr(sqlalchemy.Engine, "connect", fail)
    with pytest.raises(MetadataUnavailable):
        check.attempt()


def test_a_router_tries_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    check = checks_of("router", tmp_path, nobody)["answer a query"]
    assert check.dependency is Dependency.SPARK
    with pytest.raises(EngineUnavailable, match="nothing answers"):
        check.attempt()
    asked = []

    def answer(_service: SqlService, query: SqlQuery) -> None:
        asked.append((query.sql, query.is_probe))

    monkeypatch.setattr(SqlService, "query", answer)
    check.attempt()
    assert asked == [("SELECT 1", True)]


def test_an_overlord_is_unready_until_there_is_a_leader(tmp_path: Path, silent_port: int) -> None:
    with pytest.raises(Unavailable, match="no overlord leads"):
        checks_of("overlord", tmp_path, silent_port)["know the leader"].attempt()


def test_a_flow_is_unready_until_it_is_open(tmp_path: Path, silent_port: int) -> None:
    checks = checks_of("flow", tmp_path, silent_port)
    for work in ("open the flow", "sync the flow"):
        with pytest.raises(Unavailable, match="still being opened"):
            checks[work].attempt()


def test_a_spark_that_hangs_makes_a_worker_unready(
    tmp_path: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_sessions, "ANSWER_TIMEOUT_S", 0.2)
    check = checks_of("worker", tmp_path, silent_port)["reach Spark"]
    with pytest.raises(EngineUnavailable, match="gave no answer"):
        check.attempt()
