"""Page of the events that the emitter sends, from `data/events.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.services.emitter import emitter
from reference.markdown import data, fence, head, sentence, table

_ABOUT: Final = """\
On this page, an event is not a message that a producer publishes: it is a value that a process
measures at one moment, such as the time of a query, or an alert. The option `--emitters` selects
where events go: to the log of the process (`log`), to `/metrics` as histograms (`prometheus`), or
to an HTTP server (`http`). Emitting never delays other work: if too many events wait, the oldest
are dropped and counted.
"""
_EXAMPLE: Final = """\
{
  "feed": "metrics",
  "timestamp": "2026-01-31T12:00:00.000Z",
  "service": "overlord",
  "host": "server-1",
  "version": "0.1.0",
  "metric": "task/run/time",
  "value": 5310,
  "taskId": "index_parallel_clicks_1",
  "taskType": "index_parallel",
  "groupId": "index_parallel_clicks_1",
  "dataSource": "clicks",
  "taskStatus": "SUCCESS"
}
"""
_DIMENSIONS: Final = {
    "task": ("taskId", "taskType", "groupId", "dataSource"),
    "supervisor": ("supervisorId", "dataSource", "stream"),
}


def page() -> str:
    """Return docs/reference/events.md."""
    lines = [head("Events", "the table of events", _ABOUT), "", "## Fields"]
    rows = [(f"`{name}`", about) for name, about in data("events")["fields"].items()]
    lines += table(("field", "meaning"), rows)
    lines += ["", "A metric also has its dimensions as fields. An event of a task also has"]
    lines += ["`taskId`, `taskType`, `groupId` and `dataSource`."]
    lines += fence("json", _EXAMPLE)
    lines += ["", "## Metrics"]
    lines += table(("metric", "process", "unit", "dimensions", "meaning"), _metrics())
    lines += ["", "## Alerts"]
    alerts = [(f"`{shown}`", *more) for _, shown, *more in data("events")["alerts"]]
    lines += table(("description", "process", "what to do"), alerts)
    return "\n".join((*lines, *_delivery())) + "\n"


def _metrics() -> Iterator[tuple[str, ...]]:
    for name, (process, unit, dimensions, meaning) in data("events")["metrics"].items():
        names = [shown for one in dimensions.split() for shown in _DIMENSIONS.get(one, (one,))]
        shown = ", ".join(f"`{one}`" for one in names)
        yield f"`{name}`", process, unit, shown, sentence(meaning)


def _delivery() -> Iterator[str]:
    yield from ("", "## Delivery over HTTP", "")
    yield "Events are posted to `--emitter-url` in batches."
    rows = [
        ("a batch is sent", "when it has 500 events or 5 MiB, or after `--emitter-flush`"),
        (
            "body",
            "a JSON array, or the form that `--emitter-framing` sets; compressed with `--emitter-gzip`",
        ),
        ("largest event", "1,023 KiB; larger ones are dropped"),
        ("events that wait in a process", f"{emitter.EVENTS_WAITING_MAX:,}"),
        ("batches that wait", "12 new ones and 12 failed ones, 64 MiB in total"),
        ("tries of a batch", "3, after 1 s and 2 s; later once more after newer batches"),
        ("success", "any status from 200 to 299"),
        ("at the end of the process", "everything is sent once more, for up to 3 s"),
    ]
    yield from table(("what", "value"), rows)
