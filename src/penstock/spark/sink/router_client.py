"""Requests of the sink to a router: how a datasource is written, files, and the task.

Owns the paths, and which requests are repeated: a lost answer may mean that a request was
performed. An upload gets its name from the router, so a repeated one leaves a file that no
task publishes; a task has an id of its own, so it is submitted once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from penstock.core.backoff import RetryPolicy
from penstock.core.clock import Clock, SystemClock, pause
from penstock.core.errors import NotFound, Unavailable
from penstock.indexing.engine import EngineFailure
from penstock.spark.router_requests import RouterAddress

if TYPE_CHECKING:
    from pydantic import JsonValue

T = TypeVar("T")

_PARQUET: Final = "application/vnd.apache.parquet"
_REPEATED_FOR_S: Final = 600.0
"""How long a request is repeated while the router does not answer, or is busy."""
_PAUSES: Final = RetryPolicy(initial_ms=200, max_ms=10_000, jitter=0.5)
_POLLS: Final = RetryPolicy(initial_ms=50, max_ms=500)


@dataclass(frozen=True, slots=True)
class DatasourceForm:
    """How a datasource was written last.

    Attributes:
        name: Its stored name.
        columns: (name, type of Spark SQL) pairs of its visible rows; empty: it has no data.
        segment_granularity: Its newest time chunks; None: it has no data, or chunks that a task
            has listed.
        rollup: The roll-up of its newest rows, in the form of segments; None: they were not rolled
            up.
    """

    name: str
    columns: tuple[tuple[str, str], ...] = ()
    segment_granularity: str | None = None
    rollup: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class RouterClient:
    """A router, for one write. It is sent to Spark's workers.

    Attributes:
        address: Its address.
    """

    address: RouterAddress

    def form(self, datasource: str) -> DatasourceForm:
        """Return how a datasource is written.

        Raises:
            InvalidRequest: The address or the name is wrong.
            Forbidden: The token may not write the datasource.
            Unavailable: The router does not answer.
        """
        answer = self._repeated(lambda: self.address.ask("GET", writes_path(datasource)))
        found = self._object(answer)
        columns = found.get("columns")
        granularity, rollup = found.get("segmentGranularity"), found.get("rollup")
        if not isinstance(columns, list):
            raise self.address.unexpected(answer)
        return DatasourceForm(
            str(found.get("datasource", datasource)),
            tuple((str(name), str(type_)) for name, type_ in columns),
            granularity if isinstance(granularity, str) else None,
            rollup if isinstance(rollup, dict) else None,
        )

    def upload(self, datasource: str, task_id: str, file: Path) -> str:
        """Send a file, and return the name under which it is stored.

        Raises:
            PenstockError: It is not stored; as `form`.
        """

        def send() -> bytes:
            with file.open("rb") as body:
                return self.address.ask("POST", files_path(datasource, task_id), body, _PARQUET)

        return str(self._object(self._repeated(send))["name"])

    def run(self, spec: Mapping[str, JsonValue], clock: Clock) -> None:
        """Submit a task, and wait until it has succeeded. Raises as `submit` and `wait`."""
        task_id = str(spec["id"])
        try:
            self.submit(task_id, spec)
            self.wait(task_id, clock)
        except Unavailable as error:
            raise Unavailable(
                f"{error}. The rows may have been written: check the task {task_id} before you"
                " write them again"
            ) from error

    def submit(self, task_id: str, spec: Mapping[str, JsonValue]) -> None:
        """Submit a task. Returns if it was submitted before.

        Raises:
            PenstockError: It is refused, or it is unknown whether it is submitted.
        """
        body, is_repeated = json.dumps(spec).encode(), False

        def send() -> None:
            nonlocal is_repeated
            # The answer to an earlier try may have been lost.
            if not (is_repeated and self._exists(task_id)):
                is_repeated = True
                self.address.ask("POST", "/druid/indexer/v1/task", body)

        self._repeated(send)

    def _exists(self, task_id: str) -> bool:
        try:
            self.address.ask("GET", status_path(task_id))
        except NotFound:
            return False
        return True

    def wait(self, task_id: str, clock: Clock) -> None:
        """Wait for the end of a task.

        Raises:
            EngineFailure: It has failed; the message has the reason.
            NotFound: It does not exist.
            Unavailable: The router does not answer; whether the task succeeds is unknown.
        """
        path, polls = status_path(task_id), 0
        while True:
            answer = self._repeated(lambda: self.address.ask("GET", path))
            found = self._object(answer).get("status")
            status = found if isinstance(found, dict) else {}
            if status.get("statusCode") == "SUCCESS":
                return
            if status.get("statusCode") == "FAILED":
                reason = status.get("errorMsg") or "the reason is in its log"
                raise EngineFailure(f"nothing was written: task {task_id} failed: {reason}")
            polls += 1
            pause(clock, _POLLS.delay_ms(polls) / 1000)

    def _repeated(self, work: Callable[[], T], clock: Clock | None = None) -> T:
        """Repeat a request while the router does not answer."""
        clock = clock or SystemClock()
        until_s, failures = clock.monotonic_s() + _REPEATED_FOR_S, 0
        while True:
            try:
                return work()
            except Unavailable:
                failures += 1
                wait_s = _PAUSES.random_delay_s(failures, random.SystemRandom().random)
                if clock.monotonic_s() + wait_s > until_s:
                    raise
                pause(clock, wait_s)

    def _object(self, content: bytes) -> Mapping[str, object]:
        """Parse an answer. Not repeated: another server, or a proxy, has answered."""
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self.address.unexpected(content)
        return found


def writes_path(datasource: str) -> str:
    """Return the router's path for how a datasource is written."""
    return f"/penstock/v1/datasources/{quote(datasource, safe='')}/writes"


def status_path(task_id: str) -> str:
    """Return the router's path for the status of a task."""
    return f"/druid/indexer/v1/task/{quote(task_id, safe='')}/status"


def files_path(datasource: str, task_id: str) -> str:
    """Return the router's path for the files of a write."""
    return f"{writes_path(datasource)}/{quote(task_id, safe='')}/files"
