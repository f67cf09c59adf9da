"""What a processor remembers from one trigger to the next, and over restarts: a map of text.

Owns the map of one processor, those that several processors share by a name, and their bytes in the
journal. Does not own the journal (`repository`), nor what a session changes until it commits
(`session`).

Invariants: what `get` returns is what was committed last; a map is changed whole or not at all,
and is never changed in place.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.flow.repository.changes import Changes

MAX_STATE_BYTES: Final = 1 << 20

_decoder: Final = msgspec.json.Decoder(dict[str, str])


class StateStore(Protocol):
    """Where states are durable: the FlowFile repository."""

    def state(self, key: str) -> bytes | None:
        """Return what was committed last under a key."""
        ...

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Make changes, whole or not at all."""
        ...


class StateManager:
    """The state of one processor; from any of its threads.

    What is changed here is changed at once. What belongs to FlowFiles, such as where a source went
    on reading, is better changed with `session.state`: then both are committed or neither.

    Its mutex keeps the map and the journal in step: two threads of a processor may both replace it.

    Args:
        key: Names it in the journal: the processor's id.
        store: Where it is durable.
    """

    def __init__(self, key: str, store: StateStore) -> None:
        self.key = key
        self._store = store
        self._mutex = threading.Lock()
        self._known: Mapping[str, str] | None = None

    def shared(self, name: str) -> StateManager:
        """Return the state that all processors of this service share under a name.

        It is changed at once, not with FlowFiles; change it by `replace`, as others do the same.
        """
        return _shared.state(name, self._store)

    def get(self) -> Mapping[str, str]:
        """Return the map; it does not change when the state does.

        Raises:
            CorruptData: The journal has something else under this key.
        """
        with self._mutex:
            return self._current()

    def set(self, state: Mapping[str, str], *, durable: bool = False) -> None:
        """Put a map in the place of the one there is.

        Raises:
            InvalidRequest: It is no map of text, or too large.
            Unavailable: It could not be written; the state is as before.
        """
        data = encode_state(state)
        with self._mutex:
            self._write(data, state, durable=durable)

    def replace(
        self, expected: Mapping[str, str], state: Mapping[str, str], *, durable: bool = False
    ) -> bool:
        """Put a map in the place of an expected one; False, and no change, if it is another.

        Raises:
            InvalidRequest: It is no map of text, or too large.
            Unavailable: It could not be written; the state is as before.
        """
        data = encode_state(state)
        with self._mutex:
            if self._current() != expected:
                return False
            self._write(data, state, durable=durable)
            return True

    def clear(self) -> None:
        """Forget all.

        Raises:
            Unavailable: It could not be written; the state is as before.
        """
        with self._mutex:
            self._store.commit(Changes(states={self.key: None}))
            self._known = MappingProxyType({})

    def committed(self, state: Mapping[str, str]) -> None:
        """Learn what a session committed."""
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
    """The shared states by store and name, so that all have the same mutex and know the same.

    Its mutex is held around a look into the table: threads of several processors come here.
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
                # No processor's id begins so.
                state = of_store[name] = StateManager(f"shared:{name}", store)
            return state


_shared: Final = _SharedStates()


def encode_state(state: Mapping[str, str]) -> bytes:
    """Return a state's bytes.

    Raises:
        InvalidRequest: It is no map of text, or too large.
    """
    for name, value in state.items():
        if not (_is_text(name) and _is_text(value)):
            raise InvalidRequest(f"state {name!r} is {value!r}: names and values are text")
    data = msgspec.json.encode(dict(state))
    if len(data) > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"a state of {len(data):,} bytes is too large: at most {MAX_STATE_BYTES:,}; keep what "
            "grows in content or in attributes"
        )
    return data


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def decode_state(key: str, data: bytes | None) -> dict[str, str]:
    """Return the state of bytes; none: the empty one.

    Raises:
        CorruptData: They are none of a state.
    """
    if data is None:
        return {}
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptData(f"the state of {key}", 0, str(error)) from None
