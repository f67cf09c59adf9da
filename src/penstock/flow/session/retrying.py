"""Retries of FlowFiles before they are transferred to a relationship.

Owns the rule: which FlowFiles of a session are given back unchanged, and how long they are
penalized or the processor yields. Does not own the session state (`ledger`), nor the giving back
(`committing`).

Invariants: FlowFiles that were created from each other are retried together. FlowFiles that a
source created are never retried, because they have no queue to return to. After the last retry the
attributes contain no trace of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.flow.relationships import RETRY_COUNT_PREFIX, Backoff
from penstock.flow.session.session_state import with_attributes, with_penalty

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.relationships import Retry
    from penstock.flow.session.services import Wiring
    from penstock.flow.session.session_state import Ledger


@dataclass(slots=True)
class Retried:
    """FlowFiles to retry.

    Attributes:
        again: FlowFiles to put back, by id.
        undone: All ids whose changes are discarded, including those in `again`.
        yield_ms: How long the processor yields.
    """

    again: dict[int, FlowFile] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)
    yield_ms: int = 0


def find_retried(ledger: Ledger, wiring: Wiring, now_ms: int) -> Retried:
    """Return the FlowFiles to retry, and remove the retry count from the others."""
    retried = Retried()
    name = RETRY_COUNT_PREFIX + wiring.processor
    routed = {
        number: wiring.retries[route]
        for number, route in ledger.routes.items()
        if route in wiring.retries
    }
    if routed:
        groups = _groups(ledger)
        for number, retry in routed.items():
            if number not in retried.undone:
                group = groups.get(number, (number,))
                _try_again(ledger, wiring, retry, (group, name, now_ms), retried)
    for number in ledger.routes.keys() - retried.undone:
        flowfile = ledger.newest[number]
        if name in flowfile.attributes and ledger.routes[number]:
            ledger.change(with_attributes(flowfile, _without(flowfile.attributes, name)))
    return retried


def _groups(ledger: Ledger) -> Mapping[int, Collection[int]]:
    groups: dict[int, list[int]] = {}
    kin = ledger.kin()
    for number, head in kin.items():
        groups.setdefault(head, []).append(number)
    return {number: groups[head] for number, head in kin.items()}


def _try_again(
    ledger: Ledger,
    wiring: Wiring,
    retry: Retry,
    attempt: tuple[Collection[int], str, int],
    retried: Retried,
) -> None:
    group, name, now_ms = attempt
    originals = [ledger.originals[number] for number in group if number in ledger.originals]
    if not originals:
        return
    tried = max(_count(original.attributes.get(name, "")) for original in originals)
    if tried >= retry.count:
        return
    penalize = retry.backoff is Backoff.PENALIZE
    delay_ms = retry.delay_ms(tried, wiring.penalty_ms if penalize else wiring.yield_ms)
    again = [
        with_attributes(original, {**original.attributes, name: str(tried + 1)})
        for original in originals
    ]
    if penalize:
        again = with_penalty(again, now_ms + delay_ms)
    else:
        retried.yield_ms = max(retried.yield_ms, delay_ms)
    retried.again.update({flowfile.id: flowfile for flowfile in again})
    retried.undone.update(group)


def _count(text: str) -> int:
    # Any other text in the attribute restarts the count.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _without(attributes: Mapping[str, str], name: str) -> dict[str, str]:
    return {known: value for known, value in attributes.items() if known != name}
