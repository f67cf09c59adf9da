"""Addresses of services for tests of APIs, without leases."""

from __future__ import annotations

from penstock.core.errors import Unavailable
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import LeaseRow


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


class Overlords:
    """Stands for a `WorkerLocator`: each question is answered by the next address, then the last.

    Args:
        places: The addresses.
    """

    def __init__(self, *places: HostPort) -> None:
        self.places = list(places)

    def overlord(self) -> HostPort:
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]
