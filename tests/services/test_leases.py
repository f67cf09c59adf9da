"""Who is found by leases, and what a child inherits."""

from __future__ import annotations

import os
import random
import socket

import pytest

from penstock.core.errors import Unavailable
from penstock.services.membership.leases import LeaseDirectory, LeaseView
from penstock.services.options.option_values import HostPort
from penstock.services.roles.runtime import InheritedSocket, StartReporter
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(tmp_path, clock):
    with MetadataStore.open(f"sqlite:///{tmp_path}/m.db", clock=clock) as opened:
        yield opened


def renew(store, service: str, instance: str, port: int) -> None:
    store.leases.renew(service, instance, host="h", port=port, ttl_ms=15_000)


def test_of_overlords_the_one_that_renewed_last_is_the_one(store, clock):
    renew(store, "overlord", "old", 1)
    clock.advance(ms=5_000)
    renew(store, "overlord", "new", 2)
    directory = LeaseDirectory(store.leases)
    assert {directory.find("overlord") for _ in range(20)} == {HostPort("h", 2)}
    clock.advance(ms=16_000)
    with pytest.raises(Unavailable, match="no overlord is running"):
        directory.find("overlord")


def test_of_workers_any_is_found(store):
    for port in (1, 2, 3):
        renew(store, "worker", f"w{port}", port)
    directory = LeaseDirectory(store.leases, random.Random(1))
    assert {directory.find("worker").port for _ in range(50)} == {1, 2, 3}
    assert len(directory.all("worker")) == 3


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_a_wall_clock_that_is_wrong_hides_nobody_and_keeps_nobody(tmp_path, clock, ahead_ms):
    """Who looks has another time than the worker that renews its lease, and then dies."""
    with MetadataStore.open(f"sqlite:///{tmp_path}/m.db", clock=clock) as theirs:
        ours = VirtualClock(clock.now_ms() + ahead_ms)
        directory = LeaseDirectory(LeaseView(theirs.leases, ours))

        def look() -> bool:
            return bool(directory.all("worker"))

        renew(theirs, "worker", "w", 1)
        assert look() == (ahead_ms <= 0)
        for _ in range(10):
            clock.advance(ms=4_000)
            ours.advance(ms=4_000)
            renew(theirs, "worker", "w", 1)
            assert look()
        ours.advance(ms=14_000)
        assert look()
        ours.advance(ms=2_000)
        assert not look()


def test_an_old_change_is_no_sign_of_life(store, clock):
    view = LeaseView(store.leases, clock)
    renew(store, "worker", "w", 1)
    assert view.list("worker")
    clock.advance(ms=4_000)
    renew(store, "worker", "w", 1)  # its last, and nobody looks for long
    clock.advance(ms=600_000)
    assert not view.list("worker")
    store.leases.drop("worker", "w")
    assert not view.list()
    renew(store, "worker", "w", 1)
    assert view.list()


def test_a_roles_children_do_not_keep_its_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        given = os.dup(listener.fileno())
        os.set_inheritable(given, True)  # noqa: FBT003
        with InheritedSocket(given, HostPort("127.0.0.1", 0)).open() as opened:
            assert opened.getsockname() == listener.getsockname()
            assert not opened.get_inheritable()


def test_readiness_whose_report_raised_is_reported_later(monkeypatch):
    reading, writing = os.pipe()
    reporter = StartReporter(writing)

    def fail(*_arguments):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("penstock.services.roles.runtime.os.write", fail)
        with pytest.raises(MemoryError):
            reporter.ready()
    reporter.ready()
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ready\n"


def test_readiness_is_not_reported_to_a_launcher_that_has_ended():
    reading, writing = os.pipe()
    os.close(reading)
    reporter = StartReporter(writing)
    reporter.ready()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writing)


def test_readiness_is_told_once_and_by_no_child():
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # noqa: FBT003
    report = StartReporter(writing).ready
    assert not os.get_inheritable(writing)
    report()
    report()
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"ready\n"
