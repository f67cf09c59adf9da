"""What is wrong with a CRON expression, and where."""

from __future__ import annotations

from penstock.core.errors import InvalidRequest


class CronError(InvalidRequest):
    """A CRON expression is wrong: the message shows it with a mark under the place.

    Args:
        text: The expression.
        start: Where the wrong part begins, in characters.
        length: How long it is, in characters; one mark at least.
        problem: What is wrong with the part, and the mend.
    """

    def __init__(self, text: str, start: int, length: int, problem: str) -> None:
        shown = "".join(character if character.isprintable() else " " for character in text)
        super().__init__(f"{problem}\n    {shown}\n    {' ' * start}{'^' * max(1, length)}")
        self.text = text
        self.start = start
        self.length = max(1, length)
        self.problem = problem
