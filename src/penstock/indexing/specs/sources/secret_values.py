"""A secret of a spec: text, or the name of the variable that holds it.

Owns the forms, including Druid's, and the variables that a spec may name. `indexing.secrets` masks
secrets for display.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, field_validator

from penstock.indexing.specs.spec_base import Found, SpecModel, mistake, mistakes

# A task reads only variables with this prefix: others of its process hold the service's own
# secrets, which a spec could otherwise send to any host.
VARIABLE_PREFIX: Final = "PENSTOCK_INPUT_"


class EnvironmentSecret(SpecModel):
    """A secret in an environment variable of the process that reads."""

    type: Literal["environment"] = "environment"
    variable: str

    @field_validator("variable")
    @classmethod
    def _check_variable(cls, name: str) -> str:
        if not re.fullmatch(rf"{VARIABLE_PREFIX}[A-Za-z0-9_]+", name):
            raise mistake(
                f"cannot be read by a spec: name the variable {VARIABLE_PREFIX}…,"
                " and set it where tasks run"
            )
        return name


def _secret(value: object) -> object:
    """Accept a secret in Druid's forms, too. Errors do not contain it."""
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
"""A secret: its text, or its variable."""
SecretSetting = Annotated[str | int | bool | EnvironmentSecret, BeforeValidator(_setting)]
"""A setting that may be a secret."""
