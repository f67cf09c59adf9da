"""Mail: one piece of work for a mailbox thread.

Owns the parts of a mail: its action, its options, its priority and a description that is rendered
only when it is read. Does not own where it waits and when it runs, which the mailbox decides.

A priority does not order mails. It restricts which code runs a mail: a `yield_` with priority p
runs only mails with p or more, so an operator that waits for a resource runs its own mails and
those of operators further down the chain, but never those of an operator that would send it more
input.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_PRIORITY: Final = -1
"""Priority of mails that belong to no operator, and of the loop, which runs every mail."""

MAX_PRIORITY: Final = 2**31 - 1
"""Priority of mails that every yield must run, such as that of a completed checkpoint."""


class MailOptions(Enum):
    """Order and visibility of a mail."""

    DEFAULT = "default"
    """First in, first out."""

    DEFERRABLE = "deferrable"
    """In order for the loop, but hidden from every yield: for long work."""

    URGENT = "urgent"
    """Before all other mails; first in, first out among urgent ones."""


# Module constants, because an attribute lookup on an enum costs as much as creating a mail.
DEFAULT: Final = MailOptions.DEFAULT
_DEFERRABLE: Final = MailOptions.DEFERRABLE
_URGENT: Final = MailOptions.URGENT


@runtime_checkable
class CancellableAction(Protocol):
    """An action with a waiting caller, which must be notified if the action will never run."""

    def __call__(self) -> object:
        """Run the action."""
        ...

    def cancel(self) -> object:
        """Notify the waiting caller that the action will not run."""
        ...


class Mail:
    """An action with its priority, options and description.

    A mail is put once. Two mails are never equal, so that a late put can remove exactly its own
    mail.

    Args:
        action: The call to run; if it raises, the loop ends.
        priority: Which yields may run it, from `MIN_PRIORITY` to `MAX_PRIORITY`.
        description: For logs and errors, a %-format for the arguments.
        arguments: Arguments of the description, rendered only when it is read.
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
        # Compared by yields; the created one counts only while operators are being finished.
        self.priority: Final = MIN_PRIORITY if options is _DEFERRABLE else priority
        self.urgent: Final = options is _URGENT
        self._description = description
        self._arguments = arguments

    def run(self) -> None:
        """Run the action; an exception goes to the caller."""
        self.action()

    def try_cancel(self) -> bool:
        """Cancel the action if it is cancellable; return whether it was."""
        if not isinstance(self.action, CancellableAction):
            return False
        self.action.cancel()
        return True

    @property
    def description(self) -> str:
        """The description, rendered now; the action's `repr` if none was given."""
        if not self._description:
            return repr(self.action)
        return self._description % self._arguments if self._arguments else self._description

    def __repr__(self) -> str:
        return f"<Mail {self.description}>"
