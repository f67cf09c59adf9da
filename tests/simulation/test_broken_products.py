"""A product without one of its safeguards is found out by few seeds, or the checker is blind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.core.errors import LockRevoked, Unavailable
from penstock.core.intervals import Interval
from penstock.indexing.batch import compact_plan
from penstock.indexing.lockbox import lockbox, lockboxes
from penstock.indexing.lockbox.coverage import SectionLocks
from penstock.indexing.lockbox.lock_rules import coexist
from penstock.indexing.lockbox.lockbox import Lockbox, LockGranter
from penstock.indexing.lockbox.task_locks import LockType
from penstock.indexing.overlord.duties import janitor
from penstock.indexing.overlord.term import TermAccess
from penstock.indexing.sequences import SequenceStep, TaskSequences
from penstock.indexing.supervisor import reconciler, time_windows
from penstock.indexing.task.commit_file import CommitFile
from penstock.indexing.task_spec import MessageTimes, StreamTaskSpec, TaskSpec, make_replica
from penstock.segments.local_files import LocalFiles
from penstock.storage.metadata import segment_deletion
from penstock.storage.metadata.publish import publish_transaction
from penstock.storage.metadata.sql_database import GuardedDatabase
from penstock.storage.metadata.tables import tasks
from tests.harness.cluster_simulation import chance, run
from tests.harness.cluster_simulation.chance import Chance
from tests.harness.cluster_simulation.run import run_seed
from tests.harness.cluster_simulation.users import Wishes

BUSY = Wishes(operators=False, every_s=0.5)
"""Many batch tasks beside the stream, which takes their locks away."""

BESIDE = replace(BUSY, concurrent=True)
"""Many batch tasks beside the stream, which go on beside each other."""

REPLICAS = Wishes(replicas=2, every_s=0.5)
"""Tasks that publish the same, one after the other."""


def finds(text: str, seeds: range, wishes: Wishes | None = None) -> bool:
    """Tell whether one of some seeds, one after the other, ends with a violation that says so."""
    return any(text in run_seed(seed, wishes=wishes).violation for seed in seeds)


def wanting(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Have users of all runs have these actions and no others."""
    monkeypatch.setattr(Chance, "has_action", lambda _self, kind, _likely=0.0: kind in kinds)


def likely(monkeypatch: pytest.MonkeyPatch, kind: str, times: int = 10) -> None:
    """Have a kind of fault so many times as often as it is."""
    monkeypatch.setitem(chance.FAULTS, kind, times * chance.FAULTS[kind])


def test_a_deposed_leader_that_still_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(
        self: GuardedDatabase, work: Callable[..., object], *, unlimited: bool = False
    ) -> object:
        return self._database.write(work, unlimited=unlimited)

    monkeypatch.setattr(GuardedDatabase, "write", unchecked)
    assert finds("wrote in term", range(3002, 3012))


def test_a_publish_without_a_lock_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockbox, "require_covered", lambda *_args, **_given: None)
    assert finds("has no lock on it", range(9, 15), BUSY)


def test_a_lock_that_is_given_and_not_taken_away_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LockGranter, "_revoke", lambda _self, _group: None)
    assert finds("two locks contradict each other", range(3000, 3010))


def test_locks_of_two_types_that_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, pair = coexist, {LockType.EXCLUSIVE, LockType.REPLACE}

    def less_coexists(
        type_a: LockType, interval_a: Interval, type_b: LockType, interval_b: Interval
    ) -> bool:
        return {type_a, type_b} == pair or sound(type_a, interval_a, type_b, interval_b)

    monkeypatch.setattr(lockbox, "coexist", less_coexists)
    wanting(monkeypatch, "mixed locks")
    assert finds("two locks contradict each other", range(6001, 6011))


def test_offsets_that_nobody_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_transaction, "_refusal_of_offsets", lambda *_args: None)
    assert any(run_seed(seed).violation for seed in range(3011, 3034))


def test_the_last_file_of_a_sequence_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CommitFile.files
    monkeypatch.setattr(CommitFile, "files", lambda self, name: whole(self, name)[:-1])
    assert finds("should have added", range(3000, 3010))


def test_an_append_that_does_not_look_what_has_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_transaction, "refusal_of_appends", lambda *_args: None)
    wanting(monkeypatch, "marks amid work")
    assert finds("are gone", range(7006, 7018), BUSY)


def test_an_append_that_is_not_seen_above_a_replace_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish_transaction, "copies_for_upgraded", lambda *_args: [])
    wanting(monkeypatch, "tasks together")
    assert finds("is refused for marks that nobody made", range(7000, 7012), BESIDE)


def test_a_publish_that_is_refused_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish_transaction, "was_published", lambda *_args: False)
    wanting(monkeypatch)
    assert finds("was published, and is refused now", range(7000, 7004), REPLICAS)


def test_a_compaction_that_brings_back_what_was_taken_out_while_it_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish_transaction, "refusal_of_basis", lambda *_args: None)
    wanting(monkeypatch, "marks amid work", "calm hosts")
    assert finds("compacted, and", range(7010, 7022), BESIDE)


def test_a_leader_that_forgets_the_locks_of_the_term_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lockbox, "adopt", lambda _self, _task, _lock: "")
    wanting(monkeypatch, "tasks together", "calm hosts")
    assert finds("two locks contradict each other", range(7002, 7014), BESIDE)


def test_a_kill_of_files_that_other_segments_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_deletion, "_shared_files", lambda *_args: set())
    wanting(monkeypatch, "marks amid work", "tasks together", "calm hosts")
    assert finds("which still name it", range(7006, 7018), BESIDE)


def test_a_janitor_that_forgets_what_active_tasks_may_yet_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(janitor, "CLOCKS_APART_MS", -(10**13))
    wanting(monkeypatch, "tasks together", "calm hosts")
    assert finds("published rows that nobody sees", range(7128, 7146), BESIDE)


def test_a_minor_compaction_that_loses_what_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = compact_plan.split_input
    monkeypatch.setattr(compact_plan, "split_input", lambda *given: (sound(*given)[0], set()))
    wanting(monkeypatch, "minor compactions", "calm hosts")
    assert finds("compacted, and", range(7302, 7308), BESIDE)


def test_versions_of_locks_that_follow_a_clock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockboxes, "floor_of", lambda _version: "")
    wanting(monkeypatch, "leaders come and go", "calm hosts")
    assert finds("added other rows than it has", range(9101, 9109), replace(BUSY, every_s=0.3))


def test_files_that_stay_announced_after_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "forget", lambda *_args: None)
    wanting(monkeypatch, "calm hosts")
    assert finds("leaves stale announced files", range(9001, 9011))


def test_an_end_that_a_task_takes_although_it_has_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = TaskSequences.set_end_offsets

    def set_end_offsets(
        self: TaskSequences,
        end: Mapping[int, int],
        *,
        finish: bool,
        current: Mapping[int, int],
        paused: bool,
    ) -> SequenceStep:
        del current, paused
        start = self.last.start if self.last is not None else end
        return sound(self, end, finish=finish, current=start, paused=True)

    monkeypatch.setattr(TaskSequences, "set_end_offsets", set_end_offsets)
    wanting(monkeypatch, "calm hosts")
    likely(monkeypatch, "agreement late")
    assert finds("should have added", range(9060, 9068), Wishes(batches=False, every_s=0.3))


def test_a_push_into_full_deep_storage_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = LocalFiles.put

    def put(self: LocalFiles, local_file: str, folder: str) -> int:
        try:
            return sound(self, local_file, folder)
        except Unavailable:
            return int(self._fs.stat(local_file).size)

    monkeypatch.setattr(LocalFiles, "put", put)
    wanting(monkeypatch)
    likely(monkeypatch, "deep storage full")
    assert finds("should have added", range(9001, 9011))


def test_rows_out_of_a_streams_window_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_windows, "message_times", lambda *_args: MessageTimes())
    wanting(monkeypatch, "message windows", "calm hosts")
    assert finds("should have added", range(9000, 9004))


def test_a_publish_of_a_task_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is heard, needs no locks, and the transaction does not mind: each alone is enough."""
    covering, active_task = Lockbox.section_locks, TermAccess.active_task
    known: dict[str, TaskSpec | None] = {}

    def heard(self: TermAccess, task_id: str) -> TaskSpec | None:
        known[task_id] = active_task(self, task_id) or known.get(task_id)
        return known[task_id]

    def covered(self: Lockbox, task_id: str, *given: Any) -> SectionLocks:
        try:
            self._active_tasks.require(task_id)
        except LockRevoked:
            return SectionLocks(task_id, self._table)
        return covering(self, task_id, *given)

    monkeypatch.setattr(TermAccess, "active_task", heard)
    monkeypatch.setattr(Lockbox, "section_locks", covered)
    monkeypatch.setattr(publish_transaction, "is_complete", lambda *_args: False)
    wanting(monkeypatch, "calm hosts")
    likely(monkeypatch, "publish under way", 25)
    assert finds("published although its task has ended", range(9011, 9023), Wishes(every_s=0.5))


def test_replicas_of_any_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = make_replica

    def of_one_priority(*given: Any, server_priority: int, **more: Any) -> StreamTaskSpec:
        del server_priority
        return sound(*given, server_priority=1, **more)

    monkeypatch.setattr(reconciler, "make_replica", of_one_priority)
    # Replicas come and go for as long as it is waited that they do not.
    monkeypatch.setattr(run, "_DRAIN_S", 90.0)
    wanting(monkeypatch, "server priorities", "calm hosts")
    assert finds("lack the requested replicas", range(9008, 9010), Wishes(batches=False))
