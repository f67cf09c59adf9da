"""Tasks and loops whose end is noticed, work on threads, and callbacks that raise."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import uvloop

from penstock.core import loop_tasks, threads
from penstock.core.errors import Closed, Unavailable
from penstock.core.loop_tasks import (
    LoopThread,
    call_each,
    keep_running,
    run_on_thread,
    run_shielded,
    start_awaited,
    start_job,
    watch_loop,
)
from penstock.core.threads import DEATHS, Death, Deaths, OnDeath
from tests.harness.call_faults_kit import Faults

LIMIT_S = 120.0
CORE = ("penstock.core.loop_tasks", "penstock.core.threads")
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def make_loop(request: pytest.FixtureRequest) -> MakeLoop:
    made: MakeLoop = request.param
    return made


@pytest.fixture
def ended(deaths: Deaths) -> Iterator[list[Death]]:
    """Return the deaths that would have ended the process."""
    found: list[Death] = []
    hook = threading.excepthook
    deaths.end_process_by(found.append)
    yield found
    deaths._end = None
    threading.excepthook = hook


async def fail() -> None:
    raise MemoryError("no room")


async def return_at_once() -> None:
    pass


@pytest.mark.parametrize("body", [fail, return_at_once])
def test_a_body_that_ends_by_itself_ends_the_process(
    ended: list[Death], body: Callable[[], Coroutine[object, object, None]]
) -> None:
    async def story() -> None:
        await keep_running("retention", body)

    asyncio.run(story())
    (death,) = ended
    assert death.name == "retention"
    assert DEATHS.counts() == {"retention": 1}
    assert "retention ended unexpectedly" in DEATHS.down()[0]


def test_ends_that_were_asked_for_are_none(ended: list[Death]) -> None:
    async def story() -> None:
        await keep_running("leftovers", return_at_once, may_return=True)
        forever = keep_running("retention", lambda: asyncio.sleep(LIMIT_S))
        await asyncio.sleep(0)
        forever.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forever

    asyncio.run(story())
    assert (ended, DEATHS.counts()) == ([], {})


def test_a_body_is_restarted(ended: list[Death], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 0.0)
    runs: list[int] = []

    async def body() -> None:
        runs.append(1)
        if len(runs) < 3:
            await fail()

    async def story() -> None:
        await keep_running("announcer", body, on_death=OnDeath.RESTART, may_return=True)

    asyncio.run(story())
    assert len(runs) == 3
    assert (ended, DEATHS.counts(), DEATHS.down()) == ([], {"announcer": 2}, [])


@pytest.mark.filterwarnings("ignore:coroutine '_keep' was never awaited")  # it did not start
def test_without_memory_a_body_is_restarted_or_the_process_ends(
    ended: list[Death], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a death raised: the task was done, and its owner did not look at it."""
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 0.0)
    faults = Faults()

    async def story(at: int, runs: list[str]) -> None:
        watch_loop(asyncio.get_running_loop())

        async def body() -> None:
            runs.append("run")
            if len(runs) == 1:
                await fail()

        with faults.armed_inside(CORE, MemoryError, at):
            try:
                task = keep_running("retention", body, on_death=OnDeath.RESTART, may_return=True)
            except MemoryError:
                runs.append("its caller knows")
                raise
            owned.append(task)  # so that asyncio does not report that its end was not looked at
            await asyncio.wait([task])
            await asyncio.sleep(0)

    for at in itertools.count():
        runs: list[str] = []
        owned: list[asyncio.Task[None]] = []
        ended.clear()
        asyncio.run(story(at, runs))
        assert ended or len(runs) == 2 or "its caller knows" in runs, faults.raised
        if not faults.raised:
            break
    assert at > 5


def test_a_job_that_fails_is_counted_and_its_exception_is_its_own(ended: list[Death]) -> None:
    async def story() -> None:
        job = start_job("journal compaction", fail())
        await asyncio.wait([job])
        awaited = start_awaited(fail())
        with pytest.raises(MemoryError):
            await awaited

    asyncio.run(story())
    assert (ended, DEATHS.counts()) == ([], {"journal compaction": 1})


@pytest.mark.parametrize("body", [fail, return_at_once])
def test_shielded_work_ends_though_its_caller_is_cancelled(
    ended: list[Death], body: Callable[[], Coroutine[object, object, None]]
) -> None:
    steps: list[str] = []

    async def work(goes_on: asyncio.Event) -> None:
        await goes_on.wait()
        steps.append("end")
        await body()

    async def story() -> None:
        watch_loop(asyncio.get_running_loop())
        goes_on = asyncio.Event()
        caller = start_awaited(run_shielded(work(goes_on), lambda: steps.append("failed")))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        assert (caller.cancelled(), steps) == (True, [])
        goes_on.set()
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()  # asyncio reports exceptions that no code retrieved

    asyncio.run(story())
    assert steps == (["end", "failed"] if body is fail else ["end"])
    assert ended == []


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it did not start
def test_without_memory_the_failure_of_shielded_work_is_handled_or_ends_the_process(
    ended: list[Death],
) -> None:
    faults = Faults()

    async def story(at: int, steps: list[str]) -> None:
        watch_loop(asyncio.get_running_loop())

        async def work() -> None:
            steps.append("end")
            await fail()

        with faults.armed_inside(CORE, MemoryError, at):
            with contextlib.suppress(MemoryError):
                await run_shielded(work(), lambda: steps.append("failed"))
            await asyncio.sleep(0)

    for at in itertools.count():
        steps: list[str] = []
        ended.clear()
        asyncio.run(story(at, steps))
        assert ended or steps in ([], ["end", "failed"]), faults.raised
        if not faults.raised:
            break
    assert at > 4


def test_the_outcome_of_shielded_work_goes_to_its_caller() -> None:
    failures: list[str] = []

    async def work() -> str:
        return "done"

    async def story() -> None:
        assert await run_shielded(work(), lambda: failures.append("failed")) == "done"
        with pytest.raises(MemoryError):
            await run_shielded(fail(), lambda: failures.append("failed"))

    asyncio.run(story())
    assert failures == ["failed"]


def on_loop(make_loop: MakeLoop, story: Callable[[], object]) -> LoopThread:
    """Run a call on a watched loop on a thread, and end both."""
    loop = LoopThread("a loop", make_loop())
    loop.start()
    done = threading.Event()

    def call() -> None:
        # Before the call, which may raise.
        asyncio.get_running_loop().call_later(0.02, done.set)
        story()

    loop.post(call)
    assert done.wait(LIMIT_S)
    loop.stop()
    return loop


def test_a_callback_that_raises_ends_the_process(ended: list[Death], make_loop: MakeLoop) -> None:
    def story() -> None:
        raise MemoryError("no room")

    on_loop(make_loop, story)
    (death,) = ended
    assert isinstance(death.error, MemoryError)
    assert DEATHS.counts() == {"uncaught": 1}


def test_a_task_that_nobody_awaits_ends_the_process(
    ended: list[Death], make_loop: MakeLoop
) -> None:
    def story() -> None:
        start_awaited(fail())
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(gc.collect))

    on_loop(make_loop, story)
    (death,) = ended
    assert "never retrieved" in death.name


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), Unavailable("not now")])
def test_foreseen_errors_are_only_logged(
    ended: list[Death], make_loop: MakeLoop, error: Exception
) -> None:
    def story() -> None:
        raise error

    on_loop(make_loop, story)
    assert (ended, DEATHS.counts()) == ([], {})


def test_a_client_whose_protocol_raises_ends_its_connection_alone(
    ended: list[Death], make_loop: MakeLoop
) -> None:
    logged: list[object] = []

    class Broken(asyncio.Protocol):
        def data_received(self, _data: bytes) -> None:
            raise ZeroDivisionError("a bug that a client found")

    async def story() -> None:
        loop = asyncio.get_running_loop()
        watch_loop(loop, lambda _loop, context: logged.append(context.get("exception")))
        server = await loop.create_server(Broken, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        assert await reader.read() == b""  # closed by the server
        writer.close()
        server.close()

    loop = LoopThread("a loop", make_loop())
    loop.start()
    loop.run(story(), LIMIT_S)
    loop.stop()
    assert ended == []
    assert [type(one) for one in logged] == [ZeroDivisionError]


def test_a_loop_that_ends_by_itself_ends_the_process(
    ended: list[Death], make_loop: MakeLoop
) -> None:
    loop = LoopThread("the loop", make_loop())
    loop.start()
    loop.post(loop._loop.stop)
    loop._thread.join(LIMIT_S)
    assert [one.name for one in ended] == ["the loop"]
    with pytest.raises(Closed, match="has ended"):
        loop.run(return_at_once())


def test_a_loop_that_is_stopped_ends_nothing(ended: list[Death], make_loop: MakeLoop) -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(LIMIT_S)
        finally:
            cancelled.set()

    on_loop(make_loop, lambda: keep_running("waits", wait))
    assert cancelled.is_set()
    assert (ended, DEATHS.counts()) == ([], {})


class GatedLoop(asyncio.SelectorEventLoop):
    """Waits for the test where the end of a loop begins, and before it closes."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = {name: (threading.Event(), threading.Event()) for name in ("stopped", "close")}
        self.handed_over = threading.Event()

    def run_forever(self) -> None:
        super().run_forever()
        if not self.gates["stopped"][0].is_set():
            self._pass("stopped")

    def close(self) -> None:
        self._pass("close")
        super().close()

    def call_soon_threadsafe(self, *arguments, **named):  # type: ignore[no-untyped-def, override]
        handle = super().call_soon_threadsafe(*arguments, **named)
        self.handed_over.set()
        return handle

    def _pass(self, name: str) -> None:
        reached, may_go_on = self.gates[name]
        reached.set()
        assert may_go_on.wait(LIMIT_S)


@pytest.mark.parametrize("place", ["stopped", "close"])
def test_work_that_comes_while_a_loop_ends_is_answered(place: str) -> None:
    """Its future was never done: it came when the tasks had been cancelled already."""
    gated = GatedLoop()
    loop = LoopThread("a loop", gated)
    loop.start()
    loop.post(gated.stop)
    loop._thread.expect_end()
    if place == "close":
        assert gated.gates["stopped"][0].wait(LIMIT_S)
        gated.gates["stopped"][1].set()
    assert gated.gates[place][0].wait(LIMIT_S)
    answers: list[BaseException] = []

    def ask() -> None:
        try:
            loop.run(asyncio.sleep(LIMIT_S))
        except BaseException as error:  # noqa: BLE001 - looked at below
            answers.append(error)

    gated.handed_over.clear()
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    # Refused at once, or handed over to the loop that is about to end.
    while asking.is_alive() and not gated.handed_over.wait(0.01):
        pass
    for _, one_may_go_on in gated.gates.values():
        one_may_go_on.set()
    asking.join(LIMIT_S)
    loop.stop()
    assert [type(one) for one in answers] == [Closed]


def test_work_that_does_not_end_with_its_loop_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_tasks, "_END_S", 0.05)
    begun, answers = threading.Event(), []
    loop = LoopThread("a loop", asyncio.new_event_loop())

    async def stay() -> None:
        asyncio.current_task()._log_destroy_pending = False  # type: ignore[union-attr]
        while not loop._loop.is_closed():
            try:
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    def ask() -> None:
        try:
            loop.run(stay())
        except Closed as error:
            answers.append(error)

    loop.start()
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert begun.wait(LIMIT_S)
    loop.stop()
    asking.join(LIMIT_S)
    assert len(answers) == 1


def test_a_second_stop_leaves_the_tasks_the_time_to_end(
    ended: list[Death], make_loop: MakeLoop
) -> None:
    """It stopped the loop while that waited for them, which ended the process."""
    loop = LoopThread("a loop", make_loop())
    begun, ending, cleaned = threading.Event(), threading.Event(), []

    async def clean_up() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0.2)
            cleaned.append(1)

    async def begin() -> None:
        start_job("cleans up", clean_up())

    loop.start()
    loop.run(begin())
    assert begun.wait(LIMIT_S)
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    assert ending.wait(LIMIT_S)
    loop.stop()
    stopping.join(LIMIT_S)
    assert (cleaned, ended, DEATHS.counts()) == ([1], [], {})


def test_a_loop_that_never_ran_refuses_work() -> None:
    loop = LoopThread("a loop", asyncio.new_event_loop())
    loop.stop()
    with pytest.raises(Closed, match="has ended"):
        loop.run(return_at_once())


class LateExecutor(ThreadPoolExecutor):
    """Queues work and raises, as an executor does whose thread cannot start."""

    def __init__(self, *, runs_first: bool = False) -> None:
        super().__init__(1)
        self.queued: list[Callable[[], object]] = []
        self._runs_first = runs_first

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.queued.append(fn)
        if self._runs_first:
            fn(*args)
        raise RuntimeError("can't start new thread")


def test_work_whose_executor_raised_never_runs() -> None:
    executor, ran = LateExecutor(), []

    async def ask() -> None:
        with pytest.raises(RuntimeError, match="can't start"):
            await run_on_thread(lambda: ran.append(1), executor)

    asyncio.run(ask())
    for work in executor.queued:
        work()  # a thread that starts later
    assert not ran


def test_work_that_a_thread_took_before_the_executor_raised_counts() -> None:
    executor = LateExecutor(runs_first=True)
    assert asyncio.run(run_on_thread(lambda: 7, executor)) == 7


class LostCalls(ThreadPoolExecutor):
    """An executor whose threads run no call, and which ends each one in the given way."""

    def __init__(self, end: Callable[[Future[object]], object]) -> None:
        super().__init__(1)
        self._end = end

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        self._end(future)
        return future


def test_a_call_that_no_thread_could_begin_ends_its_wait() -> None:
    def run_out_of_memory(future: Future[object]) -> None:
        future.set_exception(MemoryError())

    def work() -> int:
        raise AssertionError("it ran")

    with pytest.raises(MemoryError):
        asyncio.run(run_on_thread(work, LostCalls(run_out_of_memory)))
    with pytest.raises(Closed, match="the thread ended before the call began"):
        asyncio.run(run_on_thread(work, LostCalls(Future.cancel)))


def test_results_and_exceptions_go_to_the_caller() -> None:
    def fail() -> None:
        raise MemoryError

    async def ask() -> int:
        with pytest.raises(MemoryError):
            await run_on_thread(fail)
        return await run_on_thread(threading.get_ident)

    assert asyncio.run(ask()) != threading.get_ident()


def test_work_that_waits_for_a_thread_does_not_run_if_its_caller_is_cancelled() -> None:
    ran: list[int] = []

    async def ask() -> None:
        gate: Future[None] = Future()
        executor = ThreadPoolExecutor(1)
        first = asyncio.ensure_future(run_on_thread(gate.result, executor))
        second = asyncio.ensure_future(run_on_thread(lambda: ran.append(1), executor))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        gate.set_result(None)
        await first
        executor.shutdown()

    asyncio.run(ask())
    assert not ran


def test_each_callback_is_called_whatever_one_raises() -> None:
    called: list[int] = []
    told: list[object] = []

    def fail() -> None:
        raise MemoryError

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def call() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        with pytest.raises(KeyboardInterrupt):
            call_each([fail, lambda: called.append(1), interrupt, lambda: called.append(2)])

    asyncio.run(call())
    assert called == [1, 2]
    assert [type(error) for error in told] == [MemoryError]
