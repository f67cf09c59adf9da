"""References to secrets: `secret://NAME` in place of a value. Pure.

A user writes a reference where a secret is expected, and the operator decides where the value comes
from (`storage.secrets`). Only fields that are declared as secret treat such a text as a reference;
everywhere else it is ordinary text, so that no value can be shown by using it as something else. A
reference is a whole value: text around it would make the secret a part of something that is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.core.errors import InvalidRequest

SCHEME: Final = "secret://"
NAME_CHARACTERS_MAX: Final = 128
INPUT_VARIABLES: Final = "PENSTOCK_INPUT_"
"""Beginning of the environment variables that specs may name.

A task reads no others: they hold the service's own secrets, which a spec could otherwise send to
any host.
"""

# No slash, so that a name is one part of a resource of access rules and never a path.
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}")


def check_secret_name(name: str) -> str:
    """Return a name of a secret.

    Raises:
        InvalidRequest: It is not valid. The message does not contain it, because a user may have
            written the secret in place of its name.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"invalid name of a secret: use 1 to {NAME_CHARACTERS_MAX} of the characters a-z, A-Z,"
            " 0-9, . _ - and begin with a letter or a digit"
        )
    return name


def is_reference(value: object) -> bool:
    """Return whether a value begins like a reference, valid or not; the case does not matter."""
    return isinstance(value, str) and value.lstrip()[: len(SCHEME)].lower() == SCHEME


def referenced_name(text: str) -> str | None:
    """Return the name in a reference; None for any other text.

    Raises:
        InvalidRequest: The text begins like a reference, but is not one.
    """
    if not is_reference(text):
        return None
    if not text.startswith(SCHEME):
        raise InvalidRequest(f"write {SCHEME} in small letters, without spaces before it")
    return check_secret_name(text.removeprefix(SCHEME))


def names_in(value: object) -> Iterator[str]:
    """Yield the name in each text of a JSON value that is a valid reference.

    The check of access to secrets uses it for a whole spec, so that it needs no list of the fields
    that may be secret: a text in another field is not looked up, but refusing it does no harm.
    """
    if isinstance(value, str):
        try:
            name = referenced_name(value)
        except InvalidRequest:
            return
        if name is not None:
            yield name
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from names_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from names_in(one)
