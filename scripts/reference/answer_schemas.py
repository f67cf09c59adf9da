"""JSON Schemas of answers, from the short notation of `data/http_answers.yaml`.

A schema is an object, whose keys are fields, or a text:

- `string`, `integer`, `number`, `boolean`, `object`, `any`, `empty` (an empty object), or the name of
  another schema of the file;
- `[X]` a list, `{X}` an object with any names, `X?` also null, `A | B` one of several.

A field whose name ends with `?` may be missing. Answers may get further fields in later releases, so
that the schemas allow them; tests check answers without this allowance.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from reference.markdown import data

_SIMPLE: Final = frozenset({"string", "integer", "number", "boolean", "object"})

Schema = dict[str, object]


@cache
def schemas() -> Mapping[str, Schema]:
    """Return the named schemas of answers."""
    return {name: _object(raw) for name, raw in data("http_answers")["schemas"].items()}


def _object(raw: object) -> Schema:
    if not isinstance(raw, dict):
        return schema_of(str(raw))
    properties = {str(key).removesuffix("?"): _object(value) for key, value in raw.items()}
    required = [str(key) for key in raw if not str(key).endswith("?")]
    return {
        "type": "object",
        **({"required": required} if required else {}),
        "properties": properties,
    }


def schema_of(text: str) -> Schema:
    """Return the JSON Schema of a text.

    Raises:
        KeyError: It names a schema that does not exist.
    """
    text = text.strip()
    if " | " in text:
        return {"anyOf": [schema_of(one) for one in text.split(" | ")]}
    if text.endswith("?"):
        return {"anyOf": [schema_of(text[:-1]), {"type": "null"}]}
    if text.startswith("["):
        return {"type": "array", "items": schema_of(text[1:-1])}
    if text.startswith("{"):
        return {"type": "object", "additionalProperties": schema_of(text[1:-1])}
    if text in _SIMPLE:
        return {"type": text}
    if text == "any":
        return {}
    if text == "empty":
        return {"type": "object", "maxProperties": 0}
    if text not in data("http_answers")["schemas"]:
        raise KeyError(f"data/http_answers.yaml has no schema {text!r}")
    return {"$ref": f"#/components/schemas/{text}"}
