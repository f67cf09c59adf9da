"""The owner of a flow: the principal for which its processors act, and whether it still may.

Owns the owner of the applied flow, the rights that each processor needs, and what the owner may do
in the current generation of the access control. Does not own which right a processor needs (the
service passes it), nor the decision (`core.access`).

Other processes decide about each request of a flow for the owner, because the flow sends a token of
this process that acts for it. Files, other hosts, secrets and code of users are used in this
process: they are decided here, before a processor starts and when the access control changes. No
decision is made for a single FlowFile.

A flow without an owner belongs to the installation: its processors may do what the process may.

If another principal applies the flow, all processors restart, because connections that they have
opened act for the former owner. Only if both may do everything, as the user of the server and an
administrator's token, the running processors continue, and act for the new owner from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.access.rules import Action, Resource
from penstock.core.errors import Forbidden

if TYPE_CHECKING:
    from penstock.core.access.access_control import AccessControl
    from penstock.core.access.installation_key import InstallationKey
    from penstock.core.access.principal import Principal
    from penstock.flow.graph.flow_index import FlowIndex

NeededRights = Mapping[str, Sequence[tuple[Action, Resource]]]
"""The rights that each processor of a flow needs, by its id."""


@dataclass(frozen=True, slots=True)
class _OwnerDecisions:
    """Answers about an owner in one generation of the access control.

    Attributes:
        generation: The generation.
        principal: The owner.
        has_expired: Whether its credential had expired.
        problems: Why a processor must not run, by its id, once it has been decided.
    """

    generation: int
    principal: Principal
    has_expired: bool
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Tenure:
    """For whom processors act, from a restart of all of them to the next one.

    Attributes:
        owner: Id of the owner; empty: the installation. It is replaced only by one with the same
            rights.
    """

    owner: str = ""


@dataclass(slots=True)
class _OwnedFlow:
    """One flow and its owner.

    Attributes:
        owner: Id of the owner; empty: the installation.
        needed: The rights that each processor needs.
        decisions: Replaced as a whole, because several threads use it.
    """

    owner: str = ""
    needed: NeededRights = field(default_factory=dict)
    decisions: _OwnerDecisions | None = None


class FlowOwner:
    """The owner of the flow of one service. Any thread.

    Args:
        access: The access control of the process; None: nothing is decided, as in tests.
        needed: Returns the rights that each processor of a flow needs.
    """

    def __init__(
        self,
        access: AccessControl | None = None,
        needed: Callable[[FlowIndex], NeededRights] = lambda _index: {},
    ) -> None:
        self._access = access
        self._needed = needed
        self._owned = _OwnedFlow()
        self._tenure = _Tenure()
        self._checked: _OwnerDecisions | None = None
        self._refused: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """Id of the owner; empty: the installation."""
        return self._owned.owner

    def tokens(self) -> Callable[[], str]:
        """Return what makes the tokens of processors that start now, for each of their requests.

        They are for the owner of now, or a later one with the same rights: a processor that is
        terminated while it hangs, and continues after a principal with other rights has applied the
        flow, does not act for that one. The function raises Unavailable if the process has no key
        from which to derive a token.
        """
        if self._access is None:
            return str
        return partial(_bearer, self._access.key, self._tenure)

    def may_pass_to(self, owner: str) -> bool:
        """Return whether processors may continue to run if another owner takes the flow."""
        return self._access is not None and have_same_rights(self._access, self.id, owner)

    def take(self, owner: str, index: FlowIndex, *, continues: bool = False) -> None:
        """Change the flow and its owner, on the thread that calls `changed`.

        Args:
            owner: Id of the owner; empty: the installation.
            index: The flow.
            continues: Whether processors run that act for the former owner, which `may_pass_to`
                has allowed. If another owner takes the flow without this, no processor runs.
        """
        if owner != self._owned.owner:
            self._refused = frozenset()
            if continues:
                self._tenure.owner = owner
            else:
                self._tenure = _Tenure(owner)
        self._owned = _OwnedFlow(owner, self._needed(index) if owner else {})

    def problem(self, processor_id: str) -> str:
        """Return why a processor must not run now; empty: it may.

        It is decided once in each generation of the access control, and a refusal is audited then.
        """
        owned, access = self._owned, self._access
        if not owned.owner or access is None:
            return ""
        return _problem(access, owned, _current(access, owned), processor_id)

    def changed(self) -> frozenset[str]:
        """Return the processors that must no longer run, or may run again, since the last call.

        Called by one thread.
        """
        owned, access = self._owned, self._access
        if not owned.owner or access is None:
            return frozenset()
        decisions = _current(access, owned)
        if decisions is self._checked:
            return frozenset()
        before, self._checked = self._refused, decisions
        refused = (one for one in owned.needed if _problem(access, owned, decisions, one))
        self._refused = frozenset(refused)
        return before ^ self._refused


def have_same_rights(access: AccessControl, owner: str, other: str) -> bool:
    """Return whether two owners of a flow may both do everything, or are the same.

    Equal rights of another kind do not count: a connection that a processor has opened acts for the
    former owner until its token expires, and each of the two may get or lose a right before.
    """
    return owner == other or all(_may_do_everything(access, one) for one in (owner, other))


def _may_do_everything(access: AccessControl, owner: str) -> bool:
    if not owner:
        return True
    principal = access.represented.named(owner)
    return not access.represented.problem(principal) and not access.rights_of(principal)


def _bearer(key: InstallationKey, tenure: _Tenure) -> str:
    owner = tenure.owner
    return key.represented_bearer(owner) if owner else key.process_bearer()


def _current(access: AccessControl, owned: _OwnedFlow) -> _OwnerDecisions:
    decisions, generation = owned.decisions, access.generation
    if (
        decisions is None
        or decisions.generation != generation
        or decisions.has_expired != access.authenticator.has_expired(decisions.principal)
    ):
        principal = access.represented.sent_for(owned.owner)
        decisions = owned.decisions = _OwnerDecisions(
            generation, principal, access.authenticator.has_expired(principal)
        )
    return decisions


def _problem(
    access: AccessControl, owned: _OwnedFlow, decisions: _OwnerDecisions, processor_id: str
) -> str:
    if processor_id not in decisions.problems:
        rights = owned.needed.get(processor_id, ())
        decisions.problems[processor_id] = _decided(access, decisions.principal, rights)
    return decisions.problems[processor_id]


def _decided(
    access: AccessControl, owner: Principal, rights: Sequence[tuple[Action, Resource]]
) -> str:
    problem = access.represented.problem(owner)
    if problem:
        return (
            f"the flow acts for {owner.id}, but {problem}: apply the flow as a principal that has"
            " the rights that it needs"
        )
    for action, resource in rights:
        try:
            access.require(owner, action, resource)
        except Forbidden:  # narrow: translates
            return (
                f"the flow acts for {owner.id}, which may not {action} {resource.shown}: give it"
                " this right, or apply the flow as a principal that has it ('penstock access check'"
                " explains the decision)"
            )
    return ""
