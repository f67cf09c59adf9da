"""Compares the compaction state that a segment records with the configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from penstock.indexing.specs.compaction import CompactionConfig

_JUDGED_MAX: Final = 1_000


class WantedState:
    """Judges compaction states; caches results, because many segments share few states.

    Args:
        config: The compaction configuration.
    """

    def __init__(self, config: CompactionConfig) -> None:
        self._wanted = _wanted_of(config)
        self._judged: dict[bytes, bool] = {b"": False}

    def is_met(self, state: bytes) -> bool:
        """Return whether a state in JSON matches; the empty state of no compaction does not."""
        found = self._judged.get(state)
        if found is None:
            if len(self._judged) >= _JUDGED_MAX:
                self._judged = {b"": False}
            found = self._judged[state] = self._judge(orjson.loads(state))
        return found

    def _judge(self, state: object) -> bool:
        if not isinstance(state, Mapping):
            return False
        wanted = self._wanted
        granularity = state.get("granularitySpec")
        if isinstance(granularity, Mapping) and not granularity.get("rollup"):
            # Roll-up creates the metrics; without roll-up, the same task would create none either.
            wanted = {name: value for name, value in wanted.items() if name != "metricsSpec"}
        return _covers(state, wanted)


def _wanted_of(config: CompactionConfig) -> dict[str, object]:
    """Return the state that a segment must have, as far as the configuration specifies it."""
    granularity = config.granularity_spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    partitions = config.tuning.partitions
    wanted: dict[str, object] = {
        "partitionsSpec": partitions.model_dump(mode="json", by_alias=True, exclude_none=True),
        "granularitySpec": granularity,
    }
    if config.dimensions_spec is not None:
        wanted["dimensionsSpec"] = config.dimensions_spec.model_dump(mode="json", by_alias=True)
    if config.metrics_spec is not None:
        wanted["metricsSpec"] = [
            metric.model_dump(mode="json", by_alias=True) for metric in config.metrics_spec
        ]
    if config.transform_spec.filter is not None:
        wanted["transformSpec"] = config.transform_spec.model_dump(mode="json", by_alias=True)
    return wanted


def _covers(found: object, wanted: object) -> bool:
    """Return whether the found state contains the wanted one; other parts are ignored."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _covers(found.get(name), value) for name, value in wanted.items()
        )
    return found == wanted
