"""Sessions under exceptions that nobody expects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from session_world import World

from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import Relationship
from penstock.testing.injection import FAULTS


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("commits", [True, False])
def test_an_exception_of_one_queue_keeps_no_other_step_from_being_taken(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], commits: bool
) -> None:
    world.feed("a", b"1")
    world.feed("b", b"2")
    session, transaction = world.begin()
    taken = [session.get(), session.get()]
    first = world.queues["out" if commits else "a"]
    put = first.put_many

    def put_and_raise(flowfiles: Sequence[FlowFile]) -> None:
        put(flowfiles)
        raise error("after they were added, as for a swap file that cannot be written")

    monkeypatch.setattr(first, "put_many", put_and_raise)
    for flowfile in taken:
        assert flowfile is not None
        session.transfer(flowfile, Relationship(name="success"))
    with pytest.raises(error):
        transaction.commit() if commits else transaction.rollback(penalize=True)
    left = [one for name in ("a", "b", "out") for one in world.contents(name)]
    assert sorted(left) == [b"1", b"2"]
    world.check()
