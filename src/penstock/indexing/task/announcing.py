"""Announcement of persisted files to the overlord, for queries. Part of a task, on its mailbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.actions import AnnounceFiles

if TYPE_CHECKING:
    from penstock.indexing.task.task_state import TaskContext


class Announcer:
    """Announces all files of a sequence again whenever they change; only the newest state.

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
        """The last error, empty if none."""
        return self._errand.trouble

    def changed(self, sequence: str) -> None:
        """Record that the files of a sequence have changed."""
        self._stale[sequence] = None

    def is_current(self, sequence: str) -> bool:
        """Return whether the current files are announced, and no announcement is running.

        An announcement after the publish would show rows twice.
        """
        return sequence not in self._stale and sequence != self._under_way

    def advance(self) -> None:
        """Announce changed sequences."""
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
        # False means that this task published the sequence before it was interrupted: its own
        # publish will detect that.
        self._under_way = ""
        self._context.wake()
