"""Overview of all processes of a Penstock: whether each runs, is ready, and why it waits.

Owns the requests to the other processes, and their last known addresses for the time when the
metadata store does not answer. Every request has a short time limit, and they run in parallel, so
that the answer arrives even if half of the processes hang.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from penstock.core.bearer import Bearer
from penstock.core.clock import Clock
from penstock.core.errors import Dependency, NotReachable, PenstockError, Unavailable
from penstock.core.waits import DependencyWait, WaitTable, merged, waits_from_json
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import START_S, ReadyState, resident_bytes

SERVICES: Final = ("router", "overlord", "flow", "worker")
_ANSWER_S: Final = 3.0
_REQUESTS_AT_ONCE: Final = 16
_WORK_PREFIX: Final = "ask "
_DEPENDENCIES: Final[Mapping[str, Dependency]] = {
    "broker": Dependency.BROKER,
    "overlord": Dependency.OVERLORD,
    "worker": Dependency.WORKER,
}


@dataclass(frozen=True, slots=True)
class ServiceState:
    """State of one process.

    Attributes:
        is_starting: Whether it is unready only because it, or this router, has just started.
        memory_bytes: Its memory in RAM, without that of the processes that it started; None if
            unknown.
    """

    service: str
    instance: str
    address: str
    ready: bool
    reasons: tuple[str, ...] = ()
    waits: tuple[DependencyWait, ...] = ()
    memory_bytes: int | None = None
    is_starting: bool = False

    def to_json(self) -> dict[str, object]:
        """Return its entry in ``/status``."""
        return {
            "service": self.service,
            "instance": self.instance,
            "address": self.address,
            "ready": self.ready,
            "starting": self.is_starting,
            "reasons": list(self.reasons),
            "memoryBytes": self.memory_bytes,
        }


class ProcessOverview:
    """The overview of one router. Thread-safe.

    Args:
        directory: Lookup of the processes.
        own: Address of this process, which is not requested.
        broker: Lookup of the broker.
        own_state: Returns the state of this process.
        clock: Dates processes that do not answer.
        token: Bearer token for the other processes.
    """

    def __init__(
        self,
        directory: LeaseDirectory,
        own: str,
        broker: BrokerFinder,
        own_state: Callable[[], ReadyState],
        clock: Clock,
        token: Bearer,
    ) -> None:
        self._directory = directory
        self._own = own
        self._broker = broker
        self._own_state = own_state
        self._token = token
        self._waits = WaitTable(clock)
        self._clock = clock
        self._created_s = clock.monotonic_s()
        self._was_ready = False
        # Replaced as a whole, so that any thread may read it.
        self._known: dict[str, tuple[tuple[str, str], ...]] = {}

    def to_json(self) -> dict[str, object]:
        """Return the part of ``/status`` about all processes."""
        own = self._own_state()
        places = [(service, *place) for service in SERVICES for place in self._instances(service)]
        not_found: list[str] = []
        try:
            broker = str(self._broker.http())
            places.append(("broker", broker, broker))
        except Unavailable as error:
            not_found.append(str(error))
        # No process is known while the metadata store has not answered since this process started.
        with ThreadPoolExecutor(max(1, min(_REQUESTS_AT_ONCE, len(places)))) as threads:
            found = list(threads.map(lambda place: self._state(place, own), places))
        self._forget_others(places)
        missing = not_found + [
            f"no {service} is announced"
            for service in SERVICES
            if not any(one.service == service for one in found)
        ]
        reasons = [
            *(f"{one.service} {one.address}: {text}" for one in found for text in one.reasons),
            *missing,
        ]
        is_ready = all(one.ready for one in found) and not missing
        self._was_ready = self._was_ready or is_ready
        groups: list[Sequence[DependencyWait]] = [self._waits.all(), own.reasons, own.waits]
        return {
            "ready": is_ready,
            "starting": not is_ready
            and self._is_young()
            and (own.ready or own.is_starting)
            and all(one.ready or one.is_starting for one in found),
            "reasons": reasons,
            "waits": [
                one.to_json() for one in merged([*groups, *(state.waits for state in found)])
            ],
            "services": [one.to_json() for one in found],
        }

    def _is_young(self) -> bool:
        """Return whether this router, and perhaps all others, still start: never ready so far."""
        return not self._was_ready and self._clock.monotonic_s() - self._created_s <= START_S

    def _forget_others(self, places: Sequence[tuple[str, str, str]]) -> None:
        """End the waits for processes that are no longer announced."""
        current = {_request_name(service, address) for service, _, address in places}
        for wait in self._waits.all():
            if wait.work.startswith(_WORK_PREFIX) and wait.work not in current:
                self._waits.ended(wait.work)

    def _instances(self, service: str) -> tuple[tuple[str, str], ...]:
        """Return instance and address of a service's processes, possibly the last known ones."""
        work = f"list {service} processes"
        try:
            rows = self._directory.all(service)
        except PenstockError as error:
            self._waits.failed(work, error, dependency=Dependency.METADATA)
            return self._known.get(service, ())
        self._waits.ended(work)
        places = tuple((row.instance, str(HostPort(row.host, row.port))) for row in rows)
        self._known = {**self._known, service: places}
        return places

    def _state(self, place: tuple[str, str, str], own: ReadyState) -> ServiceState:
        service, instance, address = place
        if address == self._own:
            return ServiceState(
                *(service, instance, address, own.ready, tuple(own.texts())),
                memory_bytes=resident_bytes(),
                is_starting=own.is_starting,
            )
        work = _request_name(service, address)
        client = JsonClient(
            HostPort.parse(address).url, token=self._token, timeout_s=_ANSWER_S, role=service
        )
        try:
            _, _, content = client.exchange("GET", "/status/ready")
            answer = json.loads(content)
        except (PenstockError, ValueError, RecursionError) as error:
            failure = (
                error if isinstance(error, PenstockError) else NotReachable(f"no JSON: {error}")
            )
            self._waits.failed(
                work, failure, dependency=_DEPENDENCIES.get(service, Dependency.OTHER)
            )
            return ServiceState(
                *place, ready=False, reasons=(str(failure),), is_starting=self._is_young()
            )
        self._waits.ended(work)
        if not isinstance(answer, dict) or not isinstance(answer.get("ready"), bool):
            text = "its answer has no readiness: check that it is the same release of Penstock"
            return ServiceState(service, instance, address, ready=False, reasons=(text,))
        reasons = answer.get("reasons")
        return ServiceState(
            *(service, instance, address, bool(answer["ready"])),
            tuple(map(str, reasons)) if isinstance(reasons, list) else (),
            waits_from_json(answer.get("waits")),
            memory if isinstance(memory := answer.get("memoryBytes"), int) else None,
            answer.get("starting") is True,
        )


def _request_name(service: str, address: str) -> str:
    """Return the name of the request for a process's state."""
    return f"{_WORK_PREFIX}{service} {address}"
