"""Telling the overlord which persisted files may be queried. Part of a task, on its mailbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.actions import AnnounceFiles

if TYPE_CHECKING:
    from penstock.indexing.task.state import TaskContext


class Announcer:
    """Announces all files of a sequence again whenever they change; the newest state only.

    Args:
        context: The task.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._errand = context.errand("announcing files", "announce")
        self._stale: dict[str, None] = {}
        self._under_way = ""

    @property
    def trouble(self) -> str:
        """What it waits for, empty if nothing."""
        return self._errand.trouble

    def changed(self, sequence: str) -> None:
        """A sequence has other files than before."""
        self._stale[sequence] = None

    def is_current(self, sequence: str) -> bool:
        """Whether the overlord knows the files as they are, and no announcement is under way.

        One that came after the publish would show rows twice.
        """
        return sequence not in self._stale and sequence != self._under_way

    def advance(self) -> None:
        """Announce what changed."""
        if self._errand.busy or not self._stale:
            return
        name = next(iter(self._stale))
        del self._stale[name]
        state = self._context.state
        sequence = state.sequence(name)
        if sequence is None:
            return  # Published meanwhile: its files are segments now.
        self._under_way = name
        commit = state.commit
        files, reach = commit.files(name), commit.reach(name, sequence.start)
        action = AnnounceFiles(name, files, sequence.start, reach, commit.topic_id)
        self._errand.start(lambda: self._context.ports.actions.perform(action), self._announced)

    def _announced(self, _shown: object) -> None:
        # Not shown means that the sequence is published, by this task before it was cut: its own
        # publish will find that out.
        self._under_way = ""
        self._context.wake()
