"""The flow that was applied last, and the components that should run: stored durably.

Owns the file. Does not own the running flow (`controller`).

Invariant: the file contains the complete state after some change, because it is replaced
atomically.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.access.principal import ASSIGNABLE, parse_principal
from penstock.core.errors import CorruptData, InvalidRequest, NotFound
from penstock.core.whole_numbers import within_int64
from penstock.flow.graph.export import document
from penstock.flow.graph.flow_comments import NO_COMMENTS, FlowComments
from penstock.flow.graph.flow_model import Flow
from penstock.flow.graph.yaml_reader import read_flow

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)

_FORMAT_NUMBER: Final = 1
_NAME: Final = "flow.json"


@dataclass(frozen=True, slots=True)
class WantedStates:
    """Components that should run.

    Attributes:
        all_running: Whether components without an entry in `exceptions` should run, including new
            ones.
        exceptions: Whether a component should run, by its id.
    """

    all_running: bool = False
    exceptions: Mapping[str, bool] = field(default_factory=dict)

    def runs(self, component_id: str) -> bool:
        """Return whether a component should run."""
        return self.exceptions.get(component_id, self.all_running)

    def with_one(self, component_id: str, *, running: bool) -> WantedStates:
        """Return a copy with another value for one component."""
        exceptions = {**self.exceptions, component_id: running}
        if running == self.all_running:
            del exceptions[component_id]
        return replace(self, exceptions=exceptions)

    def only(self, components: frozenset[str]) -> WantedStates:
        """Return a copy without components that no longer exist."""
        kept = {one: runs for one, runs in self.exceptions.items() if one in components}
        return replace(self, exceptions=kept)


@dataclass(frozen=True, slots=True)
class AppliedFlow:
    """Flow that was applied.

    Attributes:
        flow: The flow.
        revision: Increases by one with each change of the flow; 0: no flow was applied yet.
        wanted: Which components should run.
        owner: Id of the principal that applied it, and for which it acts; empty: the installation.
        comments: Comments of its file.
    """

    flow: Flow
    revision: int = 0
    wanted: WantedStates = field(default_factory=WantedStates)
    owner: str = ""
    comments: FlowComments = NO_COMMENTS


class _File(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    revision: int
    all_running: bool
    exceptions: dict[str, bool]
    flow: dict[str, object]
    # Releases before it find it in no flow that they stored, and in none of the installation.
    owner: str = ""
    # As with the owner: a flow without comments is stored as before.
    comments: FlowComments = NO_COMMENTS


class AppliedFlowFile:
    """File with the applied flow.

    Args:
        fs: The file system.
        folder: Folder of the flow's service.
    """

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._path = f"{folder}/{_NAME}"

    def load(self) -> AppliedFlow:
        """Read the file; without one the flow is empty.

        Raises:
            CorruptData: The file is damaged.
            Unavailable: The file cannot be read.
        """
        try:
            data = self._fs.read_bytes(self._path)
        except NotFound:
            return AppliedFlow(Flow(name="flow"))
        try:
            file = msgspec.json.decode(data, type=_File)
            if file.format != _FORMAT_NUMBER:
                raise CorruptData(self._path, 0, f"format {file.format} is of another Penstock")
            stored = {name: _fitting(value, name) for name, value in file.flow.items()}
            flow = read_flow(msgspec.json.encode(stored), self._path).flow
            owner = _checked_owner(file.owner)
            file.comments.check()
        except (msgspec.MsgspecError, InvalidRequest) as error:
            raise CorruptData(
                self._path, 0, f"{error}: restore the file, or remove it and apply the flow again"
            ) from error
        wanted = WantedStates(file.all_running, file.exceptions)
        return AppliedFlow(flow, file.revision, wanted, owner, file.comments)

    def save(self, applied: AppliedFlow) -> None:
        """Write the file, durably.

        Raises:
            Unavailable: The file cannot be written; it is unchanged.
        """
        file = _File(
            _FORMAT_NUMBER,
            applied.revision,
            applied.wanted.all_running,
            dict(applied.wanted.exceptions),
            document(applied.flow),
            applied.owner,
            applied.comments,
        )
        self._fs.write_atomically(self._path, msgspec.json.encode(file))


def _checked_owner(owner: str) -> str:
    if owner and parse_principal(owner).kind not in ASSIGNABLE:
        raise InvalidRequest(f"a flow cannot act for {owner}")
    return owner


def _fitting(value: object, place: str) -> object:
    """Return a stored value with the nearest 64-bit number in place of each that does not fit.

    Earlier releases accepted any whole number, and a flow that they stored must still open.
    """
    if isinstance(value, dict):
        return {name: _fitting(inner, f"{place}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_fitting(inner, f"{place}[{at}]") for at, inner in enumerate(value)]
    if isinstance(value, int) and within_int64(value) != value:
        nearest = within_int64(value)
        _logger.warning(
            "the stored flow has a number of more than 64 bits at %.200s, which an earlier release "
            "accepted: %d is used instead; correct the flow and apply it",
            place,
            nearest,
        )
        return nearest
    return value
