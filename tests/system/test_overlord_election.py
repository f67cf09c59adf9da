"""Real overlords: the leader is killed, or stopped and woken; another one leads within seconds."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Fenced
from penstock.services.json_client import JsonClient
from penstock.storage.metadata import MetadataStore, Term
from penstock.storage.sqlite_urls import sqlite_url
from tests.system.worker_kit import wait_for

pytestmark = pytest.mark.system

PREFIX = "/druid/indexer/v1"


class RealOverlord:
    """An overlord's process on a data folder that it shares with others."""

    def __init__(self, data: Path, output: Path) -> None:
        self.output = output
        argv = [sys.executable, "-m", "penstock", "server", "overlord", "--data-dir", str(data)]
        with output.open("ab") as stream:
            self.process = subprocess.Popen(
                [*argv, "--http", "127.0.0.1:0"], stdout=stream, stderr=subprocess.STDOUT
            )

    def find(self) -> Self:
        """Wait until it says where it listens."""
        pattern = r"listens on (127\.0\.0\.1:\d+)"
        self.url = "http://" + wait_for(
            "address", lambda: re.search(pattern, self.output.read_text())
        ).group(1)
        return self

    @property
    def leads(self) -> bool:
        try:
            answer = JsonClient(self.url, timeout_s=5).get(f"{PREFIX}/isLeader")
        except Exception as error:  # noqa: BLE001
            answer = error
        return answer == {"leader": True}

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def status_of(url: str) -> tuple[int, str]:
    """Return the status of a GET and where it points; 0 if there is no answer."""
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(url, timeout=10) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get("Location", "")
    except OSError:
        return 0, ""


@pytest.fixture
def overlords(tmp_path: Path) -> Iterator[list[RealOverlord]]:
    data = tmp_path / "data"
    made = [RealOverlord(data, tmp_path / f"overlord-{n}.out") for n in (1, 2)]
    try:
        for one in made:
            one.find()
        yield made
    finally:
        for one in made:
            one.end()
            print(one.output.read_text()[-4000:])  # shown with a failure


@pytest.fixture
def store(overlords: list[RealOverlord], tmp_path: Path) -> Iterator[MetadataStore]:
    url = sqlite_url(tmp_path / "data" / "metadata.db")
    with MetadataStore.open(url, clock=SystemClock()) as opened:
        yield opened


def leader_of(overlords: list[RealOverlord]) -> RealOverlord:
    return wait_for("leader", lambda: next((one for one in overlords if one.leads), None))


def term_of(store: MetadataStore) -> Term:
    term = store.terms.current("overlord")
    assert term is not None
    return term


def test_the_leader_is_killed_and_the_other_leads(
    overlords: list[RealOverlord], store: MetadataStore
) -> None:
    clock = SystemClock()
    first = leader_of(overlords)
    other = next(one for one in overlords if one is not first)
    assert not other.leads
    assert status_of(f"{other.url}{PREFIX}/tasks?n=1") == (307, f"{first.url}{PREFIX}/tasks?n=1")
    wait_for("answer", lambda: status_of(f"{first.url}{PREFIX}/tasks") == (200, ""))
    first.signal(signal.SIGKILL)
    killed_s = clock.monotonic_s()
    wait_for("successor", lambda: other.leads)
    took_s = clock.monotonic_s() - killed_s
    print(f"the other leads {took_s:.1f} s after a kill")
    assert took_s < 50
    assert term_of(store).holder == other.url
    wait_for("answer", lambda: status_of(f"{other.url}{PREFIX}/tasks") == (200, ""))


def stop_outside_a_transaction(overlord: RealOverlord, database: Path) -> None:
    """Stop its process while it holds no lock of SQLite, which would keep out everybody else."""
    while True:
        overlord.signal(signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(database, 1.0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                print(f"stopped in a transaction: {error}")
                overlord.signal(signal.SIGCONT)
            else:
                return


def test_a_stopped_leader_wakes_deposed(
    overlords: list[RealOverlord], store: MetadataStore, tmp_path: Path
) -> None:
    clock = SystemClock()
    first = leader_of(overlords)
    other = next(one for one in overlords if one is not first)
    before = term_of(store)
    stop_outside_a_transaction(first, tmp_path / "data" / "metadata.db")
    stopped_s = clock.monotonic_s()
    wait_for("successor", lambda: other.leads)
    took_s = clock.monotonic_s() - stopped_s
    print(f"the other leads {took_s:.1f} s after a stop")
    assert took_s < 50
    # What the stopped one would write under its term is refused from now on.
    with pytest.raises(Fenced):
        store.under(before).config.compare_and_set("x", None, b"{}")
    first.signal(signal.SIGCONT)
    wait_for(
        "insight",
        lambda: status_of(f"{first.url}{PREFIX}/tasks") == (307, f"{other.url}{PREFIX}/tasks"),
    )
    assert not first.leads
    assert other.leads
    assert term_of(store).holder == other.url
    # And it is a good follower: it leads again when the other one ends.
    other.end()
    wait_for("return", lambda: first.leads)
    assert term_of(store).number > before.number + 1
