"""The files for operators: a dashboard, alert rules, a systemd unit, a Containerfile."""

from __future__ import annotations

import configparser
import itertools
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.examples import example
from penstock.services.host.host_plan import spark_cache_folder
from penstock.spark.connect.java import MINIMUM_VERSION
from reference.openapi import document

INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"),
    *("ENTRYPOINT", "CMD"),
}
DASHBOARD = "operations/grafana-dashboard.json"
ROOT = Path(__file__).parents[2]
DURATION = re.compile(r"\d+[smhd]")


def rules() -> Sequence[Mapping[str, object]]:
    (group,) = yaml.safe_load(example("operations/alert-rules.yaml"))["groups"]
    found: Sequence[Mapping[str, object]] = group["rules"]
    return found


def is_balanced(expression: str) -> bool:
    depth = 0
    for character in re.sub(r'"[^"]*"', "", expression):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def check_command(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Insist that a command of ours exists, with the options that it has here."""
    assert words[0] == "penstock"
    names = list(itertools.takewhile(lambda word: word[0] not in "-{", words[1:]))
    known = 0
    for count in range(len(names), 0, -1):
        if run([*names[:count], "--help"]) == exit_codes.OK:
            known = count
            break
    assert known, words
    shown = capsys.readouterr().out
    for option in words:
        if option.startswith("--"):
            assert option in shown, option


def test_every_alert_has_what_prometheus_needs_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [str(rule["alert"]) for rule in rules()]
    assert len(set(names)) == len(names) > 10
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert is_balanced(str(rule["expr"])), rule
        assert DURATION.fullmatch(str(rule.get("for", "1m")))
        labels, annotations = rule["labels"], rule["annotations"]
        assert isinstance(labels, dict)
        assert labels["severity"] in {"warning", "critical"}
        assert isinstance(annotations, dict)
        assert set(annotations) == {"summary", "description"}
        for command in re.findall(r"`([^`]+)`", annotations["description"]):
            check_command(command.split(), capsys)


def test_an_alert_sees_the_first_value_of_a_metric_that_is_absent_before() -> None:
    """`increase` needs two values, and these begin with 1 at the first death or message."""
    late = ("penstock_thread_deaths_total", "penstock_topic_latest_offset")
    for name in late:
        used = [str(rule["expr"]) for rule in rules() if f"increase({name}" in str(rule["expr"])]
        assert used
        for expression in used:
            selector = expression.partition("increase(")[2].partition("[10m])")[0]
            assert f"unless {selector} offset 10m" in expression
    assert "increase(penstock_thread_deaths" not in example(DASHBOARD).decode()


def test_both_pages_with_metrics_are_scraped() -> None:
    """The metrics of the flow are on a page of its own."""
    text = example("operations/alert-rules.yaml").decode()
    comment = [line[1:] for line in text.splitlines() if line.startswith("#   ")]
    jobs = yaml.safe_load("\n".join(comment))["scrape_configs"]
    pages = {job["job_name"]: job.get("metrics_path", "/metrics") for job in jobs}
    assert pages == {"penstock": "/metrics", "penstock-flow": "/flow/metrics"}
    (down,) = [str(rule["expr"]) for rule in rules() if rule["alert"] == "PenstockDown"]
    assert f'job=~"{"|".join(pages)}"' in down


def panels() -> Iterator[dict[str, object]]:
    yield from json.loads(example(DASHBOARD))["panels"]


def test_the_dashboard_is_one_grid_of_panels_with_queries() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids) > 20
    for panel in panels():
        place = panel["gridPos"]
        assert isinstance(place, dict)
        across = range(place["x"], place["x"] + place["w"])
        cells = set(itertools.product(across, range(place["y"], place["y"] + place["h"])))
        assert max(across) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        targets = panel.get("targets", [])
        assert isinstance(targets, list)
        assert bool(targets) == (panel["type"] != "row")
        for target in targets:
            assert is_balanced(target["expr"]), target
            assert 'instance=~"$instance"' in target["expr"]


@pytest.mark.parametrize("name", ["alert-rules.yaml", "grafana-dashboard.json"])
def test_every_metric_exists(name: str) -> None:
    """The page of metrics is compared with what the processes report."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"`(penstock_\w+)`", page))
    used = set(re.findall(r"penstock_\w+", example(f"operations/{name}").decode()))
    assert {re.sub("_(bucket|count)$", "", one) for one in used} <= known


def test_the_unit_runs_a_command_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(example("operations/penstock.service").decode())
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    check_command([Path(program).name, *words], capsys)
    assert words[-1] == f"/var/lib/{service['StateDirectory']}"
    assert int(service["RestartPreventExitStatus"]) == exit_codes.USAGE
    # Otherwise a Spark or a peon that takes too much memory would stop everything.
    assert service["OOMPolicy"] == "continue"
    cache = Path(service["Environment"].removeprefix("XDG_CACHE_HOME="))
    assert spark_cache_folder({"XDG_CACHE_HOME": str(cache)}) == cache / service["CacheDirectory"]
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        file = tmp_path / "penstock.service"
        # On this machine nothing is installed in /opt.
        file.write_text(
            example("operations/penstock.service").decode().replace(program, "/bin/true")
        )
        done = subprocess.run([verify, "verify", file], capture_output=True, text=True, check=False)
        assert "penstock.service" not in done.stderr, done.stderr


def instructions() -> Iterator[tuple[str, str]]:
    text = example("operations/Containerfile").decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def test_the_image_runs_a_command_that_exists_as_a_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = list(instructions())
    assert {name for name, _ in found} <= INSTRUCTIONS
    by_name = dict(found)
    assert by_name["USER"] not in {"root", "0"}
    words = [*json.loads(by_name["ENTRYPOINT"]), *json.loads(by_name["CMD"])]
    check_command(words, capsys)
    listens = {word.rpartition(":")[2] for word in words if word.startswith("0.0.0.0:")}
    assert listens == set(by_name["EXPOSE"].split())
    assert by_name["VOLUME"] in words


# Programs of the image of Python on Debian, beside those that the packages and the wheel add.
OF_BASE = {"apt-get", "install", "pip", "python", "rm", "useradd"}


def shell_commands(text: str) -> Iterator[list[str]]:
    for command in text.split("&&"):
        yield shlex.split(command)


def test_the_image_is_built_from_what_exists() -> None:
    """No machine of the tests has a container engine and the base image; this reads the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(instructions())
    (base,) = [rest for name, rest in found if name == "FROM"]
    version = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim-[a-z]+", base)
    assert version, "the tag names the versions of Python and of Debian"
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
    wheel = f"{project['name'].replace('-', '_')}-{project['version']}-py3-none-any.whl"
    copied: set[str] = set()
    made: dict[str, tuple[str, str]] = {}
    users: set[str] = set()
    for name, rest in found:
        if name == "COPY":
            source, folder = rest.split()
            assert fnmatch(wheel, source)
            assert folder.endswith("/")
            copied.add(folder + source)
        for words in shell_commands(rest) if name == "RUN" else ():
            assert words[0] in OF_BASE, words
            if words[0] == "useradd":
                users.add(words[-1])
            elif words[0] == "install":
                owner, mode = words[words.index("-o") + 1], words[words.index("-m") + 1]
                made[words[-1]] = (owner, mode)
            elif words[:2] in (["pip", "install"], ["rm", "/tmp/penstock_io-*.whl"]):
                assert copied == {words[-1]}
    by_name = dict(found)
    assert users == {by_name["USER"]}
    assert made == {by_name["VOLUME"]: (by_name["USER"], "0700")}
    (program,) = json.loads(by_name["ENTRYPOINT"])
    assert program in project["scripts"]


def test_the_image_installs_packages_as_images_should() -> None:
    found = list(instructions())
    (system,) = [rest for name, rest in found if name == "RUN" and "apt-get" in rest]
    update, install, clean, *_ = shell_commands(system)
    assert update == ["apt-get", "update"]
    assert install[:4] == ["apt-get", "install", "-y", "--no-install-recommends"]
    assert clean == ["rm", "-rf", "/var/lib/apt/lists/*"]
    (java,) = [one for one in install if "jre" in one]
    assert int(re.findall(r"\d+", java)[0]) >= MINIMUM_VERSION
    (packages,) = [rest for name, rest in found if name == "RUN" and "pip" in rest]
    assert "--no-cache-dir" in packages
    # Nothing runs as root after the user is set, and no secret is part of the image.
    names = [name for name, _ in found]
    assert "RUN" not in names[names.index("USER") :]
    assert not {"ENV", "ARG", "ADD", "SHELL"} & set(names)


def test_the_check_of_the_image_asks_a_path_that_exists_on_a_port_that_it_has() -> None:
    by_name = dict(instructions())
    options, _, command = by_name["HEALTHCHECK"].partition(" CMD ")
    program, flag, code = json.loads(command)
    assert (program, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    (address,) = re.findall(r"http://[^']+", code)
    parts = urlsplit(address)
    assert str(parts.port) in by_name["EXPOSE"].split()
    assert "get" in document()["paths"][parts.path]
    limits = dict(one.removeprefix("--").split("=") for one in options.split())
    (own,) = re.findall(r"timeout=(\d+)", code)
    assert int(own) < int(limits["timeout"].removesuffix("s"))
