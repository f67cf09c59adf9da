"""A processor's state as one session sees it: changed with the FlowFiles, or not at all.

Owns what the session changed and did not commit. Does not own the state (`flow.state`).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.flow.state import StateManager, encode_state


class SessionState:
    """The state of the processor, as of this session. For the session's thread.

    Of two sessions at once, the one that commits last decides: a processor that keeps count of
    something in its state says `triggers_serially`.
    """

    def __init__(self, manager: StateManager) -> None:
        self._manager = manager
        self._changed: dict[str, str] | None = None  # since the last checkpoint or commit
        self._at_checkpoint: dict[str, str] | None = None

    def get(self) -> Mapping[str, str]:
        """Return the state, with what this session changed."""
        for own in (self._changed, self._at_checkpoint):
            if own is not None:
                return dict(own)
        return self._manager.get()

    def set(self, state: Mapping[str, str]) -> None:
        """Put a map in the place of the one there is, once the session commits.

        Raises:
            InvalidRequest: It is no map of text, or too large.
        """
        encode_state(state)
        self._changed = dict(state)

    def replace(self, expected: Mapping[str, str], state: Mapping[str, str]) -> bool:
        """Put a map in the place of an expected one; False, and no change, if it is another.

        Raises:
            InvalidRequest: It is no map of text, or too large.
        """
        if self.get() != expected:
            return False
        self.set(state)
        return True

    def clear(self) -> None:
        """Forget all, once the session commits."""
        self._changed = {}

    def checkpoint(self) -> None:
        """Keep what was changed for the commit, whatever is rolled back later."""
        if self._changed is not None:
            self._at_checkpoint, self._changed = self._changed, None

    def pending(self) -> Mapping[str, bytes | None]:
        """Return what the commit writes, by the key in the journal."""
        if self._at_checkpoint is None:
            return {}
        data = encode_state(self._at_checkpoint) if self._at_checkpoint else None
        return {self._manager.key: data}

    def committed(self) -> None:
        """Learn that what was pending is written."""
        if self._at_checkpoint is not None:
            self._manager.committed(self._at_checkpoint)
            self._at_checkpoint = None

    def rolled_back(self, *, whole: bool) -> None:
        """Forget what was changed; what was kept for the commit, too, if `whole`."""
        self._changed = None
        if whole:
            self._at_checkpoint = None
