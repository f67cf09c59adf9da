"""The processes of the embedded engine: their answers, their ends, and what they may not do."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.clock import pause
from penstock.core.intervals import Interval
from penstock.fastpath import engine_pool
from penstock.fastpath.engine_pool import (
    EngineCall,
    EnginePool,
    EngineRefusal,
    EngineRequest,
    pool_options,
)
from penstock.fastpath.engine_protocol import OUT_OF_MEMORY, Relation
from penstock.fastpath.fragments import left_to_spark
from tests.fastpath.engine_kit import (
    CLOCK,
    DAY_MS,
    ENDLESS,
    N,
    ask,
    compiled,
    day_of_rows,
    request_of,
    running_pool,
    times,
    wait_busy,
    wait_ready,
    written,
)

NOTHING = Relation((("a", "BIGINT"),), ())
COUNT = compiled("SELECT count(*) AS n FROM rows", N)


# Longer than an interrupted query needs on any machine: its process has a low priority.
LONG_GRACE_S = 30.0


@pytest.fixture(autouse=True)
def _no_process_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an interrupted query: on a busy machine it takes longer than the usual grace."""
    monkeypatch.setattr(engine_pool, "STOP_GRACE_S", LONG_GRACE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[EnginePool]:
    with running_pool(folder) as made:
        wait_ready(made)
        yield made


def refusal(pool: EnginePool, sql: str, timeout_s: float = 60.0, rows_max: int = 100) -> str:
    request = request_of(compiled(sql, N), f"token of {sql}", NOTHING, rows_max)
    with pytest.raises(EngineRefusal) as error:
        pool.run(request, CLOCK.monotonic_s() + timeout_s, pool.new_call())
    return error.value.reason


def test_rows_of_files_are_returned_with_their_types(pool: EnginePool, folder: Path) -> None:
    files = [day_of_rows(folder, day) for day in range(2)]
    query = compiled(
        'SELECT "city" AS c, sum("amount")::BIGINT AS s, min("__time") AS t FROM rows'
        ' WHERE "amount" >= $1 GROUP BY 1 ORDER BY 1 NULLS FIRST',
        (("c", "string"), ("s", "bigint"), ("t", "timestamp")),
        parameters=[0],
    )
    for _ in range(2):  # the second time, the process has the relation
        rows = ask(pool, query, files)
        assert [(row["c"], row["s"]) for row in rows] == [(None, 20), ("Oslo", 1)]


def test_files_differ_in_columns_types_and_row_cuts(pool: EnginePool, folder: Path) -> None:
    later = pa.table({"__time": times(5 * DAY_MS), "amount": pa.array([0.5])})
    columns = (("__time", "timestamp"), ("amount", "double"))
    files = [
        day_of_rows(folder, 3, clip=Interval(3 * DAY_MS, 3 * DAY_MS + 1_000)),
        written(folder / "other.parquet", later, columns, day=5),
    ]
    query = compiled(
        'SELECT "city" AS c, "amount" AS a FROM rows ORDER BY 2',
        (("c", "string"), ("a", "double")),
        read=(("city", "string"), ("amount", "double")),
    )
    assert ask(pool, query, files) == [{"c": None, "a": 0.5}, {"c": "Oslo", "a": 3.0}]
    within = compiled(query.sql, query.columns, query.read, (), 4 * DAY_MS, 6 * DAY_MS)
    assert ask(pool, within, files) == [{"c": None, "a": 0.5}]
    outside = compiled(query.sql, query.columns, query.read, (), 7 * DAY_MS)
    assert ask(pool, outside, files) == []


def test_a_damaged_or_missing_file_is_refused(pool: EnginePool, folder: Path) -> None:
    file = day_of_rows(folder, 8)
    path = Path(file.path)
    whole = path.read_bytes()
    other_type = written(
        folder / "types.parquet", pa.table({"__time": times(0), "amount": pa.array([0.5])})
    )
    for content in (whole[:-20], b"", whole.replace(b"PAR1", b"PAR2"), None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        else:
            path.touch()
            path.unlink()
        with pytest.raises(EngineRefusal) as error:
            ask(pool, COUNT, [file])
        assert error.value.reason in {"files", "engine error"}
        path.touch()
    with pytest.raises(EngineRefusal) as error:
        ask(pool, compiled('SELECT sum("amount") AS n FROM rows', N), [other_type])
    assert error.value.reason == "files"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM read_text('/etc/hostname')",
        "SELECT count(*) AS n FROM glob('/etc/*')",
        "COPY (SELECT 1 AS n) TO '{folder}/written.parquet'",
        "ATTACH '{folder}/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 64",
        "SET allowed_directories = ['/']",
        "SELECT count(*) AS n FROM read_csv('https://example.org/x.csv')",
        "CREATE SECRET s (TYPE s3)",
    ],
)
def test_the_engine_reads_only_its_folders_and_writes_nothing(
    pool: EnginePool, folder: Path, sql: str
) -> None:
    assert refusal(pool, sql.format(folder=folder)) in {"files", "engine error"}
    assert not (folder / "written.parquet").exists()
    assert ask(pool, COUNT) == [{"n": 0}]


def test_a_process_has_its_limits(pool: EnginePool) -> None:
    (process,) = wait_ready(pool)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    limits = Path(f"/proc/{process}/limits").read_text()
    assert re.search(r"Max file size +0 +0 ", limits)
    assert not re.search(r"Max data size +unlimited", limits)
    assert os.getpriority(os.PRIO_PROCESS, process) > os.getpriority(os.PRIO_PROCESS, 0)


def test_wrong_types_and_large_answers_are_refused(pool: EnginePool) -> None:
    for value in ("'a'", "CAST(2 AS HUGEINT)", "2 AS n, 3"):
        assert refusal(pool, f"SELECT {value} AS n") == "types of an answer"
    many = "SELECT x AS n FROM range(10000000) t(x)"
    assert refusal(pool, many, rows_max=10_000_000) == "large answer"
    assert len(ask(pool, compiled(many, N), rows_max=7)) == 7
    assert refusal(pool, "SELECT CAST(9223372036854775807 AS BIGINT) + 1 AS n") == "engine error"
    doubted = f"SELECT CAST({left_to_spark('letters')} AS BIGINT) AS n"
    assert refusal(pool, doubted) == "values"
    value = "CASE WHEN x = 900000 THEN CAST('a' AS BIGINT) ELSE 1 END"
    late = f"SELECT {value} AS n FROM range(999999) t(x)"
    assert refusal(pool, late, rows_max=999_999) == "engine error"


def test_a_query_ends_at_its_time_limit_or_when_it_is_cancelled(pool: EnginePool) -> None:
    (before,) = wait_ready(pool)
    assert refusal(pool, ENDLESS, timeout_s=0.2) == "interrupted"
    call = pool.new_call()
    request = request_of(compiled(ENDLESS, N), "endless", NOTHING)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, request, CLOCK.monotonic_s() + 60, call)
        call.cancel()
        with pytest.raises(EngineRefusal) as error:
            running.result(120)
    assert error.value.reason in {"interrupted", "cancelled"}
    assert pool.process_ids() == [before]
    with pytest.raises(EngineRefusal, match="cancelled"):
        pool.run(request, CLOCK.monotonic_s() + 60, call)


class CancelledBeforeItIsSent(EngineCall):
    def begin(self, *where: Any) -> None:
        super().begin(*where)
        self.cancel()


def test_a_query_that_is_cancelled_before_it_is_sent_ends(pool: EnginePool) -> None:
    wait_ready(pool)
    request = request_of(compiled(ENDLESS, N), "endless", NOTHING)
    until_s = CLOCK.monotonic_s() + 120
    with pytest.raises(EngineRefusal, match="interrupted"):
        pool.run(request, until_s, CancelledBeforeItIsSent(threading.Condition()))
    assert CLOCK.monotonic_s() < until_s


def test_a_query_that_cannot_be_sent_ends_no_process(pool: EnginePool, folder: Path) -> None:
    (before,) = wait_ready(pool)
    for value in (1 << 64, "\ud800"):
        wrong = compiled("SELECT $1 AS n", N, parameters=[value])
        with pytest.raises(EngineRefusal, match="query: a query cannot be sent"):
            ask(pool, wrong)
    file = dataclasses.replace(day_of_rows(folder, 9), path=f"{folder}/\udc80.parquet")
    with pytest.raises(EngineRefusal, match="query: a query cannot be sent"):
        ask(pool, COUNT, [file])
    assert ask(pool, COUNT) == [{"n": 0}]
    assert pool.process_ids() == [before]


def test_a_query_that_needs_too_much_memory_ends_only_its_process(pool: EnginePool) -> None:
    (before,), replaced = wait_ready(pool), pool.replaced().get(OUT_OF_MEMORY, 0)
    much = "SELECT count(*) AS n FROM (SELECT x, count(*) FROM range(200000000) t(x) GROUP BY x)"
    assert refusal(pool, much) == "engine memory"
    wait_ready(pool, not_ids=[before])
    assert ask(pool, COUNT) == [{"n": 0}]
    assert pool.replaced()[OUT_OF_MEMORY] == replaced + 1


FEW = "CAST(1 AS BIGINT) AS n FROM range(1) t(x)"
MANY = "CAST(x AS BIGINT) AS n FROM range(100000000) t(x)"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (f"SELECT {'(' * 2_000}1{' + 1)' * 2_000} AS n", "engine error"),
        (f"SELECT {FEW} WHERE length(repeat('a', 2000000000 + CAST(x AS INT))) > 0", OUT_OF_MEMORY),
        (f"SELECT {MANY} ORDER BY hash(x) LIMIT 90000000", "interrupted"),
        (f"SELECT {MANY}, range(100000000) u(y) WHERE x + y < 0", "interrupted"),
        (f"SELECT {FEW} WHERE x IN ({', '.join(map(str, range(5_000)))})", ""),
        (f"SELECT {FEW} WHERE repeat('a', 9000) NOT LIKE '{'%a' * 90}%b'", ""),
        (f"SELECT {FEW} WHERE NOT regexp_matches(repeat('a', 9000), '(a*)*(a*)*b')", ""),
    ],
    ids=["deep", "memory", "sort", "product", "list", "pattern", "backtracking"],
)
def test_a_costly_query_ends_within_its_own_limits(
    folder: Path, pool: EnginePool, sql: str, reason: str
) -> None:
    (before,) = wait_ready(pool)
    if reason:
        found = refusal(pool, sql, timeout_s=0.3 if reason == "interrupted" else 60.0)
        # On a busy machine, memory may end before the time.
        assert found == reason or (reason == "interrupted" and found == OUT_OF_MEMORY)
        reason = found
    else:
        assert ask(pool, compiled(sql, N)) == [{"n": 1}]
    wait_ready(pool, not_ids=[before] if reason == OUT_OF_MEMORY else [])
    assert ask(pool, COUNT, [day_of_rows(folder, 7)]) == [{"n": 3}]


class FailsAfterBegin(EngineCall):
    """Runs work as soon as the query has a process, and ends the query."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(threading.Condition())
        self._work = work

    def begin(self, *where: Any) -> None:
        self._work()
        raise EngineRefusal("done")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_principal_does_not_get_every_process(folder: Path, processes: int) -> None:
    with running_pool(folder, processes) as pool:
        wait_ready(pool, processes)

        def reason(principal: str, work: Callable[[], object] = lambda: None) -> str:
            request = request_of(COUNT, "nothing", NOTHING)
            request = dataclasses.replace(request, principal=principal)
            with pytest.raises(EngineRefusal) as error:
                pool.run(request, CLOCK.monotonic_s(), FailsAfterBegin(work))
            return error.value.reason

        def while_one_runs() -> None:
            assert reason("ada") == "busy"
            free = "done" if processes == 2 else "busy"
            assert reason("grace") == reason("") == free

        assert reason("ada", while_one_runs) == "done"
        assert reason("ada") == "done"
        assert reason("", lambda: reason("")) == "done"
        assert len(pool.process_ids()) == processes


@pytest.mark.parametrize(("how", "reason"), [(signal.SIGKILL, "ended"), (signal.SIGSTOP, "hung")])
def test_a_process_that_ends_or_hangs_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals, reason: str
) -> None:
    # That it has ended is known before the grace of a cancelled query is over.
    monkeypatch.setattr(engine_pool, "STOP_GRACE_S", 0.1 if reason == "hung" else LONG_GRACE_S)
    with running_pool(folder) as pool:
        (before,) = wait_ready(pool)
        call, request = pool.new_call(), request_of(compiled(ENDLESS, N), "endless", NOTHING)
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(pool.run, request, CLOCK.monotonic_s() + 60, call)
            wait_busy(before)
            os.kill(before, how)
            call.cancel()
            with pytest.raises(EngineRefusal) as error:
                running.result(120)
        assert error.value.reason == reason
        wait_ready(pool, not_ids=[before])
        assert pool.replaced() == {reason: 1}
        assert ask(pool, COUNT) == [{"n": 0}]


def test_many_queries_at_once_have_their_own_answers(pool: EnginePool) -> None:
    wait_ready(pool)

    def one(number: int) -> object:
        query = compiled(f"SELECT CAST({number} AS BIGINT) AS n FROM range(3)", N)
        return {row["n"] for row in ask(pool, query)}

    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(one, range(60)))
    assert found == [{number} for number in range(60)]


def test_a_query_waits_for_its_turn_until_its_time_limit(pool: EnginePool) -> None:
    wait_ready(pool)
    call, began = pool.new_call(), threading.Event()
    request = request_of(compiled(ENDLESS, N), "endless", NOTHING)

    def run() -> None:
        began.set()
        with pytest.raises(EngineRefusal):
            pool.run(request, CLOCK.monotonic_s() + 60, call)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        began.wait()
        reasons = {refusal(pool, ENDLESS, timeout_s=0.2) for _ in range(2)}
        assert reasons <= {"busy", "interrupted"}
        call.cancel()
        running.result(120)


def test_each_process_runs_the_first_queries(folder: Path) -> None:
    asked: list[str] = []

    def first() -> Iterator[EngineRequest]:
        for sql in ("no SQL", COUNT.sql):
            asked.append(sql)
            yield request_of(compiled(sql, N), "first", NOTHING)

    with running_pool(folder, first=first) as pool:
        (before,) = wait_ready(pool)
        assert len(asked) == 2
        assert ask(pool, COUNT) == [{"n": 0}]
        os.kill(before, signal.SIGKILL)
        assert refusal(pool, COUNT.sql) == "ended"
        wait_ready(pool, not_ids=[before])
        assert len(asked) == 4


# A process that answers the first query with the given bytes.
HOSTILE = """
import msgspec, socket, struct, sys, time
def answer(**fields): return msgspec.msgpack.encode({"type": "EngineAnswer", **fields})
router = socket.socket(fileno=int(sys.argv[-1]))
def frame(content): router.sendall(struct.pack("<I", len(content)) + content)
router.recv(65536)
frame(bytes.fromhex("81a474797065ab456e67696e655265616479"))
router.recv(65536)
{action}
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("frame(b'\\xc1')", "invalid answer"),
        ("frame(b'\\x80\\x04K\\x01.')", "invalid answer"),
        ("router.sendall(struct.pack('<I', 0xffffffff))", "invalid answer"),
        ("router.sendall(b'\\x09\\x00\\x00\\x00ab'); sys.exit()", "ended"),
        (
            "frame(answer(number=9))",
            "invalid answer",
        ),
        (
            "frame(answer(number=1, content=b'ARROW1' * 9))",
            "invalid answer",
        ),
    ],
)
def test_an_answer_that_is_none_ends_its_process(tmp_path: Path, action: str, reason: str) -> None:
    program = tmp_path / "hostile.py"
    program.write_text(HOSTILE.replace("{action}", action))
    with running_pool(tmp_path, program=(sys.executable, str(program))) as pool:
        (before,) = wait_ready(pool)
        assert refusal(pool, "SELECT 1 AS n") == reason
        wait_ready(pool, not_ids=[before])
        assert pool.replaced() == {reason: 1}


def test_rows_that_are_not_valid_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["ab" * 99])], ["n"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    offsets = struct.pack("<ii", 0, 198)
    before, _, after = content.rpartition(offsets)
    assert engine_pool.validated_rows(content).num_rows == 1
    for wrong in (struct.pack("<ii", 0, 1 << 30), struct.pack("<ii", -8, 198)):
        with pytest.raises(pa.ArrowException):
            engine_pool.validated_rows(before + wrong + after)


def test_without_a_program_every_query_is_refused(tmp_path: Path) -> None:
    with running_pool(tmp_path, program=(str(tmp_path / "absent"),)) as pool:
        assert refusal(pool, "SELECT 1 AS n") == "engine starts"


def test_a_stop_ends_the_processes_and_their_queries(folder: Path) -> None:
    with running_pool(folder) as pool, ThreadPoolExecutor(1) as threads:
        (process,) = wait_ready(pool)
        request = request_of(compiled(ENDLESS, N), "endless", NOTHING)
        until_s = CLOCK.monotonic_s() + 60
        running = threads.submit(pool.run, request, until_s, pool.new_call())
        pool.stop()
        with pytest.raises(EngineRefusal):
            running.result(120)
        assert pool.replaced() == {}
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


OF_A_KILLED_ROUTER = """
import sys
from tests.fastpath.engine_kit import (
    CLOCK, ENDLESS, N, compiled, request_of, running_pool, wait_ready
)
from tests.fastpath.test_engine_pool import NOTHING
with running_pool(sys.argv[1]) as pool:
    print(*wait_ready(pool), flush=True)
    request = request_of(compiled(ENDLESS, N), "endless", NOTHING)
    pool.run(request, CLOCK.monotonic_s() + 600, pool.new_call())
"""


def test_processes_end_with_their_router(folder: Path) -> None:
    command = [sys.executable, "-c", OF_A_KILLED_ROUTER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as router:
        assert router.stdout is not None
        engine = int(router.stdout.readline())
        wait_busy(engine)
        assert router.poll() is None
        router.kill()
    until_s = CLOCK.monotonic_s() + 120
    while is_running(engine):
        assert CLOCK.monotonic_s() < until_s
        pause(CLOCK, 0.02)


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("memory_gib", "cores", "processes", "memory_mib"),
    [
        (None, 2, 1, 256),
        (1, 2, 1, 256),
        (3, 64, 1, 384),
        (4, 1, 2, 256),
        (6, 64, 3, 256),
        (16, 2, 2, 1_024),
        (1_000, 64, 4, 2_048),
    ],
)
def test_the_bounds_of_a_host_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
    memory_gib: int | None,
    cores: int,
    processes: int,
    memory_mib: int,
) -> None:
    memory_bytes = None if memory_gib is None else memory_gib << 30
    monkeypatch.setattr(engine_pool, "total_memory_bytes", lambda: memory_bytes)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    options = pool_options(["/data"], {})
    assert (options.processes, options.memory_bytes >> 20) == (processes, memory_mib)
    assert options.threads == min(cores, 8)
