"""A secret of a spec: text, or the name of the variable that holds it.

Owns the forms, Druid's too, and which variables a spec may name. What is shown of one is for
`indexing.masking`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, field_validator

from penstock.indexing.spec.model import Found, SpecModel, mistake, mistakes

# A task reads only what was meant for it: other variables of its process hold the service's own
# secrets, which a spec could otherwise send to any host.
VARIABLE_PREFIX: Final = "PENSTOCK_INPUT_"


class EnvironmentSecret(SpecModel):
    """A secret that stands in an environment variable of the process that reads."""

    type: Literal["environment"] = "environment"
    variable: str

    @field_validator("variable")
    @classmethod
    def _check_variable(cls, name: str) -> str:
        if not re.fullmatch(rf"{VARIABLE_PREFIX}[A-Za-z0-9_]+", name):
            raise mistake(
                f"is not for specs to read: name the variable {VARIABLE_PREFIX}…,"
                " and set it where tasks run"
            )
        return name


def _secret(value: object) -> object:
    """Take a secret as Druid writes it, too. What is wrong with one is told without it."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise mistake("must be text, or an object of type environment with the name of a variable")
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
"""A secret: itself, or where it is."""
SecretSetting = Annotated[str | int | bool | EnvironmentSecret, BeforeValidator(_setting)]
"""A setting that may be a secret."""
