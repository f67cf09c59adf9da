"""Commands `penstock processor list`, `show` and `new`.

Owns the output about processors' declarations and the template of a new processor: a class that
runs, and a test that passes. Does not own the declarations. The commands need no server.
"""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo, print_json, print_rows, warn_lines
from penstock.services.cli.server_options import FlowModulesOption as Modules

processor_app = typer.Typer(
    help="Processors, the components of flows.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(processor_app, name="processor")


@processor_app.command("list")
def list_processors(
    word: Annotated[
        str | None,
        typer.Argument(
            help="Only processors with this word in name, tags or text.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    flow_modules: Modules = None,
) -> None:
    """List the processors that flows may use: those of Penstock and of installed packages."""
    # Importing the flow's parts is slow; other commands do not need them.
    from penstock.flow.processor.documentation import describe  # noqa: PLC0415
    from penstock.services.processors import registry_for  # noqa: PLC0415 - slow to import, not for every command

    registry = registry_for(CLI.options(flow_modules=flow_modules).flow_modules)
    rows = []
    for name in registry.names():
        try:
            facts = describe(registry.find(name))
        except PenstockError as error:  # list the others even if one cannot be imported
            warn_lines(f"penstock: {error}")
            continue
        text = " ".join((name, *facts.tags, facts.about)).lower()
        if word is None or word.lower() in text:
            tags = ", ".join(facts.tags)
            rows.append({"processor": name, "about": facts.about, "tags": tags})
    empty = "no processor has this word"
    print_rows(rows, as_json=as_json, empty=empty, may_cut=("tags", "about"))


@processor_app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name, or import path such as package.module:Class.")],
    as_json: Json = False,
    flow_modules: Modules = None,
) -> None:
    """Show a processor's properties, relationships, attributes and state."""
    from msgspec import to_builtins  # noqa: PLC0415

    from penstock.flow.processor.documentation import describe  # noqa: PLC0415
    from penstock.services.processors import registry_for  # noqa: PLC0415 - slow to import, not for every command

    facts = describe(registry_for(CLI.options(flow_modules=flow_modules).flow_modules).find(name))
    if as_json:
        print_json(to_builtins(facts))
        return
    for line in facts.lines():
        echo(line)


@processor_app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the class, such as CountWords.")],
    folder: Annotated[
        Path, typer.Option("--folder", "-d", help="Folder of the two files.")
    ] = Path(),
) -> None:
    """Create your own processor: a class that runs, and its test."""
    if not folder.is_dir():
        raise InvalidRequest(f"folder {folder} does not exist: create it first")
    files = new_files(name)
    for file in files:
        if (folder / file).exists():
            raise Conflict(f"{folder / file} exists already; move it away, or use another name")
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
        echo(f"{folder / file}")
    module = next(iter(files)).removesuffix(".py")
    echo("")
    echo(f"Its test: pytest {folder / f'test_{module}.py'}")
    echo(f"In a flow: type: {module}:{name}")
    where = shlex.quote(str(folder.resolve()))
    echo(f"Start Penstock with: penstock up --flow-modules {where}")


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


def test_an_empty_flowfile_fails() -> None:
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
