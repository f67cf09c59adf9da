"""State of a processor that survives restarts: a map of text, and its view in one session.

`StateManager` owns the committed map of one processor and the maps that several processors
share by name; `encode_state` and `decode_state` convert a map to its bytes in the journal.
`SessionState` owns the changes that a session made and has not committed. Does not own the
storage (`StateStore`, implemented by the FlowFile repository).

Invariants: `get` returns the last committed map. A map is replaced as a whole and never changed
in place. A session's changes are committed together with its FlowFiles or not at all.
`StateManager` may be used by any thread of its processor, `SessionState` by the session's
thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.flow.repository.repository_changes import Changes

MAX_STATE_BYTES: Final = 1 << 20

_decoder: Final = msgspec.json.Decoder(dict[str, str])


class StateStore(Protocol):
    """Storage of states: the FlowFile repository."""

    def state(self, key: str) -> bytes | None:
        """Return the value that was committed last under a key."""
        ...

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Commit changes, completely or not at all."""
        ...


class StateManager:
    """State of one processor; may be used from any of its threads.

    Changes made here take effect at once. State that belongs to FlowFiles, such as the read
    position of a source, should be changed with `session.state`: then both are committed or
    neither.

    The mutex keeps the map and the journal consistent: two threads of a processor may both replace
    it.

    Args:
        key: Key in the journal: the processor's id.
        store: Storage of the state.
    """

    def __init__(self, key: str, store: StateStore) -> None:
        self.key = key
        self._store = store
        self._mutex = threading.Lock()
        self._known: Mapping[str, str] | None = None

    def shared(self, name: str) -> StateManager:
        """Return the state that all processors of this service share under a name.

        It changes at once, not with FlowFiles. Use `replace`, because other processors change it
        too.
        """
        return _shared.state(name, self._store)

    def get(self) -> Mapping[str, str]:
        """Return the map; later changes of the state do not change it.

        Raises:
            CorruptData: The journal contains another value under this key.
        """
        with self._mutex:
            return self._current()

    def set(self, state: Mapping[str, str], *, durable: bool = False) -> None:
        """Replace the whole map.

        Raises:
            InvalidRequest: The state is not a map of text, or is too large.
            Unavailable: It could not be written; the state is unchanged.
        """
        data = encode_state(state)
        with self._mutex:
            self._write(data, state, durable=durable)

    def replace(
        self, expected: Mapping[str, str], state: Mapping[str, str], *, durable: bool = False
    ) -> bool:
        """Replace an expected map; return False, without a change, if the map differs from it.

        Raises:
            InvalidRequest: The state is not a map of text, or is too large.
            Unavailable: It could not be written; the state is unchanged.
        """
        data = encode_state(state)
        with self._mutex:
            if self._current() != expected:
                return False
            self._write(data, state, durable=durable)
            return True

    def clear(self, *, durable: bool = False) -> None:
        """Delete all entries.

        Raises:
            Unavailable: It could not be written; the state is unchanged.
        """
        with self._mutex:
            self._store.commit(Changes(states={self.key: None}), durable=durable)
            self._known = MappingProxyType({})

    def committed(self, state: Mapping[str, str]) -> None:
        """Take over the state that a session committed."""
        with self._mutex:
            self._known = MappingProxyType(dict(state))

    def _current(self) -> Mapping[str, str]:
        if self._known is None:
            self._known = MappingProxyType(decode_state(self.key, self._store.state(self.key)))
        return self._known

    def _write(self, data: bytes, state: Mapping[str, str], *, durable: bool) -> None:
        self._store.commit(Changes(states={self.key: data}), durable=durable)
        self._known = MappingProxyType(dict(state))


class _SharedStates:
    """Shared states by store and name, so that all users share one mutex and one map.

    The mutex protects a look-up in the table, which threads of several processors make.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._known: weakref.WeakKeyDictionary[
            StateStore, weakref.WeakValueDictionary[str, StateManager]
        ] = weakref.WeakKeyDictionary()

    def state(self, name: str, store: StateStore) -> StateManager:
        with self._mutex:
            of_store = self._known.setdefault(store, weakref.WeakValueDictionary())
            state = of_store.get(name)
            if state is None:
                # No processor's id starts with this.
                state = of_store[name] = StateManager(f"shared:{name}", store)
            return state


_shared: Final = _SharedStates()


def encode_state(state: Mapping[str, str]) -> bytes:
    """Return a state's bytes.

    Raises:
        InvalidRequest: The state is not a map of text, or is too large.
    """
    for name, value in state.items():
        if not (_is_text(name) and _is_text(value)):
            raise InvalidRequest(f"state {name!r} is {value!r}: names and values must be text")
    data = msgspec.json.encode(dict(state))
    if len(data) > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"the state has {len(data):,} bytes, more than the maximum of {MAX_STATE_BYTES:,}: "
            "store growing data in content or in attributes"
        )
    return data


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def decode_state(key: str, data: bytes | None) -> dict[str, str]:
    """Return the state for its bytes; empty without bytes.

    Raises:
        CorruptData: The bytes are not a state.
    """
    if data is None:
        return {}
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptData(f"the state of {key}", 0, str(error)) from None


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
        """Record that the pending changes are committed."""
        if self._at_checkpoint is not None:
            self._manager.committed(self._at_checkpoint)
            self._at_checkpoint = None

    def rolled_back(self, *, whole: bool) -> None:
        """Discard the changes; with `whole`, including those of checkpoints."""
        self._changed = None
        if whole:
            self._at_checkpoint = None
