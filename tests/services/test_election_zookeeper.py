"""Election over a real ZooKeeper: who is first leads, and terms fence off who led before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Fenced
from penstock.services.membership.election import Contest, LeaderSelector, SelectorOptions
from penstock.services.membership.zookeeper import ZooKeeper, ZooKeeperContest
from penstock.storage.metadata import MetadataStore, Term
from tests.harness.event_kit import KeptEvents
from tests.services import zookeeper_server_kit

A, B = "http://a:1", "http://b:2"


class Story:
    """A listener that says when it leads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.terms: list[Term] = []
        self.leads = False

    def become_leader(self, term: Term) -> None:
        with self.changed:
            self.terms.append(term)
            self.leads = True
            self.changed.notify_all()

    def stop_being_leader(self) -> None:
        with self.changed:
            self.leads = False
            self.changed.notify_all()

    def until(self, *, leads: bool) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.leads is leads, 120)


class Rig:
    """Sessions, contests and selectors over one store."""

    def __init__(self, hosts: str, base: str, store: MetadataStore, stack: ExitStack) -> None:
        self.hosts, self.base, self.store, self.stack = hosts, base, store, stack

    def session(self) -> ZooKeeper:
        made = ZooKeeper(self.hosts, self.base, session_timeout_s=6)
        made.start()
        self.stack.callback(made.stop)
        return made

    def contest(self, session: ZooKeeper, holder: str) -> ZooKeeperContest:
        return ZooKeeperContest(session, self.store.terms, "overlord", holder, holder[-1] * 32)

    def stand(self, contest: Contest, story: Story) -> LeaderSelector:
        options = SelectorOptions(renew_every_s=0.2, seek_every_s=0.2)
        made = LeaderSelector(contest, story, SystemClock(), KeptEvents(), lambda: None, options)
        made.start()
        self.stack.callback(made.stop)
        return made


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[zookeeper_server_kit.ZooKeeperServer]:
    with zookeeper_server_kit.running_server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def rig(server: zookeeper_server_kit.ZooKeeperServer, tmp_path: Path) -> Iterator[Rig]:
    url = f"sqlite:///{tmp_path}/m.db"
    with MetadataStore.open(url, clock=SystemClock()) as store, ExitStack() as stack:
        yield Rig(server.hosts, f"/test/{tmp_path.name}", store, stack)


def test_the_next_candidate_leads_when_the_first_one_stops(rig: Rig) -> None:
    first, second = Story(), Story()
    a = rig.stand(rig.contest(rig.session(), A), first)
    first.until(leads=True)
    b = rig.stand(rig.contest(rig.session(), B), second)
    assert b.wait_decided(120)
    assert (a.is_leader, b.is_leader) == (True, False)
    a.stop()
    second.until(leads=True)
    assert [one.number for one in first.terms + second.terms] == [1, 2]
    assert b.leader() == B


def test_a_leader_whose_session_ended_is_fenced_before_it_knows(rig: Rig) -> None:
    lost, kept = rig.session(), rig.session()
    contest = rig.contest(lost, A)
    contest.start(lambda: None)
    term = contest.seek()
    assert term is not None
    assert contest.keep(term).number == 1
    story = Story()
    rig.stand(rig.contest(kept, B), story)
    # It dies without a word: its candidate goes with its session.
    lost.client.stop()
    story.until(leads=True)
    # Long before the old term's time is over.
    with pytest.raises(Fenced):
        rig.store.under(term).config.compare_and_set("x", None, b"{}")
    with pytest.raises(Fenced):
        contest.keep(term)


def test_one_that_resigns_stands_behind_the_others(rig: Rig) -> None:
    a, b = rig.contest(rig.session(), A), rig.contest(rig.session(), B)
    for one in (a, b):
        one.start(lambda: None)
    term = a.seek()
    assert term is not None
    assert b.seek() is None
    a.resign(term)
    assert a.seek() is None
    assert b.seek() is not None
    with pytest.raises(Fenced):
        a.keep(term)


def test_a_candidate_whose_making_was_not_answered_is_found_again(rig: Rig) -> None:
    session = rig.session()
    lost_answer = rig.contest(session, A)
    assert lost_answer.seek() is not None
    again = rig.contest(session, A)  # knows nothing of it
    assert again.seek() is not None
    names = session.children(f"{session.base}/leader/overlord", lambda: None)
    assert len(names) == 1
    again.stop()
    assert session.children(f"{session.base}/leader/overlord", lambda: None) == []


def test_who_looks_at_a_folder_again_and_again_is_told_of_a_change_once(rig: Rig) -> None:
    watching, other = rig.session(), rig.session()
    told = threading.Semaphore(0)
    folder = f"{rig.base}/folder"
    for _ in range(5):
        assert watching.children(folder, told.release) == []
    other.create(f"{folder}/one", b"")
    assert told.acquire(timeout=120)
    # Kazoo calls in order, so all that it had to say of the first change was said.
    watching.children(folder, told.release)
    other.create(f"{folder}/two", b"")
    assert told.acquire(timeout=120)
    assert not told.acquire(blocking=False)
