"""Bounded pool of processes of the embedded engine.

Owns their start, their replacement, the turns of queries, time limits and cancellation. A process
that ends, exceeds its memory, or does not stop is replaced and counted; its query is refused with a
reason, and Spark answers it. `engine_process` has the other end.

Invariant: a process has one query at a time, and its answer is never taken for that of another one.
The bytes of an answer are decoded as one record and validated as Arrow; nothing in them is run.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import select
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import pyarrow as pa

from penstock.core.clock import Clock
from penstock.core.host_memory import total_memory_bytes
from penstock.core.metrics import Sample
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import JobTimer, OnDeath, OwnedThread, RestartPauses
from penstock.fastpath.engine_protocol import (
    ANSWER_BYTES_MAX,
    ENGINE_FAILED,
    OUT_OF_MEMORY,
    UNKNOWN_RELATION,
    EngineAnswer,
    EngineInterrupt,
    EngineQuery,
    EngineReady,
    EngineSettings,
    FrameError,
    Relation,
    query_content,
    receive_frame,
    send_content,
    send_frame,
)

if TYPE_CHECKING:
    from penstock.fastpath.compiled_query import FastValue, NewestRows

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=msgspec.Struct)

PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.fastpath.engine_process")
STOP_GRACE_S: Final = 1.0
"""Time in which an interrupted query must stop; then its process is killed."""
_REPLACED: Final = "Processes of the fast engine that were replaced, by reason"
_START_S: Final = 60.0
# Time limit of the first queries of a process.
_WARM_UP_MAX_S: Final = 3.0
# A frame is sent as soon as it is complete.
_FRAME_S: Final = 10.0
_PROCESSES_MAX: Final = 4
_THREADS_MAX: Final = 8
# Part of the host's memory for the engines of all processes together.
_MEMORY_SHARE: Final = 1 / 8
_MEMORY_BYTES_MIN: Final = 256 << 20
_MEMORY_BYTES_MAX: Final = 2 << 30
# Memory of a process beside the engine's: code, threads, and an answer.
_BESIDE_BYTES: Final = 512 << 20
# After these reasons a process is not used again. The engine's allocator keeps freed memory mapped,
# so that after a query with too much of it, the next one would exceed the limit of the process.
_REPLACED_AFTER: Final = frozenset({OUT_OF_MEMORY, ENGINE_FAILED})
# Relations that a process has got; it keeps fewer of them.
_TOKENS_MAX: Final = 1_000
# More waiting queries are left to Spark; those of one principal may not take all places.
_WAITING_MAX: Final = 64
_WAITING_OF_PRINCIPAL_MAX: Final = 32


class EngineRefusal(Exception):
    """The engine does not answer a query, so Spark does.

    Args:
        reason: A short fixed text, such as `busy`; metrics count by it.
        text: The engine's own text, for logs.
    """

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(f"{reason}: {text}" if text else reason)
        self.reason = reason


class _Lost(Exception):
    """A process ended, hung or sent something else than an answer."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Bounds of a pool.

    Attributes:
        folders: Folders whose files the engine may read.
        processes: Number of processes, which is that of queries at once.
        threads: Number of threads of a query.
        memory_bytes: Memory of the engine in each process.
        environment: Environment variables of the processes.
        calls: Filter of system calls of the processes; empty: there is none.
        program: Command of a process; the number of its socket is added.
    """

    folders: Sequence[str]
    processes: int = 2
    threads: int = 2
    memory_bytes: int = _MEMORY_BYTES_MIN
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    calls: bytes = field(default=b"", repr=False)
    program: Sequence[str] = PROGRAM


def pool_options(
    folders: Sequence[str], environment: Mapping[str, str], calls: bytes = b""
) -> PoolOptions:
    """Return the bounds for this host: one process if it has little memory, otherwise two to four.

    Arguments as the attributes of `PoolOptions`.
    """
    cores = os.cpu_count() or 1
    share = int((total_memory_bytes() or 0) * _MEMORY_SHARE)
    processes = max(2, min(cores // 2, _PROCESSES_MAX))
    processes = max(1, min(processes, share // _MEMORY_BYTES_MIN))
    memory_bytes = max(_MEMORY_BYTES_MIN, min(share // processes, _MEMORY_BYTES_MAX))
    threads = min(cores, _THREADS_MAX)
    return PoolOptions(folders, processes, threads, memory_bytes, environment, calls)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A query for the engine. The attributes are those of `EngineQuery`.

    Attributes:
        schema: Names and types that the rows must have.
        turn_until_s: How long to wait for a process, as a time of the clock's monotonic seconds.
        principal: The id of who asks; empty: the owner of the server.
    """

    token: str
    relation: Relation
    sql: str
    parameters: tuple[FastValue, ...]
    schema: pa.Schema
    rows_max: int
    turn_until_s: float = math.inf
    principal: str = ""
    newest: NewestRows | None = None
    end_ms: int | None = None


class EngineCall:
    """One query in a pool, which any thread may cancel.

    Args:
        changed: The condition for which waiting queries wait.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._process: _EngineProcess | None = None  # guarded by the condition
        self._number = 0
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the query: it raises `EngineRefusal` soon. After its end nothing happens."""
        with self._changed:
            self.is_cancelled = True
            process, number = self._process, self._number
            self._changed.notify_all()
        if process is not None:
            process.interrupt(number)

    def begin(self, process: _EngineProcess, number: int) -> None:
        """Record where the query runs."""
        with self._changed:
            self._process, self._number = process, number
            if self.is_cancelled:
                raise EngineRefusal("cancelled")

    def end(self) -> None:
        """Record that the query runs no longer."""
        with self._changed:
            self._process = None


class EnginePool:
    """The processes. Any thread may run queries.

    The mutex of the condition guards the lists of processes, and is held only while they change:
    mail to a thread would add its turn to each query.

    Args:
        options: The bounds.
        clock: Time.
    """

    def __init__(self, options: PoolOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[_EngineProcess] = []
        self._every: set[_EngineProcess] = set()
        self._starting: _EngineProcess | None = None
        self._first: Callable[[], Iterable[EngineRequest]] = tuple
        # Queries that wait, and processes that are taken, of each principal.
        self._waiting: Counter[str] = Counter()
        self._taken_by: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._log = RateLimitedLog(logger, clock)
        self._replaced: Counter[str] = Counter()
        self._thread = OwnedThread("SQL engines", self._keep_full, on_death=OnDeath.RESTART)

    def start(self, first: Callable[[], Iterable[EngineRequest]] = tuple) -> None:
        """Start to start the processes; queries are refused until the first one is ready.

        Args:
            first: Returns queries that each new process runs before others; it may take a while.
        """
        self._first = first
        self._thread.start()

    def stop(self) -> None:
        """Kill the processes: they have no state to lose. Running queries are refused."""
        self._thread.expect_end()
        with self._changed:
            self._changed.notify_all()
            every, idle = tuple(self._every), tuple(self._idle)
            self._every.clear()
            self._idle.clear()
            if self._starting is not None:
                self._starting.kill()
        for process in every:
            process.kill()  # its query, if it has one, closes it
        for process in idle:
            process.close()
        self._thread.join(_START_S)

    def replaced(self) -> dict[str, int]:
        """Return how many processes were replaced, by reason."""
        with self._changed:
            return dict(self._replaced)

    def process_ids(self) -> list[int]:
        """Return the ids of the processes that answer queries."""
        with self._changed:
            return [process.process_id for process in self._every]

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        count, name = float(len(self.process_ids())), "penstock_sql_engines"
        yield Sample(name, "gauge", "Processes of the fast engine that are ready", (), count)
        for reason, number in sorted(self.replaced().items()):
            labels = (("reason", reason),)
            name = "penstock_sql_engines_replaced_total"
            yield Sample(name, "counter", _REPLACED, labels, number)

    def new_call(self) -> EngineCall:
        """Return a query that can be cancelled before it runs."""
        return EngineCall(self._changed)

    def run(self, request: EngineRequest, until_s: float, call: EngineCall) -> pa.Table:
        """Return the rows of a query.

        Args:
            request: The query.
            until_s: When it must have ended, as a time of the clock's monotonic seconds.
            call: The query, to be cancelled.

        Raises:
            EngineRefusal: The engine does not answer.
        """
        query = self._query(request)
        number = query.number
        known = _encoded(query)  # before a process is taken
        process = self._taken(request, min(until_s, request.turn_until_s), call)
        lost = ""
        try:
            with process.interruptible(number):
                call.begin(process, number)
                answer = self._asked(process, query, known, request.relation, until_s)
            if answer.reason in _REPLACED_AFTER:
                lost = answer.reason
            elif not answer.reason:
                return typed_rows(validated_rows(answer.content), request.schema)
        except _Lost as error:
            lost = str(error)
            raise EngineRefusal(lost) from None
        except pa.ArrowException as error:
            lost = "invalid answer"
            raise EngineRefusal(lost, str(error)) from None
        except EngineRefusal:
            raise
        except BaseException:
            lost = "error"
            raise
        finally:
            call.end()
            self._give_back(process, request.principal, lost)
        raise EngineRefusal(answer.reason, answer.text)

    def _query(self, request: EngineRequest) -> EngineQuery:
        with self._changed:
            number = next(self._numbers)
        return EngineQuery(
            *(number, request.token, request.sql, request.parameters, request.rows_max),
            newest=request.newest,
            end_ms=request.end_ms,
        )

    def _warm_up(self, process: _EngineProcess) -> None:
        """Run the first queries of a process; those that are refused are left out.

        Raises:
            _Lost: The process must be replaced.
        """
        until_s = self._clock.monotonic_s() + _WARM_UP_MAX_S
        for request in self._first():
            if self._thread.is_end_expected or self._clock.monotonic_s() >= until_s:
                return
            query = self._query(request)
            with suppress(EngineRefusal):
                self._asked(process, query, _encoded(query), request.relation, until_s)

    @staticmethod
    def _asked(
        process: _EngineProcess,
        query: EngineQuery,
        known: bytes,
        relation: Relation,
        until_s: float,
    ) -> EngineAnswer:
        """Return the answer to a query; `known` is its content for a process with its relation."""
        is_known = query.token in process.tokens
        if is_known:
            answer = process.ask(query.number, known, until_s)
            is_known = answer.reason != UNKNOWN_RELATION
        if not is_known:
            content = _encoded(msgspec.structs.replace(query, relation=relation))
            answer = process.ask(query.number, content, until_s)
        if not answer.reason:
            if len(process.tokens) >= _TOKENS_MAX:
                process.tokens.clear()
            process.tokens.add(query.token)
        return answer

    def _taken(self, request: EngineRequest, until_s: float, call: EngineCall) -> _EngineProcess:
        """Return a process for a query, if possible one that has its relation.

        A principal does not get all of them at once; the owner does.
        """
        principal, token = request.principal, request.token
        processes_max, waiting_max = self._options.processes, _WAITING_MAX
        if principal:
            processes_max, waiting_max = max(1, processes_max - 1), _WAITING_OF_PRINCIPAL_MAX
        with self._changed:
            waiting = self._waiting
            if waiting.total() >= _WAITING_MAX or waiting[principal] >= waiting_max:
                raise EngineRefusal("busy")
            waiting[principal] += 1
            try:
                while not self._idle or self._taken_by[principal] >= processes_max:
                    left_s = until_s - self._clock.monotonic_s()
                    if call.is_cancelled:
                        raise EngineRefusal("cancelled")
                    if not self._every or self._thread.is_end_expected:
                        raise EngineRefusal("engine starts")
                    if left_s <= 0:
                        raise EngineRefusal("busy")
                    self._clock.wait(self._changed, left_s)
            finally:
                _subtract(waiting, principal)
            chosen = next((one for one in self._idle if token in one.tokens), self._idle[-1])
            self._idle.remove(chosen)
            self._taken_by[principal] += 1
            return chosen

    def _give_back(self, process: _EngineProcess, principal: str, lost: str) -> None:
        with self._changed:
            _subtract(self._taken_by, principal)
            is_kept = process in self._every and not lost
            if is_kept:
                self._idle.append(process)
            elif process in self._every:
                self._every.remove(process)
                self._replaced[lost] += 1
            self._changed.notify_all()
        if not is_kept:
            process.close()
            if lost:
                self._log.warning("a process of the fast engine is replaced: %s", lost)

    def _keep_full(self) -> None:
        """Start processes while there are too few."""
        pauses = RestartPauses()
        while not self._thread.is_end_expected:
            pauses.begin()
            problem = self._start_one()
            if problem:
                self._log.warning(
                    "a process of the fast engine does not start, so Spark answers: %s", problem
                )
                with self._changed:
                    if not self._thread.is_end_expected:
                        self._clock.wait(self._changed, pauses.next_s())
            with self._changed:
                while self._is_full():
                    self._clock.wait(self._changed, None)

    def _is_full(self) -> bool:
        return len(self._every) >= self._options.processes and not self._thread.is_end_expected

    def _start_one(self) -> str:
        """Start a process; return why it did not start."""
        try:
            made = _EngineProcess(self._options, self._clock)
        except OSError as error:
            return str(error)
        is_ready = False
        try:
            with self._changed:
                self._starting = made
            if self._thread.is_end_expected:
                return ""
            made.begin(self._options)
            self._warm_up(made)
            with self._changed:
                if not self._thread.is_end_expected:
                    self._every.add(made)
                    self._idle.append(made)
                    is_ready = True
                self._changed.notify_all()
        except _Lost as error:
            return "" if self._thread.is_end_expected else str(error)
        finally:
            with self._changed:
                self._starting = None
            if not is_ready:
                made.close()
        return ""


class _EngineProcess:
    """One process.

    The mutex guards what is sent, because an interruption comes from another thread than the query.

    Args:
        options: The bounds.
        clock: Time.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, options: PoolOptions, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._running = 0
        self._end = "ended"
        # The relations that it has got; it may have forgotten some. Only its query uses them.
        self.tokens: set[str] = set()
        self._socket, other = socket.socketpair()
        try:
            with other:
                self._process = subprocess.Popen(
                    (*options.program, str(other.fileno())),
                    stdin=subprocess.DEVNULL,
                    # No files: the process may not write any.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=dict(options.environment),
                    pass_fds=(other.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            self._socket.close()
            raise

    @property
    def process_id(self) -> int:
        """Return its id in the operating system."""
        return self._process.pid

    def begin(self, options: PoolOptions) -> None:
        """Wait until it is ready.

        Raises:
            _Lost: It is not ready in time.
        """
        process_bytes = options.memory_bytes + _BESIDE_BYTES
        settings = EngineSettings(
            *(tuple(options.folders), options.memory_bytes, process_bytes, options.threads),
            options.calls,
        )
        try:
            self._socket.settimeout(_FRAME_S)
            send_frame(self._socket, settings)
            if not self._is_readable(_START_S):
                raise _Lost(f"it was not ready within {_START_S:g} s")
            content = receive_frame(self._socket, ANSWER_BYTES_MAX)
        except (OSError, FrameError) as error:
            raise _Lost(f"not ready ({error})") from None
        self._decoded(content, EngineReady)

    @contextmanager
    def interruptible(self, number: int) -> Iterator[None]:
        """Let a query be interrupted in a block, even before it is sent."""
        with self._mutex:
            self._running = number
        try:
            yield
        finally:
            with self._mutex:
                self._running = 0

    def ask(self, number: int, content: bytes, until_s: float) -> EngineAnswer:
        """Return the answer to an encoded query; interrupt it at its time limit.

        Raises:
            _Lost: The process must be replaced.
        """
        try:
            with self._mutex:
                send_content(self._socket, content)
            if not self._is_readable(until_s - self._clock.monotonic_s()):
                with self._mutex:
                    send_frame(self._socket, EngineInterrupt(number))
                if not self._is_readable(STOP_GRACE_S):
                    raise _Lost("hung")
            received = receive_frame(self._socket, ANSWER_BYTES_MAX)
        except TimeoutError:
            raise _Lost("hung") from None
        except OSError:
            raise _Lost(self._end) from None
        except FrameError:
            raise _Lost("invalid answer") from None
        answer = self._decoded(received, EngineAnswer)
        if answer.number != number:
            raise _Lost("invalid answer")
        return answer

    def _is_readable(self, timeout_s: float) -> bool:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(max(timeout_s, 0) * 1_000))

    def _decoded(self, content: bytearray | None, kind: type[R]) -> R:
        if content is None:
            raise _Lost(self._end)
        try:
            return msgspec.msgpack.decode(content, type=kind)
        except msgspec.MsgspecError:
            raise _Lost("invalid answer") from None

    def interrupt(self, number: int) -> None:
        """Interrupt a query, if it still runs; kill the process if it does not stop."""
        with self._mutex:
            if self._running != number:
                return
            try:
                send_frame(self._socket, EngineInterrupt(number))
            except OSError:  # narrow: it has ended, and its query is refused
                return
        JobTimer("stop of an SQL engine", STOP_GRACE_S, lambda: self._stop(number)).start()

    def _stop(self, number: int) -> None:
        """End the process if a query still runs."""
        with self._mutex:
            if self._running == number:
                self._end = "hung"
                self.kill()

    def kill(self) -> None:
        """End the process at once; its query is refused."""
        try:
            self._process.kill()
        except PermissionError:  # narrow: this process has changed its user
            with suppress(OSError):  # the end of the socket ends the other process, too
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process, which has no query."""
        self.kill()
        self._socket.close()
        self._process.wait()


def validated_rows(content: bytes) -> pa.Table:
    """Return rows that a process sent.

    Raises:
        pa.ArrowException: They are not valid.
    """
    with pa.ipc.open_stream(content) as stream:
        found = stream.read_all()
    found.validate(full=True)
    return found


def _subtract(counts: Counter[str], principal: str) -> None:
    counts[principal] -= 1
    if not counts[principal]:
        del counts[principal]


def _encoded(query: EngineQuery) -> bytes:
    try:
        return query_content(query)
    except FrameError as error:
        raise EngineRefusal("query", str(error)) from None


def typed_rows(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of an answer with the names and types that its query has.

    Raises:
        EngineRefusal: The engine returned other types.
    """
    if schema.types != found.schema.types:
        raise EngineRefusal("types of an answer", f"{found.schema.types}, not {schema.types}")
    return found.rename_columns(schema.names).cast(schema)
