"""Streams of live answers: what they send, what they share, and when they end."""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from penstock.core.access.access_control import AccessControl
from penstock.core.http_errors import plain_body
from penstock.services.api import live_answers
from penstock.services.api.asgi import application
from penstock.services.api.live_answers import LIVE, WATCHES_MAX, LiveAnswers, _Watch, rest_s
from penstock.services.api.request_access import access_of
from penstock.testing.clock import VirtualClock
from tests.broker.stepped_loop_kit import run_stepped
from tests.harness.access_kit import AccessFolderKit, as_principal, rules_with

pytestmark = pytest.mark.anyio
TICK_S = 0.01


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Port:
    """An application with live answers and a few routes to watch."""

    def __init__(self, access: AccessControl | None = None) -> None:
        self.live = LiveAnswers(TICK_S)
        self.number = 0
        self.asked: list[str] = []
        self.ended: set[str] = set()
        routes: list[BaseRoute] = [
            *self.live.routes(),
            Route("/number", self._number),
            Route("/who", self._who),
            Route("/session", self._session),
            Route("/text", lambda _: PlainTextResponse("two\nlines")),
            Route("/spaced", lambda _: Response(b'{\n"a": 1\n}', media_type="application/json")),
            Route("/empty", lambda _: Response(b"", media_type="application/json")),
            Route("/large", lambda _: Response(b"x" * (live_answers.ANSWER_BYTES_MAX + 1))),
            Route("/bug", self._bug),
            Route("/parts", lambda _: StreamingResponse(iter(["one", "two"]))),
        ]
        control = access or AccessControl.open()
        self.app: Starlette = application(routes, access=control, rules=rules_with(routes))

    async def _number(self, request: Request) -> Response:
        self.asked.append(str(request.query_params))
        return JSONResponse({"number": self.number})

    async def _who(self, request: Request) -> Response:
        return JSONResponse(access_of(request).principal.id)

    async def _session(self, request: Request) -> Response:
        """Answer unless the session of the request has ended."""
        is_ended = request.headers.get("x-session", "") in self.ended
        return JSONResponse({"number": self.number}, 401 if is_ended else 200)

    async def _bug(self, _request: Request) -> Response:
        raise ValueError("a bug")


class Stream:
    """The client's side of one stream."""

    def __init__(self, received: asyncio.Queue[Message]) -> None:
        self._received = received

    async def start(self) -> Message:
        return await asyncio.wait_for(self._received.get(), 120)

    async def event(self) -> dict[str, object] | None:
        """The next event; None at the end of the stream."""
        while True:
            message = await asyncio.wait_for(self._received.get(), 120)
            body: bytes = message.get("body", b"")
            for line in body.decode().split("\n"):
                if line.startswith("data: "):
                    found: dict[str, object] = json.loads(line.removeprefix("data: "))
                    return found
            if message["type"] == "http.response.body" and not message.get("more_body"):
                return None


@asynccontextmanager
async def streamed(
    port: Port, query: str, headers: dict[str, str] | None = None
) -> AsyncIterator[Stream]:
    received: asyncio.Queue[Message] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn
        "http_version": "1.1",
        "method": "GET",
        "path": LIVE,
        "raw_path": LIVE.encode(),
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "root_path": "",
    }
    serving: Callable[..., Awaitable[None]] = port.app
    task = asyncio.ensure_future(serving(scope, receive, received.put))
    try:
        yield Stream(received)
    finally:
        gone.set()
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(TICK_S)


async def test_each_answer_is_sent_once_until_it_changes() -> None:
    port = Port()
    async with streamed(port, "watch=/number&watch=/who") as stream:
        start = await stream.start()
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-type"].startswith(b"text/event-stream")
        events = [await stream.event(), await stream.event()]
        bodies = {event["watch"]: event["body"] for event in events if event}
        assert bodies == {0: {"number": 0}, 1: f"owner:{getpass.getuser()}"}
        await until(lambda: len(port.asked) > 3)
        port.number = 7
        assert await stream.event() == {"watch": 0, "status": 200, "body": {"number": 7}}


@pytest.mark.parametrize(
    ("took_s", "former_s", "expected_s"),
    [
        (0.001, 0.001, 0.1),
        (0.2, 0.2, 20.0),
        (0.9, 0.9, 20.0),
        (5.0, 5.0, 100.0),
        (0.3, 0.0, 3.0),
        (0.3, 0.01, 3.1),
        (0.01, 5.0, 50.1),
    ],
)
async def test_an_answer_costs_one_percent_of_a_core_and_a_long_one_five(
    took_s: float, former_s: float, expected_s: float
) -> None:
    assert rest_s(took_s, former_s) == pytest.approx(expected_s)


@pytest.mark.parametrize("took", [(5.0, 0.02), (5.0,), (0.5, 0.01, 0.01), (0.02, 9.0, 9.0)])
def test_answers_cost_five_percent_of_a_core_in_whatever_order_they_are_slow(
    took: tuple[float, ...],
) -> None:
    clock = VirtualClock()
    times = cycle(took)
    answered: list[tuple[float, float]] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        began_s = clock.monotonic_s()
        await asyncio.sleep(next(times))
        answered.append((began_s, clock.monotonic_s()))
        if len(answered) == 41:
            raise EOFError
        await send({"type": "http.response.start", "status": 200, "headers": []})

    watch = _Watch("/slow", 0.01, app, streams={asyncio.Event(): {"type": "http"}})
    with pytest.raises(EOFError):
        run_stepped(clock, LiveAnswers(TICK_S)._repeat(watch))
    costs = [sum(end_s - began_s for began_s, end_s in answered[:n]) for n in range(41)]
    # The rest of the last answer may still have to come, half of it at most.
    for n in range(1, 41):
        owed_s = (answered[n - 1][1] - answered[n - 1][0]) / 2
        assert costs[n] - owed_s <= 0.05 * answered[n][0]


async def test_streams_of_one_principal_share_their_requests() -> None:
    port = Port()
    async with (
        streamed(port, "watch=/number?a=1") as one,
        streamed(port, "watch=/number?a=1") as two,
    ):
        for stream in (one, two):
            assert await stream.event() is not None
        before = len(port.asked)
        port.number = 1
        for stream in (one, two):
            event = await stream.event()
            assert event is not None
            assert event["body"] == {"number": 1}
        assert port.live.streams == 2
        assert set(port.asked) == {"a=1"}
        # One request brought the new number to both.
        assert len(port.asked) <= before + 2


async def test_a_login_that_ends_in_one_browser_ends_no_stream_of_another() -> None:
    port = Port()
    async with (
        streamed(port, "watch=/session", {"X-Session": "one"}) as one,
        streamed(port, "watch=/session", {"X-Session": "two"}) as two,
        streamed(port, "watch=/session", {"X-Session": "three"}) as three,
    ):
        for stream in (one, two, three):
            assert await stream.event() is not None
        port.ended = {"one", "two"}
        port.number = 1
        for stream in (one, two):
            event = await stream.event()
            assert event is not None
            assert event["status"] == 401
            assert await stream.event() is None
        assert await three.event() == {"watch": 0, "status": 200, "body": {"number": 1}}
        port.ended.add("three")
        event = await three.event()
        assert event is not None
        assert event["status"] == 401
        assert await three.event() is None


async def test_paths_rest_longer_if_there_are_many() -> None:
    port = Port()
    asked = "&".join(f"watch=/number?{number}" for number in range(15))
    seldom = "&".join(f"watch=/number?s{number}&every=600" for number in range(15))
    assert port.live.slowdown == 1
    async with streamed(port, asked) as one:
        assert await one.event() is not None
        assert port.live.slowdown == pytest.approx(15 / live_answers.PATHS_AT_ONCE)
        async with streamed(port, seldom) as two, streamed(port, asked) as three:
            assert await two.event() is not None
            assert await three.event() is not None
            assert port.live.slowdown == pytest.approx(15 / live_answers.PATHS_AT_ONCE, rel=0.01)
    await until(lambda: port.live.streams == 0)
    assert port.live.slowdown == 1
    many = [asked.replace("?", f"?{stream}x") for stream in range(4)]
    async with (
        streamed(port, many[0]) as one,
        streamed(port, many[1]) as two,
        streamed(port, many[2]) as three,
        streamed(port, many[3]) as four,
    ):
        for stream in (one, two, three, four):
            assert await stream.event() is not None
        assert port.live.slowdown == live_answers.SLOWDOWN_MAX


async def test_a_path_is_requested_as_seldom_as_the_client_wants() -> None:
    port = Port()
    query = "watch=/number?seldom&every=600&watch=/number?often"
    async with streamed(port, query) as stream:
        assert await stream.event() is not None
        await until(lambda: len(port.asked) > 5)
        assert port.asked.count("seldom=") == 1


@pytest.mark.parametrize("every", ["0", "601", "x", "1.5", "-2", "1&every=2"])
async def test_wrong_intervals_are_refused(every: str) -> None:
    async with streamed(Port(), f"watch=/number&every={every}") as stream:
        assert (await stream.start())["status"] == 400


async def test_nothing_is_requested_when_nobody_listens() -> None:
    port = Port()
    async with streamed(port, "watch=/number") as stream:
        assert await stream.event() is not None
    await until(lambda: port.live.streams == 0)
    asked = len(port.asked)
    await asyncio.sleep(20 * TICK_S)
    assert len(port.asked) == asked


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/text", 200, "two\nlines"),
        ("/spaced", 200, {"a": 1}),
        ("/empty", 200, ""),
        ("/parts", 200, "onetwo"),
        ("/absent", 404, plain_body("GET /absent is not served here", "notFound")),
    ],
)
async def test_any_answer_becomes_one_line_of_json(path: str, status: int, body: object) -> None:
    async with streamed(Port(), f"watch={path}") as stream:
        assert await stream.event() == {"watch": 0, "status": status, "body": body}


async def test_a_large_answer_is_refused_without_the_others() -> None:
    async with streamed(Port(), "watch=/large&watch=/number") as stream:
        events = [await stream.event(), await stream.event()]
        assert sorted(event["status"] for event in events if event) == [200, 413]


async def test_a_bug_in_a_route_ends_its_answers_alone() -> None:
    port = Port()
    async with streamed(port, "watch=/bug&watch=/number") as stream:
        events = [await stream.event(), await stream.event()]
        assert sorted(event["status"] for event in events if event) == [200, 500]
        port.number = 3
        event = await stream.event()
        assert event is not None
        assert event["body"] == {"number": 3}


@pytest.mark.parametrize(
    "query",
    [
        "",
        "watch=status",
        f"watch={LIVE}?watch=/status",
        "watch=/penstock/v1/%256cive?watch=/status",
        f"watch={LIVE}%250A?watch=/status",
        "watch=/%C3%A9",
        "&".join(["watch=/number"] * (WATCHES_MAX + 1)),
    ],
)
async def test_a_wrong_request_is_refused(query: str) -> None:
    async with streamed(Port(), query) as stream:
        assert (await stream.start())["status"] == 400


async def test_too_many_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_answers, "STREAMS_MAX", 1)
    port = Port()
    async with streamed(port, "watch=/number") as one:
        assert await one.event() is not None
        async with streamed(port, "watch=/number") as two:
            assert (await two.start())["status"] == 503


@pytest.mark.parametrize(("limit", "status"), [("STREAMS_MAX", 503), ("STREAMS_OF_ONE_MAX", 429)])
async def test_streams_that_begin_at_once_do_not_pass_the_limit(
    limit: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_answers, limit, 2)
    port = Port()
    async with AsyncExitStack() as opened:
        streams = [
            await opened.enter_async_context(streamed(port, "watch=/number")) for _ in range(5)
        ]
        found = [(await one.start())["status"] for one in streams]
        assert sorted(found) == [200, 200, status, status, status]
    await until(lambda: port.live.streams == 0)


async def test_one_principal_does_not_take_the_streams_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_answers, "STREAMS_OF_ONE_MAX", 1)
    kit = AccessFolderKit(tmp_path / "access", "[roles.some]\nallow = []\n")
    port = Port(kit.control)
    alice, bob = (as_principal(kit.control, f"user:{one}", "some") for one in ("alice", "bob"))
    async with streamed(port, "watch=/number", alice) as one:
        assert await one.event() is not None
        async with streamed(port, "watch=/who", alice) as two:
            assert (await two.start())["status"] == 429
        async with streamed(port, "watch=/who", bob) as two:
            assert await two.event() is not None
    await until(lambda: port.live.streams == 0)
    async with streamed(port, "watch=/number", alice) as one:
        assert await one.event() is not None


async def test_a_refused_path_rests_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refusal is recorded."""
    monkeypatch.setattr(live_answers, "REFUSED_INTERVALS", 1_000_000)
    kit = AccessFolderKit(tmp_path / "access", "[roles.some]\nallow = []\n")
    port = Port(kit.control)
    alice = as_principal(kit.control, "user:alice", "some")
    async with streamed(port, "watch=/metrics&watch=/number", alice):
        await until(lambda: len(port.asked) > 5)
    assert kit.control.audit.denied.value == 1


async def test_the_rule_of_a_path_decides_each_time(tmp_path: Path) -> None:
    kit = AccessFolderKit(tmp_path / "access", '[roles.some]\nallow = ["read system:status"]\n')
    port = Port(kit.control)
    alice = as_principal(kit.control, "user:alice", "some")
    async with streamed(port, "watch=/status&watch=/metrics&watch=/who", alice) as stream:
        events = [await stream.event() for _ in range(3)]
        found = {event["watch"]: event["status"] for event in events if event}
        assert found == {0: 200, 1: 403, 2: 200}
        (tmp_path / "access" / "access.toml").write_text("[roles.some]\nallow = []\n")
        kit.control.refresh()
        event = await stream.event()
        assert event is not None
        assert (event["watch"], event["status"]) == (0, 403)
    async with streamed(port, "watch=/status") as stream:
        assert (await stream.start())["status"] == 401


async def test_principals_do_not_share_answers(tmp_path: Path) -> None:
    kit = AccessFolderKit(tmp_path / "access", "[roles.some]\nallow = []\n")
    port = Port(kit.control)
    async with (
        streamed(port, "watch=/who", as_principal(kit.control, "user:alice", "some")) as one,
        streamed(port, "watch=/who", as_principal(kit.control, "user:bob", "some")) as two,
    ):
        events = [await one.event(), await two.event()]
        assert [event["body"] for event in events if event] == ["user:alice", "user:bob"]


async def test_streams_end_when_the_server_stops() -> None:
    port = Port()
    async with streamed(port, "watch=/number") as stream:
        assert await stream.event() is not None
        port.live.close()
        while (event := await stream.event()) is not None:
            assert event["watch"] == 0
    async with streamed(port, "watch=/number") as stream:
        assert (await stream.start())["status"] == 503


async def test_paths_of_a_principal_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_answers, "PATHS_OF_ONE_MAX", 2)
    port = Port()
    async with streamed(port, "watch=/number&watch=/who") as one:
        assert await one.event() is not None
        async with streamed(port, "watch=/number") as two:
            assert await two.event() is not None
        async with streamed(port, "watch=/text") as three:
            assert (await three.start())["status"] == 429
