"""State machines as tables of data.

A machine is a table: for each kind of event and each state, the next state and the effects. The
owner of the state reports events, stores the next state and carries out the effects in order. An
effect that can fail reports its outcome as a further event, or raises before it changes anything;
then the effects after it are not carried out. A table has no conditions: if a fact decides between
two outcomes, there is one kind of event for each.

Invariants: the table decides each pair of state and event: by a transition, or as ignored, refused
or impossible. A machine keeps no state, so all owners and threads share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar


class Symbol(Enum):
    """Base of states, events and effects: members are hashed by identity, as they are compared.

    An `Enum` hashes its name in a Python function; a transition has three lookups.
    """

    __hash__ = object.__hash__


S = TypeVar("S", bound=Symbol)
E = TypeVar("E", bound=Symbol)
F = TypeVar("F", bound=Symbol)


@dataclass(frozen=True, slots=True)
class Transition(Generic[S, F]):
    """The next state, and the effects in the order in which they are carried out."""

    state: S
    effects: tuple[F, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The event is a request that is not allowed in the state; `reason` is for its sender."""

    reason: str


class Unchanged(Enum):
    """Outcome of an event that changes nothing."""

    IGNORED = "ignored"
    """The event may happen, and has no effect."""
    IMPOSSIBLE = "impossible"
    """The owner never reports the event in this state; if it does, that is an error of its code."""


IGNORED: Final = Unchanged.IGNORED
IMPOSSIBLE: Final = Unchanged.IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Row(Generic[S, F]):
    """The outcomes of one kind of event: by state, and in all other states.

    Attributes:
        cells: Outcomes by state.
        otherwise: Outcome in the states without a cell. It has no default, so that a table states
            for each event what happens in the states that it does not list.
    """

    cells: Mapping[S, Transition[S, F] | Refusal | Unchanged]
    otherwise: Refusal | Unchanged


def go(state: S, *effects: F) -> Transition[S, F]:
    """Return the transition to a state."""
    return Transition(state, effects)


class StateMachine(Generic[S, E, F]):
    """A table of transitions.

    Args:
        states: All states.
        table: One row for each kind of event.
        initial: States in which the machine may begin.
        final: States that it never leaves.

    Raises:
        ValueError: A kind of event has no row, or a final state has a transition to another one.
    """

    def __init__(
        self,
        states: type[S],
        table: Mapping[E, Row[S, F]],
        *,
        initial: Iterable[S],
        final: Iterable[S] = (),
    ) -> None:
        self.states: Final = tuple(states)
        self.table: Final = table
        self.initial: Final = frozenset(initial)
        self.final: Final = frozenset(final)
        missing = [event for event in type(next(iter(table))) if event not in table]
        if missing:
            raise ValueError(f"no row for {', '.join(map(str, missing))}: decide each event")
        self._cells: Final[dict[tuple[S, E], Transition[S, F] | Refusal | None]] = {}
        for event, row in table.items():
            for state in self.states:
                cell = row.cells.get(state, row.otherwise)
                if isinstance(cell, Transition) and state in self.final and cell.state != state:
                    raise ValueError(f"{state} is final, but {event} leaves it")
                self._cells[state, event] = (
                    Transition(state) if cell is IGNORED else None if cell is IMPOSSIBLE else cell
                )

    def transition(self, state: S, event: E) -> Transition[S, F] | Refusal:
        """Return what an event does in a state.

        Raises:
            AssertionError: The event is impossible there: the code of the owner is wrong.
        """
        found = self._cells[state, event]
        if found is None:
            raise AssertionError(f"{event} cannot happen in {state}")
        return found

    def outcome(self, state: S, event: E) -> Transition[S, F] | Refusal | Unchanged:
        """Return the cell of the table, for tests and for the page of transitions."""
        row = self.table[event]
        return row.cells.get(state, row.otherwise)
