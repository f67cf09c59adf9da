"""`penstock cron`: the next fire times of a CRON expression, or its errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.services.cli.output import echo, print_json, print_rows

_COUNT_MAX = 1_000


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command("cron")(cron)


def cron(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPR",
            help="Second, minute, hour, day of month, month, day of week, and optionally year; "
            "in quotes.",
        ),
    ],
    zone: Annotated[str, typer.Option("--zone", "-z", help="Time zone of the expression.")] = "UTC",
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=_COUNT_MAX, help="Number of fire times.")
    ] = 5,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", help="Times after this one, in UTC unless it has a zone. [default: now]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the next fire times of a Quartz CRON expression, and its meaning."""
    # Importing the flow's parts is slow; other commands do not need them.
    from penstock.flow.scheduling.cron import CronExpression  # noqa: PLC0415
    from penstock.flow.scheduling.cron.description import describe  # noqa: PLC0415

    expression = _only(words)
    parsed = CronExpression.parse(expression, zone)
    after_ms = SystemClock().now_ms() if after is None else parse_time(after)
    times_ms = parsed.next_times(after_ms, count)
    meaning = describe(parsed.fields)
    moments = [
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).astimezone(parsed.zone)
        for ms in times_ms
    ]
    if as_json:
        print_json(
            {
                "expression": expression,
                "zone": zone,
                "means": meaning,
                "after": format_time(after_ms),
                "times": [
                    {
                        "time": moment.isoformat(),
                        "weekday": f"{moment:%A}",
                        "timestamp": ms,
                        "in_ms": ms - after_ms,
                    }
                    for moment, ms in zip(moments, times_ms, strict=True)
                ],
            }
        )
        return
    echo(f"{meaning} ({zone})")
    before_ms = [after_ms, *times_ms]
    print_rows(
        [
            {
                "time": moment.isoformat(sep=" "),
                "weekday": f"{moment:%A}",
                "in": distance(ms - after_ms),
                "after the one before": distance(ms - earlier_ms) if earlier_ms != after_ms else "",
            }
            for moment, ms, earlier_ms in zip(moments, times_ms, before_ms, strict=False)
        ],
        as_json=False,
        empty=f"it never fires after {format_time(after_ms)}",
    )


def _only(words: list[str]) -> str:
    if len(words) > 1:
        raise InvalidRequest(
            f"the expression has {len(words)} arguments: put it in quotes, '0 0 9 ? * MON', as the "
            "shell may have expanded * and ?"
        )
    return words[0]


def distance(ms: int) -> str:
    """Format a duration in its two largest units, such as ``3 d 4 h``."""
    seconds = -(-ms // 1000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    shown = [part for part in parts[first : first + 2] if part[0]] or [parts[first]]
    return " ".join(f"{number} {unit}" for number, unit in shown)
