"""The topic that a request names, or the error with the most similar name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.http.exchange import ApiError
from penstock.core.similar_names import nearest

if TYPE_CHECKING:
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_registry import Topics


def require_topic(topics: Topics, name: str, *, with_hint: bool = True) -> Topic:
    """Return a topic.

    Args:
        topics: All topics.
        name: The name in the request.
        with_hint: Whether the error has the most similar name. Clients that wait for a topic repeat
            a request too often for that.

    Raises:
        ApiError: It does not exist.
    """
    topic = topics.find(name)
    if topic is None:
        raise no_topic(name, nearest(name, (one.name for one in topics)) if with_hint else "")
    return topic


def no_topic(name: str, near: str = "") -> ApiError:
    """Return the error for a topic that does not exist, or that a request may not see.

    Args:
        name: Its name.
        near: Text that proposes the most similar name.
    """
    create = f"{near} If not," if near else ":"
    detail = f"topic {name!r} does not exist{create} create it with penstock topic create"
    return ApiError(404, "TOPIC_NOT_FOUND", detail)
