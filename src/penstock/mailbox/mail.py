"""Mail: one piece of work for a mailbox thread.

Owns what a mail is: its action, its options, its priority and a description that is rendered only
when somebody reads it. Where it waits and when it runs is the mailbox's matter.

A priority does not order mails. It says who may see one: a `yield_` with priority p runs only mails
with p or more, so an operator that waits for a resource runs its own mails and those further down
the chain, never those of an operator that would feed it again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_PRIORITY: Final = -1
"""Of mails that belong to no operator, and of the loop, which therefore sees every mail."""

MAX_PRIORITY: Final = 2**31 - 1
"""Of mails that every yield must see, such as the news that a checkpoint completed."""


class MailOptions(Enum):
    """How a mail is treated beside the others."""

    DEFAULT = "default"
    """First in, first out."""

    DEFERRABLE = "deferrable"
    """In its place for the loop, but hidden from every yield: a long piece of work."""

    URGENT = "urgent"
    """Before all mails that are not urgent; first in, first out among urgent ones."""


# Plain names: looking up a member of an enumeration costs as much as making a mail does.
DEFAULT: Final = MailOptions.DEFAULT
_DEFERRABLE: Final = MailOptions.DEFERRABLE
_URGENT: Final = MailOptions.URGENT


@runtime_checkable
class CancellableAction(Protocol):
    """An action that somebody may wait for, and must hear if it will never run."""

    def __call__(self) -> object:
        """Do the work."""
        ...

    def cancel(self) -> object:
        """Tell whoever waits that the work will not be done."""
        ...


class Mail:
    """An action with its priority, options and description.

    A mail is put once. Two mails are never equal, which lets a put that came too late take its own
    mail back.

    Args:
        action: What to run; it may raise, which ends the loop.
        priority: Which yields may see it, from `MIN_PRIORITY` to `MAX_PRIORITY`.
        description: For logs and errors, with %-places for the arguments.
        arguments: Rendered into the description when it is read, and not before.
        options: Default, deferrable or urgent.
    """

    __slots__ = ("_arguments", "_description", "action", "created_priority", "priority", "urgent")

    def __init__(
        self,
        action: Callable[[], object],
        priority: int = MIN_PRIORITY,
        description: str = "",
        arguments: tuple[object, ...] = (),
        options: MailOptions = DEFAULT,
    ) -> None:
        self.action: Final = action
        self.created_priority: Final = priority
        # What a yield compares with; the created one counts only where operators are finished.
        self.priority: Final = MIN_PRIORITY if options is _DEFERRABLE else priority
        self.urgent: Final = options is _URGENT
        self._description = description
        self._arguments = arguments

    def run(self) -> None:
        """Run the action; what it raises goes to the caller."""
        self.action()

    def try_cancel(self) -> bool:
        """Cancel the action if it is one that somebody waits for; True if it was."""
        if not isinstance(self.action, CancellableAction):
            return False
        self.action.cancel()
        return True

    @property
    def description(self) -> str:
        """What the mail does, rendered now; the action's own text if none was given."""
        if not self._description:
            return repr(self.action)
        return self._description % self._arguments if self._arguments else self._description

    def __repr__(self) -> str:
        return f"<Mail {self.description}>"
