"""Page of the options, from the table of options in the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.services.emitter.emitter import EVENTS_WAITING_MAX
from penstock.services.membership.election import TERM_TTL_MS
from penstock.services.membership.leases import RENEW_EVERY_S, TTL_MS
from penstock.services.membership.zookeeper import SESSION_TIMEOUT_S
from penstock.services.options.table import OptionEntry, option_entries
from reference.markdown import head, sentence, table

_ABOUT: Final = """\
Every option of `penstock up` and `penstock server`. Penstock takes the value of an option from the
first of these places that has one: the command line (`--http 127.0.0.1:9000`), the environment
variable of the option (`PENSTOCK_HTTP=127.0.0.1:9000`), and `penstock.toml` in the data folder
(`http = "127.0.0.1:9000"`). Otherwise it uses the default. `--config FILE` or `PENSTOCK_CONFIG`
names another file. A change takes effect at the next start.

Penstock refuses an unknown name or an invalid value, and reports its place and the nearest valid
name. It ignores environment variables that begin with `PENSTOCK_` and resemble no option.
"""
# The first option of each group, in the order of the table of options.
_GROUPS: Final[Mapping[str, str]] = {
    "data-dir": "Data folder and API",
    "broker-http": "Broker: addresses",
    "tls-cert": "TLS",
    "auth-http-addresses": "Broker: authorization and directory",
    "max-channel-consumers": "Broker: limits of clients",
    "mem-queue-size": "Broker: memory and retention",
    "metadata-url": "Metadata and deep storage",
    "spark-master": "Spark",
    "worker-capacity": "Workers",
    "task-queue-size": "Tasks",
    "zookeeper": "ZooKeeper",
    "emitters": "Events and metrics",
    "flow-modules": "Flows",
    "segments-group": "Access",
}
_KINDS: Final[Mapping[str, str]] = {
    "URL": "an address with a scheme, such as `s3://bucket/segments`",
    "JSON": "a JSON object; in `penstock.toml` it may be a table, `task-context = { priority = 60 }`",
    "address": "`HOST:PORT`, `:PORT` or `PORT`; IPv6 as `[::1]:8888`; port 0 selects a free port",
    "duration": "a number and a unit (`500ms`, `10s`, `15m`, `36h`, `7d`), or an ISO 8601 period"
    " such as `P30D`",
    "file": "a path; `~` is the home folder",
    "flag": "no value on the command line; `true` or `false` in the environment and the file",
    "folder": "a path; `~` is the home folder",
    "group": "the name of a group of the operating system",
    "host": "a host name or IP address, without a port",
    "list": 'entries separated by commas; in `penstock.toml` also `["one", "two"]`',
    "mode": "file permissions as three or four octal digits, such as `660`",
    "number": "a whole number",
    "path": "a path",
    "port": "a number from 0 to 65535",
    "size": "a number and a unit in powers of 1024: `512m`, `20g`; sizes on a disk also `1t`",
    "text": "a text that is not empty",
}


def page() -> str:
    """Return docs/reference/configuration.md."""
    text = head("Configuration", "the table of options in the code", _ABOUT)
    return "\n".join((text, *_groups(), *_values(), *_fixed())) + "\n"


def _groups() -> Iterator[str]:
    entries = option_entries()
    starts = [number for number, one in enumerate(entries) if one.key in _GROUPS]
    for start, end in zip(starts, [*starts[1:], len(entries)], strict=True):
        yield from ("", f"## {_GROUPS[entries[start].key]}")
        rows = map(_row, entries[start:end])
        yield from table(("option", "variable", "value", "default", "meaning"), rows)


def _row(entry: OptionEntry) -> tuple[str, ...]:
    meaning, _, described = entry.help.partition(" [default: ")
    default = described.removesuffix("]") or (f"`{entry.default}`" if entry.default else "none")
    name = f"`{entry.key}` (not on the command line)" if entry.is_secret else f"`{entry.flag}`"
    secret = " May be `secret://NAME`." if entry.may_name_secret else ""
    return name, f"`{entry.variable}`", entry.kind, default, sentence(meaning) + secret


def _values() -> Iterator[str]:
    yield from ("", "## Values")
    used = {one.kind for one in option_entries()}
    rows = [(kind, _KINDS[kind]) for kind in sorted(used, key=str.lower)]
    yield from table(("value", "how it is written"), rows)


def _fixed() -> Iterator[str]:
    yield from ("", "## Fixed values", "", "No option changes these.")
    rows = (
        (
            "leases of processes",
            f"renewed every {RENEW_EVERY_S:g} s, expire after {TTL_MS // 1000} s",
        ),
        ("term of the overlord that leads", f"expires after {TERM_TTL_MS // 1000} s"),
        ("restart of a process by `penstock up`", "after 0.2 s, doubled up to 10 s"),
        ("events that wait in a process", f"{EVENTS_WAITING_MAX:,}, then the oldest are dropped"),
        ("session with ZooKeeper", f"{SESSION_TIMEOUT_S:g} s"),
    )
    yield from table(("what", "value"), rows)
