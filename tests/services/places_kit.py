"""Addresses of services for tests of APIs, without leases."""

from __future__ import annotations

import json

from penstock.core.errors import Unavailable
from penstock.services.options.option_values import HostPort
from penstock.services.sampler_process import SampleAnswer
from penstock.storage.metadata import LeaseRow

NO_ROWS: dict[str, object] = {
    "inputFormat": {"type": "csv"},
    "timestampSpec": None,
    "timeCandidates": [],
    "dimensions": [],
    "files": {"count": 1, "bytes": 1, "first": "inline", "allCounted": True},
    "rows": [],
    "errors": [],
    "read": {"rows": 0, "bad": 0, "whole": True},
    "notes": [],
    "time": None,
}


class FixedPlaces:
    """Stands for a `LeaseDirectory` and a `BrokerFinder`.

    Args:
        overlord: Address of the overlord; None: there is none.
        broker: Address of the broker; None: that of the overlord.
    """

    def __init__(self, overlord: HostPort | None = None, broker: HostPort | None = None) -> None:
        self.places = {"overlord": overlord, "broker": broker or overlord}

    def find(self, service: str) -> HostPort:
        found = self.places[service]
        if found is None:
            raise Unavailable(f"no {service}")
        return found

    def http(self) -> HostPort:
        return self.find("broker")

    def broker(self) -> LeaseRow:
        raise Unavailable("no broker is announced")


class NoSampler:
    """Stands for `SamplerProcesses`: a sample that is allowed has no rows."""

    def sample(self, request: bytes) -> SampleAnswer:
        del request
        return SampleAnswer(200, json.dumps(NO_ROWS).encode())


class Overlords:
    """Stands for a `WorkerLocator`: each question is answered by the next address, then the last.

    Args:
        places: The addresses.
    """

    def __init__(self, *places: HostPort) -> None:
        self.places = list(places)

    def overlord(self) -> HostPort:
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]
