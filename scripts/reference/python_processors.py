"""Page of `penstock.flow.processor`, the API for writing processors, from its docstrings."""

from __future__ import annotations

from typing import Final

import penstock.flow.processor
from penstock.flow.processor import PropertyType
from reference.markdown import fence, head, table
from reference.python_api import PublicNames

_ABOUT: Final = """\
The public names of the package `penstock.flow.processor`, for [processors of your
own](../howto/write-a-processor.md). Times are in milliseconds and sizes in bytes. Errors without
another package are in `penstock.core.errors`.
"""
_REPLACE: Final = """\
with session.read(flowfile) as content:
    text = content.read().upper()  # for content of any size, read and write pieces
flowfile = session.write(flowfile, text)
session.transfer(flowfile, self.success)
"""
_FIRST: Final = (
    "Processor",
    "Property",
    "ExpressionProperty",
    "Expression",
    "DynamicProperties",
    "DynamicExpressions",
    "Relationship",
    "FlowFile",
    "ProcessSession",
    "ProcessContext",
    "StateManager",
)
# Programs need none of them: the runner of a processor, and the retries that a flow sets.
_HIDDEN: Final = frozenset({"ProcessorHost", "RelationshipRetry", "RetryBackoff"})
# Type of the value of a property of each kind.
_KINDS: Final = {
    "STR": "`str`",
    "INT": "`int` of 64 bits",
    "FLOAT": "`float`",
    "BOOL": "`bool`",
    "PATH": "`pathlib.Path`",
    "PERIOD": "`int`, milliseconds; written with a unit: `5 sec`",
    "SIZE": "`int`, bytes; written with a unit: `10 MB`",
    "REGEX": "`re.Pattern[str]`",
    "URL": "`str`",
}
_NAMES: Final = PublicNames(
    penstock.flow.processor,
    (
        *_FIRST,
        *(
            one
            for one in penstock.flow.processor.__all__
            if one not in {*_FIRST, *_KINDS, *_HIDDEN}
        ),
    ),
    internal=frozenset(
        {
            "Property.read",
            "Property.default",
            "Property.facts",
            "DynamicProperties.read",
            "PropertyType.read",
            "StateManager.committed",
        }
    ),
    not_made=frozenset(
        {"Expression", "FlowFile", "ProcessContext", "ProcessSession", "StateManager", "Processor"}
    ),
    texts={"PropertyValue": "Types that a flow's file may use for the value of a property."},
)


def page() -> str:
    """Return docs/reference/python-processors.md.

    Raises:
        KeyError: A kind of properties has no description here.
    """
    package = penstock.flow.processor
    kinds = [one for one in package.__all__ if isinstance(getattr(package, one), PropertyType)]
    lines = [
        head("Python API of processors", "the docstrings of `penstock.flow.processor`", _ABOUT)
    ]
    lines += ["", "To replace the content of a FlowFile:", *fence("python", _REPLACE.rstrip())]
    lines += _NAMES.markdown()
    lines += ["", "## Kinds of properties", "", "The first argument of `Property` is one of these:"]
    rows = [(f"`{one}`", _KINDS[one]) for one in kinds]
    rows.append(("`str`, `int`, `float`, `bool`, `Path`", "the same as the kind of that type"))
    rows.append(("a subclass of `enum.Enum`", "its member with this value"))
    rows.append(("`choice(…)`, `list_of(…)`", "see [choice](#choice) and [list_of](#list_of)"))
    lines += table(("kind", "value"), rows)
    return "\n".join(lines) + "\n"
