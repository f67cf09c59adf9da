"""Page of `penstock.client`, from its public names and their docstrings."""

from __future__ import annotations

from typing import Final

import penstock.client
from reference.markdown import head
from reference.python_api import PublicNames, plain

_ABOUT: Final = """\
The public names of the package `penstock.client`, with their arguments, errors and defaults. The
package publishes and consumes messages over NSQ's protocol, on asyncio, and works with Penstock
and nsqd. All errors are subclasses of `penstock.core.errors.PenstockError`.
"""
_FIRST: Final = ("Producer", "Consumer", "Message")
_NAMES: Final = PublicNames(
    penstock.client,
    (*_FIRST, *(one for one in penstock.client.__all__ if one not in _FIRST)),
    internal=frozenset(
        {"Producer.received", "Producer.disconnected", "Message.is_from", "BackoffOptions.policy"}
    ),
    not_made=frozenset({"Message"}),
    texts={"Handler": f"Type of handlers: `{plain(str(penstock.client.Handler))}`."},
    fields={
        "connection": "Options of its connections.",
        "deflate_level": "Level of `deflate`, 1 to 9.",
    },
)


def page() -> str:
    """Return docs/reference/python-client.md."""
    head_ = head("Python client", "the docstrings of `penstock.client`", _ABOUT)
    return "\n".join((head_, *_NAMES.markdown())) + "\n"
