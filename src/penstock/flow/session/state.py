"""State of a processor as one session sees it: it changes together with the FlowFiles.

Owns the uncommitted changes of the session. Does not own the committed state (`flow.state`).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.flow.state import StateManager, encode_state


class SessionState:
    """State of the processor within this session; for the session's thread only.

    If two sessions change the state at once, the last commit wins. A processor that counts in its
    state must set `triggers_serially`.
    """

    def __init__(self, manager: StateManager) -> None:
        self._manager = manager
        self._changed: dict[str, str] | None = None  # since the last checkpoint or commit
        self._at_checkpoint: dict[str, str] | None = None

    def get(self) -> Mapping[str, str]:
        """Return the state, including changes of this session."""
        for own in (self._changed, self._at_checkpoint):
            if own is not None:
                return dict(own)
        return self._manager.get()

    def set(self, state: Mapping[str, str]) -> None:
        """Replace the whole state when the session commits.

        Raises:
            InvalidRequest: The state is not a map of text, or is too large.
        """
        encode_state(state)
        self._changed = dict(state)

    def replace(self, expected: Mapping[str, str], state: Mapping[str, str]) -> bool:
        """Replace an expected state; return False, without a change, if the state differs from it.

        Raises:
            InvalidRequest: The state is not a map of text, or is too large.
        """
        if self.get() != expected:
            return False
        self.set(state)
        return True

    def clear(self) -> None:
        """Delete all entries when the session commits."""
        self._changed = {}

    def checkpoint(self) -> None:
        """Keep the changes for the commit, even if the session is rolled back later."""
        if self._changed is not None:
            self._at_checkpoint, self._changed = self._changed, None

    def pending(self) -> Mapping[str, bytes | None]:
        """Return the changes for the commit, by the key in the journal."""
        if self._at_checkpoint is None:
            return {}
        data = encode_state(self._at_checkpoint) if self._at_checkpoint else None
        return {self._manager.key: data}

    def committed(self) -> None:
        """Note that the pending changes are committed."""
        if self._at_checkpoint is not None:
            self._manager.committed(self._at_checkpoint)
            self._at_checkpoint = None

    def rolled_back(self, *, whole: bool) -> None:
        """Discard the changes; with `whole`, also those of checkpoints."""
        self._changed = None
        if whole:
            self._at_checkpoint = None
