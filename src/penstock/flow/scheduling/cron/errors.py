"""Error in a CRON expression, with its position."""

from __future__ import annotations

from penstock.core.errors import InvalidRequest


class CronError(InvalidRequest):
    """Invalid CRON expression; the message shows it with a mark under the error.

    Args:
        text: The expression.
        start: Start of the invalid part, in characters.
        length: Length of that part, in characters; at least one mark is shown.
        problem: Error and remedy.
    """

    def __init__(self, text: str, start: int, length: int, problem: str) -> None:
        shown = "".join(character if character.isprintable() else " " for character in text)
        super().__init__(f"{problem}\n    {shown}\n    {' ' * start}{'^' * max(1, length)}")
        self.text = text
        self.start = start
        self.length = max(1, length)
        self.problem = problem
