"""Bearer tokens that a client sends: fixed ones, and those that are made again for each request.

A module of its own, so that commands start without the modules that make and check tokens.
"""

from __future__ import annotations

from collections.abc import Callable

Bearer = str | Callable[[], str] | None
"""A token, or a function that returns the current one; empty or None: no token."""


def authorization(bearer: Bearer) -> dict[str, str]:
    """Return the header of a request with a bearer token; empty without one.

    Raises:
        Unavailable: The current token cannot be made.
    """
    token = bearer() if callable(bearer) else bearer
    return {"Authorization": f"Bearer {token}"} if token else {}
