"""Tasks and loops whose end is noticed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop

from penstock.core import threads
from penstock.core.errors import Closed, Unavailable
from penstock.core.looptasks import LoopThread, keep_running, start_awaited, start_job, watch_loop
from penstock.core.threads import DEATHS, Death, Deaths, OnDeath

LIMIT_S = 30.0
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
def test_a_body_that_ends_by_itself_ends_the_process(ended: list[Death], body) -> None:
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


def test_a_job_that_fails_is_counted_and_its_exception_is_its_own(ended: list[Death]) -> None:
    async def story() -> None:
        job = start_job("journal compaction", fail())
        await asyncio.wait([job])
        awaited = start_awaited(fail())
        with pytest.raises(MemoryError):
            await awaited

    asyncio.run(story())
    assert (ended, DEATHS.counts()) == ([], {"journal compaction": 1})


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
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, gc.collect)

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
