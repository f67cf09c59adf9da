"""Access to tasks and supervisors, which belong to the datasource that they write.

Owns the rule: the right to write a datasource includes reading, stopping and changing the tasks and
supervisors that write it. All other principals need a right on the task or supervisor itself, and
for its content, which may have rows or count them, also the right to read the datasource. Texts of
errors may have the value of a bad row, so they are content, although they stand in answers about
the state. A role that denies something on the task or supervisor itself takes precedence over the
right on the datasource.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.services.api.request_access import RequestAccess


class OwnedNeed(Enum):
    """Part of a task or supervisor that a request accesses."""

    STATE = "state"  # whether it runs, and why not
    CONTENT = "content"  # its spec, logs, reports, segments and samples: rows, or numbers of them
    CONTROL = "control"  # stop and change it


def may_access(
    access: RequestAccess, need: OwnedNeed, resource: Resource, datasource: str | None
) -> bool:
    """Return whether the principal may access a task or supervisor. It is not audited.

    Args:
        access: The access of the request.
        need: The part that it accesses.
        resource: The task or supervisor.
        datasource: The datasource that it writes; None: there is no such task or supervisor.
    """
    return _granting(access, need, resource, datasource) is not None


def require_access(
    access: RequestAccess,
    need: OwnedNeed,
    resource: Resource,
    find_datasource: Callable[[], str | None],
) -> None:
    """Return if the principal may access a task or supervisor, and audit it.

    Whether it exists is not revealed to those who may not access it.

    Args:
        access: The access of the request.
        need: The part that it accesses.
        resource: The task or supervisor.
        find_datasource: Returns the datasource that it writes; None: it does not exist.

    Raises:
        Forbidden: The principal may not access it.
    """
    if access.is_unlimited:
        access.require(_action(need), resource)
        return
    datasource = find_datasource()
    granting = _granting(access, need, resource, datasource)
    if granting is None:
        access.require(_action(need), resource)
        # It is allowed, so the content is what the principal may not read.
        granting = Action.READ, Resource(ResourceKind.DATASOURCE, datasource or resource.name)
    access.require(*granting)


def shown_error(access: RequestAccess, resource: Resource, datasource: str, text: str) -> str:
    """Return the text of an error of a task or supervisor, as the principal may see it.

    Args:
        access: The access of the request.
        resource: The task or supervisor, whose state the principal may see.
        datasource: The datasource that it writes.
        text: The text.
    """
    if access.is_unlimited or may_access(access, OwnedNeed.CONTENT, resource, datasource):
        return text
    return f"not shown, because it may have values of rows: it needs read datasource:{datasource}"


def _action(need: OwnedNeed) -> Action:
    return Action.MANAGE if need is OwnedNeed.CONTROL else Action.READ


def _granting(
    access: RequestAccess, need: OwnedNeed, resource: Resource, datasource: str | None
) -> tuple[Action, Resource] | None:
    """Return the right by which the principal may access it; None: it may not."""
    action = _action(need)
    own = access.control.decide(access.principal, action, resource)
    if own.rule and not own.allowed:
        return None
    written = None if datasource is None else Resource(ResourceKind.DATASOURCE, datasource)
    if own.allowed:
        reads_rows = need is OwnedNeed.CONTENT and written is not None
        if not reads_rows or access.may(Action.READ, ResourceKind.DATASOURCE, datasource or ""):
            return action, resource
    if written is not None and access.may(Action.WRITE, written.kind, written.name):
        # Logs and parse errors have rows as they were read.
        if need is OwnedNeed.CONTENT and access.sees_limited_rows(written.name):
            return None
        return Action.WRITE, written
    return None
