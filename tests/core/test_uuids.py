"""Random UUIDs as text."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

from penstock.core.uuids import RandomUuids


def test_they_are_what_the_standard_library_makes_of_the_same_bytes() -> None:
    given: list[bytes] = []

    def random_bytes(count: int) -> bytes:
        given.append(os.urandom(count))
        return given[-1]

    new_uuid = RandomUuids(random_bytes)
    made = [new_uuid() for _ in range(1_000)]
    raw = b"".join(given)
    known = {str(uuid.UUID(bytes=raw[i : i + 16], version=4)) for i in range(0, len(raw), 16)}
    assert known.issuperset(made)


def test_none_comes_twice_from_any_thread() -> None:
    new_uuid = RandomUuids()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [new_uuid() for _ in range(500)], range(16)))
    assert len({one for some in made for one in some}) == 8_000


def test_a_forked_child_has_its_own() -> None:
    new_uuid = RandomUuids()
    new_uuid()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_uuid().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read()
    os.waitpid(child, 0)
    assert theirs not in {new_uuid() for _ in range(600)}
