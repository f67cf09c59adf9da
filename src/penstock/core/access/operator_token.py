"""The file `operator.token`: its name and its content, for servers and the command line.

Separate from `bearer_tokens`, so that a command starts without the modules that make tokens.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.core.errors import InvalidRequest

OPERATOR_ID: Final = "operator"
OPERATOR_TOKEN_FILE: Final = "operator.token"  # noqa: S105 - the name of a file
SECRET_FILE_BYTES_MAX: Final = 4_096
"""Maximum size of `operator.token` and `process.key`."""

_TOKEN: Final = re.compile(rb"penstock_operator_[A-Za-z0-9_-]+")


def parse_operator_token(content: bytes, place: str) -> str:
    """Return the token in the content of `operator.token`.

    Raises:
        InvalidRequest: The content is not such a token.
    """
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest(
            "it is not a token of the operator: delete the file and start Penstock again, which"
            " makes a new one",
            place=place,
        )
    return token.decode()
