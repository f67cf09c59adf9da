"""What a processor declares: properties that are read and typed, relationships, documentation."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.core.byte_sizes import parse_size
from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import (
    PERIOD,
    REGEX,
    SIZE,
    URL,
    DynamicExpressions,
    DynamicProperties,
    ExpressionProperty,
    InputRequirement,
    InvalidConfiguration,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    PropertyValue,
    Relationship,
    choice,
    list_of,
)
from penstock.flow.processor.documentation import describe, expression_functions
from penstock.flow.processor.processor_registry import ProcessorRegistry, installed_paths
from penstock.flow.processor.property_types import PropertyType, type_of
from penstock.flow.user_modules import FlowModules


class Idle(Processor):
    """Does nothing."""

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Do nothing."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def positive(value: int) -> None:
    if value <= 0:
        raise InvalidRequest(f"{value} is too small: give 1 or more")


class Greet(Idle):
    """Adds a greeting
    to each FlowFile.

    In the language of its property.
    """

    greeting = Property(str, default="hello", about="What to say.")
    times = Property(int, default=1, about="How often.", validator=positive)
    wait = Property(PERIOD, default="5 sec")
    limit = Property(SIZE, default="1 MB")
    color = Property(Color, default=Color.RED)
    language = Property(choice("de", "en"))
    pattern = Property(REGEX)
    folder = Property(Path)
    url = Property(URL)
    names = Property(list_of(str), default=())
    password = Property(str, required=True, sensitive=True)
    to = ExpressionProperty(str, default="${name}", about="Whom to greet.")
    batch_size = Property(int, default=10, name="Batch Size")

    success = Relationship("Greeted.")
    failure = Relationship("No name.", name="not greeted")

    input = InputRequirement.REQUIRED
    supports_batching = True
    writes_attributes: ClassVar[Mapping[str, str]] = {"greeting": "What was said."}

    def check(self) -> Iterator[Problem]:
        if self.times > self.batch_size:
            yield Problem("times", "is more than Batch Size: make it less")


class Route(Idle):
    rules = DynamicExpressions(bool, about="Where to.", relationships=True)
    unmatched = Relationship("No rule matched.")


class Labels(Idle):
    labels = DynamicProperties(int)


def problems(properties: dict[str, PropertyValue]) -> dict[str, str]:
    return {p.place: p.message for p in Greet.problems({"password": "p", **properties})}


def test_values_are_read_and_defaults_stand() -> None:
    greet = Greet.configured(
        {"password": "secret", "times": "3", "wait": "1.5 min", "limit": "2 KB", "Batch Size": 7}
    )
    assert (greet.greeting, greet.times, greet.wait, greet.limit) == ("hello", 3, 90_000, 2_048)
    assert greet.batch_size == 7
    assert greet.color is Color.RED
    assert greet.language is None
    assert greet.names == ()
    assert greet.to.of(FlowFile(1, {"name": "Ada"})) == "Ada"


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("color", "blue", Color.BLUE),
        ("language", "de", "de"),
        ("folder", "/tmp/x", Path("/tmp/x")),
        ("url", "https://h:80/p", "https://h:80/p"),
        ("names", "a, b,,c", ("a", "b", "c")),
        ("names", ["a", "b"], ("a", "b")),
        ("greeting", 5, "5"),
        ("greeting", True, "true"),
        ("greeting", None, "hello"),
    ],
)
def test_kinds_read_text_and_what_yaml_makes_of_it(
    name: str, given: PropertyValue, value: object
) -> None:
    assert getattr(Greet.configured({"password": "p", name: given}), name) == value


def test_a_pattern_is_compiled() -> None:
    greet = Greet.configured({"password": "p", "pattern": "a+"})
    assert isinstance(greet.pattern, re.Pattern)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("times", "many", "integer"),
        ("times", "0", "too small"),
        ("times", 1.5, "integer"),
        ("wait", "5", "not a period"),
        ("wait", "5 parsecs", "unit"),
        ("limit", "big", "not a size"),
        ("limit", "-1", "not a size"),
        ("color", "green", "one of red, blue"),
        ("language", "fr", "one of de, en"),
        ("pattern", "(", "regular expression"),
        ("pattern", "a" * 20_000, "too long"),
        ("folder", "", "not a valid path"),
        ("url", "nowhere", "not a URL"),
        ("url", "http://h:port/", "not a valid URL"),
        ("names", [1, 2], "unsupported type"),
        ("names", ["a,b"], "contains the separator"),
        ("greeting", ["a"], "unsupported type"),
        ("greeting", "x" * 2_000_000, "more than the maximum"),
        ("to", "${name", "not closed"),
        ("typo", "x", "unknown property"),
    ],
)
def test_each_wrong_value_is_a_problem_at_its_place(
    name: str, given: PropertyValue, said: str
) -> None:
    found = problems({name: given})
    assert list(found) == [name]
    assert said in found[name]


def test_all_problems_come_at_once_and_the_error_has_them() -> None:
    with pytest.raises(InvalidConfiguration, match=r"^Greet: .*times.*wait.*password") as raised:
        Greet.configured({"times": "x", "wait": "x"})
    assert [problem.place for problem in raised.value.problems] == ["times", "wait", "password"]


def test_problems_between_properties() -> None:
    assert problems({"times": 11}) == {"times": "is more than Batch Size: make it less"}


def test_a_sensitive_value_is_never_shown() -> None:
    class Secret(Idle):
        pin = Property(int, default="1234", sensitive=True)

    [problem] = Secret.problems({"pin": "hunter2"})
    assert "hunter2" not in problem.message
    assert describe(Secret).properties[0].default is None


def test_dynamic_properties_are_read_and_add_relationships() -> None:
    route = Route.configured({"big": "${fileSize:gt(10)}", "self": "${a:equals('b')}"})
    assert route.rules["big"].of(FlowFile(1, {}, size=11)) is True
    assert set(route.relationships()) == {"unmatched", "big", "self"}
    assert Labels.configured({"x": "5"}).labels == {"x": 5}
    assert [p.place for p in Labels.problems({"x": "y"})] == ["x"]
    assert [p.place for p in Route.problems({"x": "${"})] == ["x"]
    assert set(Greet(password="p").relationships()) == {"success", "not greeted"}


def test_mistakes_of_authors_are_found_when_the_class_is_made() -> None:
    with pytest.raises((InvalidRequest, RuntimeError)):

        class Bad(Idle):
            wait = Property(PERIOD, default="soon")

    with pytest.raises(TypeError, match="reserved by the base class"):

        class Shadow(Idle):
            values = Property(str)  # type: ignore[assignment]

    with pytest.raises(TypeError, match="not a type of property values"):
        type_of(bytes)


def test_declarations_of_bases_are_inherited_and_overridden() -> None:
    class Shout(Greet):
        greeting = Property(str, default="HELLO")

    assert Shout(password="p").greeting == "HELLO"
    assert Shout(password="p").times == 1
    assert list(describe(Shout).relationships) == ["success", "not greeted"]


def test_a_processor_documents_itself() -> None:
    facts = describe(Greet)
    assert facts.about == "Adds a greeting to each FlowFile."
    assert facts.details == "In the language of its property."
    text = "\n".join(facts.lines())
    for line in (
        "  greeting (text; default 'hello'): What to say.",
        "  language (choice; one of de, en)",
        "  password (text; required; sensitive)",
        "  to (text; default '${name}'; expressions): Whom to greet.",
        "  Batch Size (integer; default '10')",
        "  not greeted: No name.",
        "  greeting: What was said.",
        "  on incoming FlowFiles: it needs an incoming connection",
    ):
        assert line in text.splitlines()
    assert "any name (boolean; expressions; each adds a relationship): Where to." in "\n".join(
        describe(Route).lines()
    )
    assert expression_functions()["toUpper"] == "the text in upper case"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("1 KB", 1_024), ("1.5 mib", 1_572_864), ("2GB", 2 << 30), ("3 b", 3)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_the_registry_finds_names_and_import_paths() -> None:
    registry = ProcessorRegistry(
        {"Greet": Greet, "Route": f"{__name__}:Route"},
        [
            ("Labels", f"{__name__}:Labels"),
            ("Twice", f"{__name__}:Labels"),
            ("Twice", f"{__name__}:Greet"),
            ("Elsewhere", "json:JSONDecoder"),
        ],
        FlowModules([__name__]),
    )
    assert registry.names() == ["Greet", "Labels", "Route", "Twice"]
    assert registry.find("Greet") is Greet
    assert registry.find("Labels").__name__ == "Labels"
    assert registry.find(f"{__name__}:Route").__name__ == "Route"
    assert isinstance(installed_paths(), list)
    with pytest.raises(Conflict, match="more than once"):
        registry.find("Twice")
    with pytest.raises(InvalidRequest, match="may not name module json"):
        registry.find("Elsewhere")
    with pytest.raises(NotFound, match="did you mean Greet"):
        registry.find("Great")


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("no.such.module:X", InvalidRequest, "may not name module no.such.module"),
        ("json.no_such_module:X", InvalidRequest, "may not name module json.no_such_module"),
        ("json:Nothing", NotFound, "has no Nothing"),
        ("json:JSONDecoder", NotFound, "not a subclass"),
        ("json:", InvalidRequest, "not an import path"),
        ("../x:Y", InvalidRequest, "not an import path"),
        ("json;os:X", InvalidRequest, "not an import path"),
        (
            "penstock.flow.processor:Processor",
            InvalidRequest,
            "abstract class: implement on_trigger",
        ),
    ],
)
def test_paths_that_lead_nowhere_say_so(path: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ProcessorRegistry({}, modules=FlowModules(["json", "penstock.flow"])).find(path)


@pytest.mark.parametrize(
    "source",
    [
        "import nothing_of_that_name as X",
        "1 +",
        "X = y",
        "X = 1; raise RuntimeError",
        "X = 1; raise SystemExit(3)",
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_processor_module.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = FlowModules([str(tmp_path)])
    with pytest.raises(InvalidRequest, match="broken_processor_module:X"):
        ProcessorRegistry({}, modules=modules).find("broken_processor_module:X")


def test_a_kind_of_an_author() -> None:
    even = PropertyType("even number", lambda text: int(text) // 2 * 2)

    class Even(Idle):
        number = Property(even, default="3")

    assert Even().number == 2
