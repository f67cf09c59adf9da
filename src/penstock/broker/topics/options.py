"""Options of a topic: their names, their bounds, and the options they give to its parts.

Owns the names, which ``topic.json`` and ``/topic/configure`` share, and the bounds. Does not own
when options change (`topic_changes`) nor their effects in channels, stream partitions and
publishers.

An option that is None is not set: the broker's default applies.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.broker.topic_names import require_name
from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.channel.drop_policy import ChannelOptions
    from penstock.storage.queue.options import DiskQueueOptions

OptionValue = int | str | bool
T = TypeVar("T")

MIN_BOUND_BYTES: Final = 1 << 20  # for each stream partition
_FILES_PER_BOUND: Final = 8  # so that each deletion frees a small part of the bound
_NUMBER_MAX: Final = 2**53  # exact in every JSON parser
_ATTEMPTS_MAX: Final = 65_535
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}


class WhenFull(StrEnum):
    """Behaviour of a topic that reached its maximum size."""

    REFUSE = "refuse"
    DROP_OLDEST = "drop_oldest"


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Options of a topic.

    Attributes:
        max_attempts: Maximum deliveries of a message before a channel drops it; 0 means unlimited.
        dead_letter_topic: Topic that receives such messages; empty: they are dropped and counted.
        message_ttl_ms: Age at which a message expires; 0: never.
        requeue_on_disconnect: Requeue a consumer's messages at once when it disconnects.
        max_bytes: Maximum size on disk, divided evenly among the stream partitions; 0 means
            unlimited.
        when_full: At `max_bytes`, refuse publishes or drop the oldest messages.
        durable: Acknowledge a publish only once it survives a power loss.
        retention_ms: How long messages that every reader has passed are kept.
        retention_bytes: Size of a stream partition above which such messages are deleted.
    """

    max_attempts: int | None = None
    dead_letter_topic: str | None = None
    message_ttl_ms: int | None = None
    requeue_on_disconnect: bool | None = None
    max_bytes: int | None = None
    when_full: WhenFull | None = None
    durable: bool | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            most = _ATTEMPTS_MAX if name == "max_attempts" else _NUMBER_MAX
            if value is not None and not 0 <= value <= most:
                raise InvalidRequest(f"{name}={value}: 0 to {most}", place=name)
        if self.dead_letter_topic:
            require_name(self.dead_letter_topic, "dead_letter_topic")

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Return the options in a mapping, such as one of JSON; ignore other names.

        Raises:
            InvalidRequest: A value is invalid.
        """
        when_full = _value(values, "when_full", str)
        if when_full is not None and when_full not in set(WhenFull):
            shown = " or ".join(WhenFull)
            raise InvalidRequest(f"invalid value {when_full!r}: use {shown}", place="when_full")
        return cls(
            max_attempts=_value(values, "max_attempts", int),
            dead_letter_topic=_value(values, "dead_letter_topic", str),
            message_ttl_ms=_value(values, "message_ttl_ms", int),
            requeue_on_disconnect=_value(values, "requeue_on_disconnect", bool),
            max_bytes=_value(values, "max_bytes", int),
            when_full=None if when_full is None else WhenFull(when_full),
            durable=_value(values, "durable", bool),
            retention_ms=_value(values, "retention_ms", int),
            retention_bytes=_value(values, "retention_bytes", int),
        )

    def with_texts(self, texts: Mapping[str, str]) -> Self:
        """Return a copy with the named options changed; an empty text resets an option.

        Raises:
            InvalidRequest: An option is unknown, or a value is invalid.
        """
        found: dict[str, OptionValue] = dict(self.to_mapping())
        for name, text in texts.items():
            if name not in NAMES:
                raise InvalidRequest(
                    f"unknown topic option {name}: use one of {', '.join(NAMES)}", place="option"
                )
            if text:
                found[name] = _parse(name, text)
            else:
                found.pop(name, None)
        return type(self).of(found)

    def to_mapping(self) -> dict[str, OptionValue]:
        """Return the options that are set."""
        values = {name: getattr(self, name) for name in NAMES}
        return {name: value for name, value in values.items() if value is not None}

    def over(self, defaults: TopicOptions) -> TopicOptions:
        """Return a copy in which defaults replace the options that are not set."""
        if self is NOTHING_SET:
            return defaults
        return type(self).of({**defaults.to_mapping(), **self.to_mapping()})

    def require_room(self, partitions: int) -> None:
        """Check that `max_bytes` is large enough for this number of stream partitions.

        Raises:
            InvalidRequest: `max_bytes` is too small.
        """
        least = MIN_BOUND_BYTES * partitions
        if self.max_bytes and self.max_bytes < least:
            raise InvalidRequest(
                f"{self.max_bytes} is too small: set at least {least}, or 0 for no limit",
                place="max_bytes",
            )

    # -- for a topic's parts

    def channel(self, defaults: ChannelOptions, topic: str) -> ChannelOptions:
        """Return the options of the channels of a topic with this name."""
        dead_letter_topic = _either(self.dead_letter_topic, defaults.dead_letter_topic)
        max_attempts = _either(self.max_attempts, defaults.max_attempts)
        if dead_letter_topic == topic:
            # Messages in a dead-letter topic were given up before: never move them again.
            dead_letter_topic, max_attempts = None, 0
        return replace(
            defaults,
            max_attempts=max_attempts,
            dead_letter_topic=dead_letter_topic or None,
            message_ttl_ms=_either(self.message_ttl_ms, defaults.message_ttl_ms),
            requeue_on_disconnect=_either(
                self.requeue_on_disconnect, defaults.requeue_on_disconnect
            ),
        )

    def queue(self, defaults: DiskQueueOptions, partitions: int) -> DiskQueueOptions:
        """Return the options of the topic's stream partitions."""
        if self.retention_ms is None and self.retention_bytes is None and not self.max_bytes:
            return defaults
        options = replace(
            defaults,
            retention_ms=_either(self.retention_ms, defaults.retention_ms),
            retention_bytes=_either(self.retention_bytes, defaults.retention_bytes),
        )
        share = self.share_bytes(partitions)
        if share:
            window = share // 2 if options.retention_bytes is None else options.retention_bytes
            options = replace(
                options,
                max_bytes_per_file=min(options.max_bytes_per_file, share // _FILES_PER_BOUND),
                # Consumed messages must not use the whole bound.
                retention_bytes=min(window, share // 2),
            )
        return options

    @property
    def keeps_unread(self) -> bool:
        """Whether undelivered messages are kept even if the topic is full."""
        return bool(self.max_bytes) and self.when_full is not WhenFull.DROP_OLDEST

    def share_bytes(self, partitions: int) -> int:
        """Return the maximum size of one of several stream partitions; 0: unlimited."""
        return (self.max_bytes or 0) // partitions


NAMES: Final = tuple(field.name for field in fields(TopicOptions))
_TEXTS: Final = frozenset({"dead_letter_topic", "when_full"})
_BOOLS: Final = frozenset({"requeue_on_disconnect", "durable"})
_NUMBERS: Final = tuple(name for name in NAMES if name not in _TEXTS | _BOOLS)
# Shared by all topics without options of their own, of which there may be very many.
NOTHING_SET: Final = TopicOptions()


def _either(value: T | None, default: T) -> T:
    return default if value is None else value


def _value(values: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    value = values.get(name)
    if value is None:
        return None
    # In Python, bool is a subclass of int, and `WhenFull` of str.
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise InvalidRequest(f"{name}={value!r} is not of type {kind.__name__}", place=name)
    return value


def _parse(name: str, text: str) -> OptionValue:
    if name in _TEXTS:
        return text
    if name in _BOOLS:
        value = _FLAGS.get(text.lower())
        if value is None:
            raise InvalidRequest(f"{text!r} is neither true nor false", place=name)
        return value
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise InvalidRequest(
            f"{quoted(text)} is not a whole number from 0 to {_NUMBER_MAX}", place=name
        )
    return int(text)
