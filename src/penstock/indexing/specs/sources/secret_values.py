"""A secret of a spec: a reference, `secret://NAME`, or the name of a variable, or text.

Owns the forms, including Druid's, the variables that a spec may name, and the lookup of the value
in the process that uses it. `indexing.secrets` masks secrets for display, and
`storage.secrets.secret_sources` finds the value of a reference.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, field_validator

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import INPUT_VARIABLES, SCHEME, is_reference, referenced_name
from penstock.indexing.specs.spec_base import Found, SpecModel, as_mistake, mistake, mistakes
from penstock.storage.secrets.secret_sources import Secrets


class EnvironmentSecret(SpecModel):
    """A secret in an environment variable of the process that reads."""

    type: Literal["environment"] = "environment"
    variable: str

    @field_validator("variable")
    @classmethod
    def _check_variable(cls, name: str) -> str:
        if not re.fullmatch(rf"{INPUT_VARIABLES}[A-Za-z0-9_]+", name):
            raise mistake(
                f"cannot be read by a spec: name the variable {INPUT_VARIABLES}…,"
                " and set it where tasks run"
            )
        return name


def _secret(value: object) -> object:
    """Accept a secret in Druid's forms, too. Errors do not contain it."""
    if isinstance(value, str):
        with as_mistake():
            referenced_name(value)
        return value
    if not isinstance(value, dict):
        raise mistake(
            f"must be text, or an object of type environment with the name of a variable: best"
            f" {SCHEME}NAME"
        )
    kind = value.get("type", "default" if "password" in value else "environment")
    fields = {"default": "password", "environment": "variable"}
    if not isinstance(kind, str) or kind not in fields:
        text = 'must be "environment", with a variable, or "default", with a password'
        raise mistakes("secret", [(("type",), None, text)])
    name = fields[kind]
    found: Found = [
        ((other,), None, f"unknown field; there are type, {name}")
        for other in value
        if other not in {"type", name}
    ]
    if not isinstance(value.get(name), str):
        found.append(((name,), None, "must be text"))
    if found:
        raise mistakes("secret", found)
    return value[name] if kind == "default" else EnvironmentSecret.model_validate(value)


def _setting(value: object) -> object:
    return value if isinstance(value, int) else _secret(value)


Secret = Annotated[EnvironmentSecret | str, BeforeValidator(_secret)]
"""A secret: its text, or its variable."""
SecretSetting = Annotated[str | int | bool | EnvironmentSecret, BeforeValidator(_setting)]
"""A setting that may be a secret."""


def resolved(given: EnvironmentSecret | str, secrets: Secrets, place: str) -> str:
    """Return the value of a secret. Call it in the process that uses the value, and late.

    Args:
        given: The secret in a spec.
        secrets: The secrets of this process.
        place: The field, for errors.

    Raises:
        InvalidRequest: It has no value here.
        CorruptData: The file of sealed secrets is damaged.
        Unavailable: The command that prints it fails.
    """
    if isinstance(given, str):
        return secrets.text(given, place)
    found = secrets.variables.get(given.variable)
    if found is None:
        raise InvalidRequest(
            f"the variable {given.variable} is not set where this runs: set it where Penstock is"
            f" started, and restart it; or use {SCHEME}NAME after `penstock secret set NAME`",
            place=place,
        )
    return found


def check_whole_reference(text: str) -> None:
    """Check a value that may be a reference as a whole, such as that of an HTTP header.

    Raises:
        InvalidRequest: It has a reference among other text, or an invalid one.
    """
    if referenced_name(text) is None and not is_reference(text) and SCHEME in text:
        raise InvalidRequest(
            f"{SCHEME}NAME must be the whole value: store the text around it in the secret, too"
        )
