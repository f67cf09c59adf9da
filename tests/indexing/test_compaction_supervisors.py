"""Supervisors that compact: which configuration counts of a datasource, whatever dies between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.indexing.overlord.compaction.compaction_duty import CompactionConfigs
from penstock.indexing.specs import SpecError, parse_supervisor
from penstock.indexing.specs.compaction import ClusterCompaction, CompactionConfig, parse_compaction
from penstock.indexing.specs.supervisor_spec import AnySupervisorSpec
from penstock.storage.metadata import AuditRow
from tests.harness.metadata_kit import MemoryMetadata
from tests.indexing.indexing_kit import spec_json
from tests.indexing.term_kit import TermWorld

ID = "autocompact__d"
SPEC: dict[str, Any] = {
    "type": "autocompact",
    "spec": {"dataSource": "d", "skipOffsetFromLatest": "P2D"},
}


class CompactionWorld(TermWorld):
    """An overlord that leads, and the store that it leads by."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lead()

    def lead(self) -> None:
        """Lead, as another overlord does that begins after this one died."""
        self.overlord = self.make()
        self.ask(self.overlord.start())
        self.desk = self.overlord.supervisor_service

    def configs(self) -> CompactionConfigs:
        return CompactionConfigs.read(self.metadata)

    def skips(self) -> dict[str, str]:
        """Return what is left alone of each datasource that is compacted."""
        return {k: v.skip_offset_from_latest for k, v in self.configs().active.items()}

    def configure(self, skip: str) -> None:
        config = parse_compaction({"dataSource": "d", "skipOffsetFromLatest": skip})
        self.ask(self.overlord.compaction_service.configure(config, skips_noted))

    def noted(self) -> list[object]:
        """Return what the audit log has of `skips_noted`, the newest first."""
        return [row.payload["skips"] for row in self.metadata.audit.list("d")]


def skips_noted(configs: CompactionConfigs) -> AuditRow:
    skips = {k: v.skip_offset_from_latest for k, v in configs.datasources.items()}
    return AuditRow("d", "compaction", "me", "", {"skips": skips})


def _config(spec: AnySupervisorSpec) -> CompactionConfig:
    assert isinstance(spec.spec, CompactionConfig)
    return spec.spec


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CompactionWorld]:
    made = CompactionWorld(tmp_path)
    yield made
    made.metadata.close()


def summary(world: CompactionWorld) -> dict[str, Any]:
    (view,) = world.ask(world.desk.every())
    return dict(view.summary)


def test_a_spec_is_read_and_its_mistakes_have_their_places() -> None:
    spec = parse_supervisor(SPEC)
    assert (spec.supervisor_id, spec.suspended, spec.stream) == (ID, False, "")
    assert parse_supervisor(spec.to_json()) == spec
    assert (
        parse_supervisor("type: autocompact\nspec: {dataSource: d, engine: msq}").suspended is False
    )
    for wrong, says in (
        ({"type": "autocompact"}, "spec"),
        ({**SPEC, "spec": {"dataSourc": "d"}}, r"spec\.dataSourc: .*dataSource"),
        ({**SPEC, "id": "mine"}, "id: .*leave it out"),
        ({**SPEC, "suspend": True}, "suspended"),
        ({**SPEC, "context": {"priority": 3}}, r"context: .*taskContext"),
        ({**SPEC, "type": "autocompaction"}, "type: must be autocompact"),
        ({"spec": SPEC["spec"]}, "type: must be autocompact"),
    ):
        with pytest.raises(SpecError, match=says):
            parse_supervisor(wrong)


def test_it_is_kept_with_versions_suspended_resumed_and_terminated(world: CompactionWorld) -> None:
    done = world.ask(world.desk.submit(SPEC))
    assert (done.id, done.modified, done.restarted) == (ID, True, False)
    assert world.skips() == {"d": "P2D"}
    assert not world.ask(world.desk.submit(SPEC, skip_unmodified=True)).modified
    assert summary(world) == {
        "id": ID,
        "type": "autocompact",
        "dataSource": "d",
        "state": "RUNNING",
        "detailedState": "RUNNING",
        "healthy": True,
        "suspended": False,
    }
    assert world.ask(world.desk.suspend(ID)).suspended
    assert world.skips() == {}
    assert list(world.configs().datasources) == ["d"]  # it is there to see
    assert summary(world)["state"] == "SUSPENDED"
    with pytest.raises(InvalidRequest, match="already suspended"):
        world.ask(world.desk.suspend(ID))
    world.ask(world.desk.resume(ID))
    assert world.skips() == {"d": "P2D"}
    assert [row.payload["suspended"] for row in world.desk.history(ID)] == [False, True, False]
    world.ask(world.desk.terminate(ID))
    assert world.skips() == {}
    assert world.ask(world.desk.every()) == []
    assert world.metadata.supervisors.unreleased() == []  # there is nothing to wait for
    with pytest.raises(NotFound, match="there are: none"):
        world.ask(world.desk.spec(ID))
    world.ask(world.desk.submit(SPEC))
    assert [row.tombstone for row in world.desk.history(ID)] == [False, True, False, False, False]


def test_the_next_leader_has_them_as_they_were(world: CompactionWorld) -> None:
    world.ask(world.desk.submit(SPEC))
    world.ask(world.desk.suspend(ID))
    world.lead()
    assert summary(world)["suspended"] is True
    world.ask(world.desk.resume(ID))
    world.lead()
    assert world.skips() == {"d": "P2D"}
    world.metadata.supervisors.terminate(ID)  # and the leader dies before all else
    world.lead()
    assert world.ask(world.desk.every()) == []
    assert world.metadata.supervisors.unreleased() == []


def test_one_configuration_counts_whichever_way_it_came(world: CompactionWorld) -> None:
    world.configure("P1D")
    assert world.skips() == {"d": "P1D"}
    assert world.ask(world.desk.every()) == []
    world.ask(world.desk.submit(SPEC))  # it takes over
    assert world.skips() == {"d": "P2D"}
    world.ask(world.desk.suspend(ID))
    world.configure("P3D")  # changes the spec of the supervisor, and resumes it as Druid's does
    assert world.skips() == {"d": "P3D"}
    spec = world.ask(world.desk.spec(ID))
    assert (spec.suspended, _config(spec).skip_offset_from_latest) == (False, "P3D")
    world.ask(world.overlord.compaction_service.end("d"))
    assert world.ask(world.desk.every()) == []
    assert world.skips() == {}  # the first does not come back
    world.configure("P4D")
    world.ask(world.overlord.compaction_service.end("d"))
    assert world.skips() == {}


def test_each_change_is_noted_with_what_it_made(world: CompactionWorld) -> None:
    world.configure("P1D")
    world.ask(world.desk.submit(SPEC))
    world.configure("P3D")
    world.ask(world.overlord.compaction_service.end("d", skips_noted))
    world.configure("P4D")
    world.ask(world.overlord.compaction_service.end("d", skips_noted))
    assert world.noted() == [{}, {"d": "P4D"}, {}, {"d": "P3D"}, {"d": "P1D"}]


def test_what_cannot_be_noted_is_not_done(world: CompactionWorld) -> None:
    """The entry is of the same transaction as the supervisor's spec, or its end."""
    world.ask(world.desk.submit(SPEC))

    def unwritable(configs: CompactionConfigs) -> AuditRow:
        return replace(skips_noted(configs), payload={"made": object()})

    desk, config = world.overlord.compaction_service, parse_compaction({"dataSource": "d"})
    changes: tuple[Callable[[], Future[Any]], ...] = (
        lambda: desk.configure(config, unwritable),
        lambda: desk.end("d", unwritable),
    )
    for change in changes:
        with pytest.raises(InvalidRequest, match="plain JSON"):
            world.ask(change())
        world.lead()
        assert world.skips() == {"d": "P2D"}
    assert [row.tombstone for row in world.desk.history(ID)] == [False]


def test_a_change_that_was_overtaken_is_noted_as_it_was_written(world: CompactionWorld) -> None:
    world.configure("P1D")
    others = [ClusterCompaction(max_compaction_task_slots=3)]

    def without(known: CompactionConfigs) -> CompactionConfigs:
        if others:
            cluster = others.pop()
            CompactionConfigs.change(world.metadata, lambda now: replace(now, cluster=cluster))
        return replace(known, datasources={})

    done = CompactionConfigs.change(world.metadata, without, skips_noted)
    assert (done.cluster.max_compaction_task_slots, dict(done.datasources)) == (3, {})
    assert world.noted() == [{}, {"d": "P1D"}]


def test_what_a_crash_left_beside_a_supervisor_does_not_count(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.configure("P1D")

    def cut(_metadata: MemoryMetadata, _datasources: Sequence[str]) -> None:
        raise Conflict("the process ended here")

    with monkeypatch.context() as patch:
        patch.setattr(CompactionConfigs, "drop", cut)
        assert world.ask(world.desk.submit(SPEC)).modified  # It is stored, so that is no error.
    assert world.skips() == {"d": "P2D"}
    world.lead()
    assert world.skips() == {"d": "P2D"}
    world.ask(world.desk.terminate(ID))
    assert world.skips() == {}


def test_what_others_can_is_refused_with_the_mend(world: CompactionWorld) -> None:
    world.ask(world.desk.submit(SPEC))
    desk = world.desk
    commands: tuple[Callable[[], Future[Any]], ...] = (
        lambda: desk.stats(ID),
        lambda: desk.parse_errors(ID),
        lambda: desk.reset(ID),
        lambda: desk.reset(ID, {0: 1}),
        lambda: desk.hand_off(ID, [0]),
        lambda: desk.backfill(ID),
        lambda: desk.lag_samples(ID),
    )
    for command in commands:
        with pytest.raises(InvalidRequest, match=r"reads no stream.*Get its status"):
            world.ask(command())


def test_an_id_is_of_one_kind_at_a_time(world: CompactionWorld) -> None:
    world.ask(world.desk.submit(SPEC))
    with pytest.raises(InvalidRequest, match=r"id: .*terminate the existing one first"):
        world.ask(world.desk.submit({**spec_json(), "id": ID}))
    assert [row.payload["type"] for row in world.metadata.supervisors.list()] == ["autocompact"]


def test_all_of_both_kinds_change_at_once(world: CompactionWorld) -> None:
    world.ask(world.desk.submit(SPEC))
    world.ask(world.desk.submit({**SPEC, "spec": {"dataSource": "e"}, "suspended": True}))
    assert world.ask(world.desk.suspend_all(suspended=True)) == 1
    assert world.skips() == {}
    assert world.ask(world.desk.suspend_all(suspended=False)) == 2
    assert sorted(world.skips()) == ["d", "e"]
    assert world.ask(world.desk.terminate_all()) == 2
    assert world.skips() == {}
    assert world.metadata.supervisors.unreleased() == []


def test_one_that_cannot_be_read_compacts_nothing_and_can_be_replaced_or_ended(
    world: CompactionWorld,
) -> None:
    odd = {"type": "autocompact", "spec": {"dataSource": "d", "newWish": 1}}
    world.configure("P1D")
    for remedy in ("submit", "configure", "terminate", "all"):
        world.metadata.supervisors.put(ID, odd)
        world.lead()
        assert world.skips() == {}
        with pytest.raises(NotFound, match="newWish"):
            world.ask(world.desk.spec(ID))
        if remedy == "submit":
            world.ask(world.desk.submit(SPEC))
            assert world.skips() == {"d": "P2D"}
        elif remedy == "configure":
            world.configure("P5D")
            assert _config(world.ask(world.desk.spec(ID))).skip_offset_from_latest == "P5D"
        elif remedy == "terminate":
            world.ask(world.desk.terminate(ID))
            assert world.skips() == {}
        else:
            assert world.ask(world.desk.terminate_all()) == 1
        assert world.metadata.supervisors.unreleased() == []
