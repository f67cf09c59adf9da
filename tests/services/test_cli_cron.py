"""`penstock cron`: firing times for people and programs, and errors with their place."""

from __future__ import annotations

import json

import pytest

from penstock.services.cli import exit_codes
from penstock.services.cli.cron import distance
from penstock.services.cli.entry import run


def test_the_next_times_with_weekday_and_distance(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["cron", "0 15 10 ? * 6L", "--zone", "Europe/Berlin", "-n", "3"]
    assert run([*arguments, "--after", "2026-01-15T10:20:30Z"]) == exit_codes.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert " ".join(lines[0]) == "at 10:15:00, on the last Friday of the month (Europe/Berlin)"
    assert lines[3] == ["2026-01-30", "10:15:00+01:00", "Friday", "14", "d", "22", "h"]
    assert lines[4][:6] == ["2026-02-27", "10:15:00+01:00", "Friday", "42", "d", "22"]
    assert lines[4][-2:] == ["28", "d"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["cron", "0 0 0 1 1 ? 2030", "--after", "2026-01-15", "--json"]
    assert run(arguments) == exit_codes.OK
    found = json.loads(capsys.readouterr().out)
    assert found["means"] == "at 00:00:00, on day 1 of the month, in January, in 2030"
    assert found["times"] == [
        {
            "time": "2030-01-01T00:00:00+00:00",
            "weekday": "Tuesday",
            "timestamp": 1_893_456_000_000,
            "in_ms": 1_893_456_000_000 - 1_768_435_200_000,
        }
    ]


def test_an_expression_that_never_fires_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cron", "0 0 0 30 2 ?", "--after", "2026-01-15"]) == exit_codes.OK
    assert "it never fires after 2026-01-15T00:00:00.000Z" in capsys.readouterr().out


def test_a_wrong_expression_is_shown_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cron", "0 60 * * * ?"]) == exit_codes.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "penstock: 60 is not a valid minute: it takes 0 to 59, with , - * /\n"
        "    0 60 * * * ?\n      ^^\n"
    )


def test_an_expression_without_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cron", "0", "0", "9", "?", "README.md", "MON"]) == exit_codes.USAGE
    assert "put it in quotes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--zone", "Mars/Olympus"], ["--count", "0"], ["--count", "9999999"], ["--after", "soon"]],
)
def test_wrong_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cron", "0 0 0 * * ?", *arguments]) == exit_codes.USAGE
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 s"),
        (1, "1 s"),
        (59_000, "59 s"),
        (60_000, "1 min"),
        (3_725_000, "1 h 2 min"),
        (86_400_000, "1 d"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_distances(ms: int, shown: str) -> None:
    assert distance(ms) == shown
