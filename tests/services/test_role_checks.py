"""The checks of readiness that roles are composed with, tried one by one."""

from __future__ import annotations

import dataclasses
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Dependency, StorageUnavailable
from penstock.core.waits import DependencyWait
from penstock.indexing.engine import EngineUnavailable
from penstock.services.emitter.factory import service_emitter
from penstock.services.options.table import Options
from penstock.services.readiness import Check, Readiness
from penstock.services.roles import router, worker
from penstock.services.roles.runtime import RoleContext
from penstock.spark.connect import session
from penstock.storage.metadata import MetadataStore

COMPOSES = {"router": router.compose, "worker": worker.compose}


@dataclasses.dataclass(frozen=True)
class Composing(RoleContext):
    """Keeps the checks that a role is composed with."""

    checks: dict[Dependency, Check] = dataclasses.field(default_factory=dict)

    def readiness(
        self, checks: Sequence[Check], waits: Callable[[], Sequence[DependencyWait]] = tuple
    ) -> Readiness:
        self.checks.update({one.dependency: one for one in checks})
        return RoleContext.readiness(self, checks, waits)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections, whose process answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def checks_of(role: str, folder: Path, spark_port: int) -> dict[Dependency, Check]:
    options = Options(data_dir=folder, spark_connect=f"sc://localhost:{spark_port}/;token=secret")
    MetadataStore.open(options.metadata_address).close()
    (folder / "segments").mkdir()
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        emitter = service_emitter(options, clock, role)
        context = Composing(role, options, clock, listener, int, int, emitter)
        COMPOSES[role](context)
    return context.checks


@pytest.mark.parametrize("role", COMPOSES)
def test_a_process_that_needs_segments_tries_the_deep_storage(
    role: str, tmp_path: Path, silent_port: int
) -> None:
    check = checks_of(role, tmp_path, silent_port)[Dependency.STORAGE]
    check.attempt()
    shutil.rmtree(tmp_path / "segments")
    with pytest.raises(StorageUnavailable):
        check.attempt()


def test_a_spark_that_hangs_makes_a_worker_unready(
    tmp_path: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.2)
    check = checks_of("worker", tmp_path, silent_port)[Dependency.SPARK]
    with pytest.raises(EngineUnavailable, match="gave no answer"):
        check.attempt()
