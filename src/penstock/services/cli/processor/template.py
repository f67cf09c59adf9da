"""Files of a new processor: a class that runs, and a test that passes.

Owns their text. Does not own their location.
"""

from __future__ import annotations

import keyword
import re
from typing import Final

from penstock.core.errors import InvalidRequest

_CLASS: Final = '''"""{name}: a processor."""

from penstock.flow.processor import (
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)


class {name}(Processor):
    """Describe in one sentence what it does with FlowFiles."""

    success = Relationship("FlowFiles with the suffix.")
    failure = Relationship("Empty FlowFiles.")
    suffix = Property(str, default="!", about="Text that is appended to the content.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Work on one FlowFile."""
        flowfile = session.get()
        if flowfile is None:
            return
        if not flowfile.size:
            session.transfer(flowfile, self.failure)
            return
        with session.append(flowfile) as content:
            content.write(self.suffix.encode())
        session.transfer(flowfile, self.success)
'''

_TEST: Final = '''"""{name}."""

from penstock.testing.flow import ProcessorRunner

from {module} import {name}


def test_the_suffix_is_added() -> None:
    with ProcessorRunner({name}, {{"suffix": "?"}}) as runner:
        runner.enqueue(b"hello", filename="greeting")
        runner.run()
        [sent] = runner.sent("success")
        assert sent.content == b"hello?"
        assert sent.attributes["filename"] == "greeting"


def test_what_is_empty_fails() -> None:
    with ProcessorRunner({name}) as runner:
        runner.enqueue(b"")
        runner.run()
        assert runner.counts() == {{"failure": 1}}
'''


def new_files(name: str) -> dict[str, str]:
    """Return the text of each file, the class first.

    Args:
        name: Name of the class.

    Raises:
        InvalidRequest: The name is not a class name.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name, re.ASCII) or keyword.iskeyword(name):
        raise InvalidRequest(f"invalid class name {name!r}: write one such as CountWords")
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    if keyword.iskeyword(module):
        module += "_"
    return {
        f"{module}.py": _CLASS.format(name=name),
        f"test_{module}.py": _TEST.format(name=name, module=module),
    }
