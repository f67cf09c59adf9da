"""Discovery: a role's view step by step, and one suite over leases and over a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.services.membership.discovery import Discovery, Node
from penstock.services.membership.leases import RENEW_EVERY_S, TTL_MS, LeaseDiscovery, node_of
from penstock.services.membership.watchers import CallThread, RoleWatcher
from penstock.services.membership.zookeeper import ZooKeeper, ZooKeeperDiscovery
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import LeaseRow, MetadataStore
from penstock.testing.clock import VirtualClock
from tests.kits.ports_kit import kept_port
from tests.services import zookeeper_server_kit

WAIT_S = 120.0


def node(port: int, role: str = "worker") -> Node:
    return Node(role, f"w{port}", HostPort("h", port), {"workerNodeService": {"capacity": port}})


class Heard:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.present: set[str] = set()
        self.changed = threading.Condition()
        self.inside = 0

    def _hear(self, what: str) -> None:
        with self.changed:
            self.inside += 1
            assert self.inside == 1
            self.calls.append(what)
            self.changed.notify_all()
            self.inside -= 1

    def nodes_added(self, nodes: Sequence[Node]) -> None:
        self.present |= {one.instance for one in nodes}
        self._hear("+" + ",".join(sorted(one.instance for one in nodes)))

    def nodes_removed(self, nodes: Sequence[Node]) -> None:
        self.present -= {one.instance for one in nodes}
        self._hear("-" + ",".join(sorted(one.instance for one in nodes)))

    def view_initialised(self) -> None:
        self._hear("initialised")

    def view_initialised_timed_out(self) -> None:
        self._hear("timed out")

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), self.calls


class ByHand(CallThread):
    """Calls listeners when the test says so."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.queued: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call(self, call: Callable[[], None]) -> None:
        self.queued.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s == 30
        self.later.append(call)

    def run(self) -> None:
        while self.queued:
            self.queued.pop(0)()


@pytest.fixture
def calls() -> ByHand:
    return ByHand()


@pytest.fixture
def watcher(calls: ByHand) -> RoleWatcher:
    return RoleWatcher("worker", calls, VirtualClock())


def test_what_is_there_at_the_start_is_told_at_once(watcher: RoleWatcher, calls: ByHand) -> None:
    heard = Heard()
    watcher.listen(heard)
    watcher.add(node(1))
    watcher.add(node(2))
    watcher.remove(node(1).key)
    watcher.add(node(3))
    calls.run()
    assert heard.calls == []
    watcher.initialise()
    watcher.initialise()
    watcher.add(node(4))
    watcher.remove(node(2).key)
    calls.run()
    assert heard.calls == ["+w2,w3", "initialised", "+w4", "-w2"]


def test_a_view_that_is_late_is_told_as_far_as_it_is_known(
    watcher: RoleWatcher, calls: ByHand
) -> None:
    heard, late = Heard(), Heard()
    watcher.listen(heard)
    watcher.add(node(1))
    for time_over in calls.later:
        time_over()
    watcher.listen(late)
    watcher.initialise()
    watcher.synchronise({node(2).key: node(2)})
    calls.run()
    assert heard.calls == ["+w1", "timed out", "-w1", "+w2"]
    assert late.calls == heard.calls


def test_who_listens_late_hears_the_same_from_then_on(watcher: RoleWatcher, calls: ByHand) -> None:
    heard = Heard()
    watcher.synchronise({node(1).key: node(1)})
    watching = watcher.listen(heard)
    watcher.add(node(2))
    calls.run()
    assert heard.calls == ["+w1", "initialised", "+w2"]
    watcher.add(node(3))
    watching.stop()
    watcher.add(node(4))
    calls.run()
    assert heard.calls == ["+w1", "initialised", "+w2"]


def test_an_empty_view_is_told_too(watcher: RoleWatcher, calls: ByHand) -> None:
    heard = Heard()
    watcher.listen(heard)
    watcher.initialise()
    calls.run()
    assert heard.calls == ["+", "initialised"]


def test_what_does_not_fit_is_logged_and_left_out(
    watcher: RoleWatcher, calls: ByHand, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    watcher.listen(heard)
    watcher.initialise()
    watcher.add(node(1, "router"))
    watcher.synchronise({node(1, "router").key: node(1, "router"), node(2).key: node(2)})
    watcher.remove("h:77")
    twin = Node("worker", "twin", HostPort("h", 2))
    watcher.add(twin)
    calls.run()
    assert heard.calls == ["+", "initialised", "+w2"]
    assert watcher.nodes() == [node(2)]
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "h:1" in text and "router" in text]
    assert [text for text in texts if "h:77" in text]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 4)),
            st.tuples(st.just("remove"), st.integers(1, 4)),
            st.tuples(st.just("sync"), st.sets(st.integers(1, 4))),
            st.tuples(st.just("initialise"), st.none()),
            st.tuples(st.just("time out"), st.none()),
            st.tuples(st.just("listen"), st.none()),
        ),
        max_size=25,
    )
)
def test_what_listeners_hear_adds_up_to_what_is_there(
    steps: list[tuple[str, int | set[int] | None]],
) -> None:
    calls = ByHand()
    watcher = RoleWatcher("worker", calls, VirtualClock())
    listeners = [Heard()]
    watcher.listen(listeners[0])
    known: set[int] = set()
    result_of = False
    for step, value in steps:
        if step == "listen":
            listeners.append(Heard())
            watcher.listen(listeners[-1])
        elif step == "add" and isinstance(value, int):
            watcher.add(node(value))
            known.add(value)
        elif step == "remove" and isinstance(value, int):
            watcher.remove(node(value).key)
            known.discard(value)
        elif step == "sync" and isinstance(value, set):
            watcher.synchronise({node(one).key: node(one) for one in value})
            known = set(value)
        elif step == "initialise":
            watcher.initialise()
        elif step == "time out":
            calls.later[0]()
        result_of = result_of or step in ("sync", "initialise", "time out")
    calls.run()
    for heard in listeners:
        assert heard.present == ({f"w{one}" for one in known} if result_of else set())
        ends = [one for one in heard.calls if one in ("initialised", "timed out")]
        assert len(ends) == result_of
        assert not result_of or heard.calls[1] == ends[0]
        assert "+" not in heard.calls[1:]
        assert "-" not in heard.calls


def test_a_listener_that_fails_does_not_keep_others_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    calls = CallThread(clock)
    done = threading.Event()

    def fails() -> None:
        raise RuntimeError("a listener")

    calls.call_later(5, done.set)
    calls.call(fails)
    calls.start()
    clock.wait_for_waiting(1)
    clock.advance(4)
    assert not done.is_set()
    clock.advance(1)
    assert done.wait(120)
    calls.stop()
    assert "a listener failed" in caplog.text


@pytest.mark.parametrize(
    ("host", "ports"), [("h", (-1, 8091)), ("10.0.0.7", (-1, 8091)), ("127.0.0.1", (8091, -1))]
)
def test_announcements_are_druids_documents(host: str, ports: tuple[int, int]) -> None:
    """Other hosts reach a process under TLS only."""
    told = Node("worker", "name", HostPort(host, 8091), {"workerNodeService": {"capacity": 4}}, 7)
    document = told.to_json()
    assert document["nodeType"] == "worker"
    assert document["druidNode"] == {
        "service": "worker",
        "host": host,
        "plaintextPort": ports[0],
        "tlsPort": ports[1],
        "enablePlaintextPort": ports[0] > 0,
        "enableTlsPort": ports[1] > 0,
    }
    assert Node.from_json(document) == told


def test_announcements_of_others_are_read() -> None:
    foreign = {
        "druidNode": {"service": "druid/mm", "host": "x", "plaintextPort": 1},
        "nodeType": "middleManager",
        "services": {"good": {"a": 1}, "bad": 3},
        "startTime": "yesterday",
    }
    read = Node.from_json(foreign)
    assert (read.role, read.key, dict(read.services)) == (
        "middleManager",
        "x:1",
        {"good": {"a": 1}},
    )
    for wrong in (None, {}, {"nodeType": "x", "druidNode": {"host": "x"}}):
        with pytest.raises(InvalidRequest):
            Node.from_json(wrong)


def test_a_lease_without_a_document_is_a_node_too() -> None:
    row = LeaseRow("worker", "old", "h", 5, 0, {}, 3)
    assert node_of(row) == Node("worker", "old", HostPort("h", 5), started_ms=3)


# One suite over both


class Backend(Protocol):
    def open(self) -> Discovery: ...
    def cut(self) -> None: ...
    def remedy(self) -> None: ...


class Cuttable:
    """Leases that can be out of reach."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.is_cut = False

    def __getattr__(self, name: str) -> object:
        if self.is_cut:
            raise Unavailable("the database is away")
        return getattr(self._store.leases, name)


class LeaseBackend:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        clock = SystemClock()
        url = f"sqlite:///{folder}/m.db"
        self._store = stack.enter_context(MetadataStore.open(url, clock=clock))
        self._leases = Cuttable(self._store)

    def open(self) -> LeaseDiscovery:
        made = LeaseDiscovery(self._leases, SystemClock())  # type: ignore[arg-type]
        made.start()
        self._stack.callback(made.stop)
        return made

    def cut(self) -> None:
        self._leases.is_cut = True

    def remedy(self) -> None:
        self._leases.is_cut = False


class ZooKeeperBackend:
    def __init__(self, server: zookeeper_server_kit.ZooKeeperServer, base: str, stack: ExitStack):
        self._server = server
        self._base = base
        self._stack = stack
        self.clients: list[ZooKeeper] = []

    def open(self) -> ZooKeeperDiscovery:
        client = ZooKeeper(self._server.hosts, self._base, session_timeout_s=6)
        self.clients.append(client)
        made = ZooKeeperDiscovery(client, SystemClock())
        made.start()
        self._stack.callback(made.stop)
        return made

    def cut(self) -> None:
        self._server.stop()

    def remedy(self) -> None:
        self._server.start()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[zookeeper_server_kit.ZooKeeperServer]:
    with zookeeper_server_kit.running_server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(params=["leases", "zookeeper"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with ExitStack() as stack:
        if request.param == "leases":
            yield LeaseBackend(tmp_path, stack)
        else:
            running = request.getfixturevalue("server")
            yield ZooKeeperBackend(running, f"/test/{tmp_path.name}", stack)


def announce_in_the_end(discovery: Discovery, one: Node) -> None:
    pause = threading.Event()
    for _ in range(1_200):
        try:
            discovery.announce(one)
        except Unavailable:
            pause.wait(0.1)  # a connection that comes back tells us nothing
        else:
            return
    pytest.fail("no connection came back")


def test_nodes_are_found_and_missed(backend: Backend) -> None:
    ours, theirs = backend.open(), backend.open()
    first = theirs.announce(node(1))
    theirs.announce(node(9, "router"))
    heard = Heard()
    ours.watch("worker", heard)
    heard.until(lambda: heard.calls == ["+w1", "initialised"])
    second = theirs.announce(node(2))
    heard.until(lambda: heard.present == {"w1", "w2"})
    assert sorted(ours.nodes("worker"), key=lambda one: one.key) == [node(1), node(2)]
    assert [one.instance for one in ours.nodes("router")] == ["w9"]
    assert ours.nodes("broker") == []
    first.withdraw()
    first.withdraw()
    heard.until(lambda: heard.present == {"w2"})
    second.withdraw()
    heard.until(lambda: heard.calls[-1] == "-w2")


def test_who_stops_is_gone(backend: Backend) -> None:
    ours, theirs = backend.open(), backend.open()
    theirs.announce(node(1))
    heard = Heard()
    ours.watch("worker", heard)
    heard.until(lambda: heard.present == {"w1"})
    theirs.stop()
    heard.until(lambda: not heard.present)


def test_what_is_known_stays_while_nobody_can_be_asked(backend: Backend) -> None:
    ours, theirs = backend.open(), backend.open()
    theirs.announce(node(1))
    heard = Heard()
    ours.watch("worker", heard)
    heard.until(lambda: heard.present == {"w1"})
    backend.cut()
    try:
        with pytest.raises(Unavailable):
            theirs.announce(node(2))
        assert [one.instance for one in ours.nodes("worker")] == ["w1"]
    finally:
        backend.remedy()
    announce_in_the_end(theirs, node(3))
    heard.until(lambda: heard.present == {"w1", "w3"})


def test_a_lost_session_is_followed_by_another_with_all_that_was_announced(
    server: zookeeper_server_kit.ZooKeeperServer,
) -> None:
    with ExitStack() as stack:
        backend = ZooKeeperBackend(server, "/test/lost", stack)
        ours, theirs = backend.open(), backend.open()
        theirs.announce(node(1))
        heard = Heard()
        ours.watch("worker", heard)
        heard.until(lambda: heard.present == {"w1"})
        # The servers hear of an end of the session that the client does not know of.
        client = backend.clients[1].client
        thief = ZooKeeper(server.hosts, "/test", session_timeout_s=6)
        thief.client._session_id, thief.client._session_passwd = client.client_id
        thief.start()
        thief.stop()
        heard.until(lambda: "-w1" in heard.calls)
        heard.until(lambda: heard.present == {"w1"})


def test_a_node_that_an_earlier_session_left_is_replaced(
    server: zookeeper_server_kit.ZooKeeperServer,
) -> None:
    with ExitStack() as stack:
        backend = ZooKeeperBackend(server, "/test/left", stack)
        backend.open().announce(node(1))
        again = backend.open()
        announced = again.announce(node(1))
        heard = Heard()
        again.watch("worker", heard)
        heard.until(lambda: heard.present == {"w1"})
        path = "/test/left/internal-discovery/WORKER/h:1"
        found = backend.clients[1].client.exists(path)
        assert found is not None
        assert found.ephemeralOwner == backend.clients[1].client.client_id[0]
        announced.withdraw()


class Raced:
    """A ZooKeeper where another thread of this process makes the node in between."""

    base = "/penstock"
    session = 7

    def __init__(self) -> None:
        self.made = False

    def owner(self, _path: str) -> int | None:
        return self.session if self.made else None

    def create(self, path: str, _content: bytes) -> str:
        self.made = True
        raise Unavailable(f"another session has just created {path}")


def test_a_node_that_the_thread_has_made_meanwhile_is_announced() -> None:
    zookeeper = cast("ZooKeeper", Raced())
    ZooKeeperDiscovery(zookeeper, SystemClock()).announce(node(8101))


def test_without_a_zookeeper_the_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.services.membership.zookeeper.CONNECT_TIMEOUT_S", 0.3)
    with kept_port() as port, pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        ZooKeeper(f"127.0.0.1:{port}", "/x").start()


def test_a_session_that_cannot_begin_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = ZooKeeper("127.0.0.1:1", "/x")
    ended: list[int] = []

    def fail(**_given: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(zookeeper.client, "start", fail)
    monkeypatch.setattr(zookeeper, "stop", lambda: ended.append(1))
    with pytest.raises(MemoryError):
        zookeeper.start()
    assert ended


def test_polls_and_renewals_outlive_an_error_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()

    def fails(*_given: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    with MetadataStore.open(f"sqlite:///{tmp_path}/m.db", clock=clock) as store:
        discovery = LeaseDiscovery(store.leases, clock)
        discovery.start()
        try:
            heard = Heard()
            discovery.watch("worker", heard)
            discovery.announce(node(1))
            clock.wait_for_waiting(3)
            with monkeypatch.context() as broken:
                broken.setattr(store.leases, "list", fails)
                broken.setattr(store.leases, "renew", fails)
                clock.advance(RENEW_EVERY_S)
                clock.wait_until(lambda: discovery.faults >= 2)
            clock.wait_for_waiting(3)
            clock.advance(RENEW_EVERY_S)
            heard.until(lambda: heard.present == {"w1"})
            clock.wait_for_waiting(3)
            clock.advance(TTL_MS / 1_000 - 1)
            assert [row.instance for row in store.leases.list("worker")] == ["w1"]
        finally:
            discovery.stop()
