"""NSQ's V2 commands: what each means, and NSQ's words for what is wrong with it."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from penstock.broker import message_id
from penstock.broker.message_bodies import encode_binary
from penstock.broker.protocol import commands as c
from penstock.broker.protocol.command_parser import CommandParser
from penstock.broker.protocol.limits import ProtocolLimits

LIMITS = ProtocolLimits()
ID = b"0001000000000007"
NUMBER = message_id.of(1, 7)
LONGEST_NAME = b"n" * 64
MESSAGE_MAX = LIMITS.max_message_bytes
BODY_MAX = LIMITS.max_body_bytes


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def sized(body: bytes) -> bytes:
    return size(len(body)) + body


def parse(*pieces: bytes) -> list[c.Command]:
    parser = CommandParser(LIMITS)
    return [command for piece in pieces for command in drain(parser, piece)]


def drain(parser: CommandParser, piece: bytes) -> list[c.Command]:
    found = parser.feed(piece)
    while parser.waiting_bytes:
        found += parser.feed(b"")
    return found


def refusal(*pieces: bytes) -> str:
    last = parse(*pieces)[-1]
    assert isinstance(last, c.Malformed)
    return f"{last.code} {last.text}"


def ids_of(command: c.Command) -> list[int]:
    assert isinstance(command, c.Finish)
    assert command.ids.dtype == np.int64
    return [int(one) for one in command.ids]


@pytest.mark.parametrize(
    ("sent", "command"),
    [
        (b"NOP\n", c.Nop()),
        (b"NOP\r\n", c.Nop()),
        (b"NOP whatever\n", c.Nop()),
        (b"CLS\n", c.StartClose()),
        (b"CLS now\n", c.StartClose()),
        (b"RDY\n", c.Ready(1)),
        (b"RDY 0\n", c.Ready(0)),
        (b"RDY 2500\n", c.Ready(2500)),
        (b"RDY 5\r\n", c.Ready(5)),
        (b"RDY 5 6\n", c.Ready(5)),
        (b"RDY 0000000000000000000000005\n", c.Ready(5)),
        (b"RDY \n", c.Ready(0)),
        (b"SUB t c\n", c.Subscribe("t", "c")),
        (b"SUB t c\r\n", c.Subscribe("t", "c")),
        (b"SUB t c short long\n", c.Subscribe("t", "c")),
        (b"SUB .a-Z_0 c#ephemeral\n", c.Subscribe(".a-Z_0", "c#ephemeral")),
        (b"SUB %s %s\n" % (LONGEST_NAME, LONGEST_NAME), c.Subscribe("n" * 64, "n" * 64)),
        (b"REQ %s 0\n" % ID, c.Requeue(NUMBER, 0)),
        (b"REQ %s 1500\r\n" % ID, c.Requeue(NUMBER, 1500)),
        (b"REQ %s 3600001\n" % ID, c.Requeue(NUMBER, 3_600_000)),
        (b"REQ %s %s\n" % (ID, b"9" * 30), c.Requeue(NUMBER, 3_600_000)),
        (b"REQ %s \n" % ID, c.Requeue(NUMBER, 0)),
        (b"REQ %s 1 2\n" % ID, c.Requeue(NUMBER, 1)),
        (b"REQ 000100000000000G 1\n", c.MalformedIdCommand("REQ", "000100000000000G")),
        (b"TOUCH %s\n" % ID, c.Touch(NUMBER)),
        (b"TOUCH %s x\n" % ID, c.Touch(NUMBER)),
        (b"TOUCH ABCDEFABCDEFABCD\n", c.MalformedIdCommand("TOUCH", "ABCDEFABCDEFABCD")),
        (b"FIN not-a-hex-number\n", c.MalformedIdCommand("FIN", "not-a-hex-number")),
        (b"PUB t\n" + sized(b"x"), c.Publish("t", [b"x"])),
        (b"PUB t\r\n" + sized(b"a\nb"), c.Publish("t", [b"a\nb"])),
        (b"PUB t more\n" + sized(b"x"), c.Publish("t", [b"x"])),
        (b"DPUB t 0\n" + sized(b"x"), c.DeferredPublish("t", 0, b"x")),
        (b"DPUB t 3600000\n" + sized(b"x"), c.DeferredPublish("t", 3_600_000, b"x")),
        (b"DPUB t  \n" + sized(b"x"), c.DeferredPublish("t", 0, b"x")),
        (b"DPUB t 1 2\n" + sized(b"x"), c.DeferredPublish("t", 1, b"x")),
        (b"IDENTIFY\n" + sized(b"{}"), c.Identify(b"{}")),
        (b"IDENTIFY 1 2\n" + sized(b"{}"), c.Identify(b"{}")),
        (b"AUTH\n" + sized(b"secret"), c.Authenticate(b"secret")),
    ],
)
def test_a_command_is_understood_whole_and_byte_by_byte(sent: bytes, command: c.Command) -> None:
    assert parse(sent) == [command]
    assert parse(*(sent[n : n + 1] for n in range(len(sent)))) == [command]


@pytest.mark.parametrize(
    "sent",
    [b"FIN %s\n" % ID, b"FIN %s\r\n" % ID, b"FIN %s more\n" % ID],
)
def test_a_fin_is_understood(sent: bytes) -> None:
    (command,) = parse(sent)
    assert ids_of(command) == [NUMBER]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 100, 129, 2500])
def test_fins_that_come_together_are_one_command(count: int) -> None:
    ids = [message_id.of(n % 3, n) for n in range(count)]
    sent = b"".join(b"FIN %s\n" % message_id.text(number).encode() for number in ids)
    finish, ready = parse(sent + b"RDY 1\n")
    assert ids_of(finish) == ids
    assert ready == c.Ready(1)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 40, 299])
@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (b"FIN %s\r\n" % ID, NUMBER),
        (b"FIN %s \n" % ID, NUMBER),
        (b"FIN XXXXXXXXXXXXXXXX\n", "XXXXXXXXXXXXXXXX"),
        (b"FIN 000100000000000G\n", "000100000000000G"),
    ],
)
def test_an_odd_fin_among_others_is_read_as_alone(
    place: int, odd: bytes, expected: int | str
) -> None:
    numbers: list[int | str] = list(range(300))
    lines = [b"FIN %016x\n" % number for number in range(300)]
    lines.insert(place, odd)
    numbers.insert(place, expected)
    found: list[int | str] = []
    for command in parse(b"".join(lines)):
        found += [command.id] if isinstance(command, c.MalformedIdCommand) else ids_of(command)
    assert found == numbers


@pytest.mark.parametrize(
    "odd",
    [b"FIN 00010000000000 7\n", b"FIN 000100000000007\r\n", b"FIN 0001000000000\n007\n"],
)
def test_a_fin_of_21_bytes_whose_id_is_short_is_refused_also_among_others(odd: bytes) -> None:
    fins = b"".join(b"FIN %016x\n" % number for number in range(40))
    assert refusal(fins + odd + fins) == "E_INVALID invalid message ID"


def test_every_hex_id_is_answered_as_it_was_sent() -> None:
    foreign = b"f" * 16, b"8" + b"0" * 15, b"07ffffffffffffff"
    (finish,) = parse(b"".join(b"FIN %s\n" % number for number in foreign))
    assert [message_id.text(number).encode() for number in ids_of(finish)] == list(foreign)


@pytest.mark.parametrize("head", [b"FIN 0001", b"PUB t", b"PUB t\n\0\0", b"NO", b"FIN %s" % ID])
def test_what_follows_a_command_that_a_packet_cuts_is_read(head: bytes) -> None:
    fin, pub = b"FIN %s\n" % ID, b"PUB t\n" + sized(b"x")
    (whole,) = (one for one in (fin, pub, b"NOP\n") if one.startswith(head))
    rest = whole[len(head) :]
    found = parse(pub, head, rest + b"NOP\nRDY 7\n", b"NOP\n")
    assert found[-3:] == [c.Nop(), c.Ready(7), c.Nop()]
    assert not any(isinstance(command, c.Malformed) for command in found)


def test_publishes_to_a_topic_that_come_together_are_one_command() -> None:
    a = [b"PUB a\n" + sized(b"%d" % n) for n in range(3)]
    b = [b"PUB b\r\n" + sized(b"x" * 300)]
    found = parse(b"".join([*a, *b, *b, *a, b"NOP\n", *a]))
    assert found == [
        c.Publish("a", [b"0", b"1", b"2"]),
        c.Publish("b", [b"x" * 300] * 2),
        c.Publish("a", [b"0", b"1", b"2"]),
        c.Nop(),
        c.Publish("a", [b"0", b"1", b"2"]),
    ]


def test_a_publish_of_another_topic_with_the_same_beginning_is_its_own() -> None:
    pubs = b"PUB ab\n" + sized(b"1"), b"PUB a\n" + sized(b"2"), b"PUB ab\n" + sized(b"3")
    found = parse(b"".join(pubs))
    assert found == [c.Publish("ab", [b"1"]), c.Publish("a", [b"2"]), c.Publish("ab", [b"3"])]


def bodies(command: c.MultiPublish) -> list[bytes]:
    found = command.messages
    return found.to_pylist() if isinstance(found, pa.BinaryArray) else list(found)


@pytest.mark.parametrize(
    "messages",
    [
        [b"x"],
        [b"a", b"bb", b"ccc"],
        [b"\0" * 40, b"\0\0\0\1", b"x"],
        [b"y" * MESSAGE_MAX],
        *([b"%d" % number for number in range(count)] for count in (15, 16, 17, 1000)),
    ],
)
def test_a_batch_is_published_in_order(messages: list[bytes]) -> None:
    (command,) = parse(b"MPUB t\n" + sized(encode_binary(messages)))
    assert isinstance(command, c.MultiPublish)
    assert command.topic == "t"
    assert bodies(command) == messages
    assert command.size_bytes == sum(map(len, messages))


def test_what_follows_the_last_message_of_a_batch_is_ignored() -> None:
    batch, nop = parse(b"MPUB t\n" + sized(encode_binary([b"a", b"b"]) + b"NOP\n") + b"NOP\n")
    assert isinstance(batch, c.MultiPublish)
    assert bodies(batch) == [b"a", b"b"]
    assert batch.size_bytes == 2
    assert nop == c.Nop()


def batch_of(count: int, *rest: bytes) -> bytes:
    return b"MPUB t\n" + sized(size(count) + b"".join(rest))


COUNT_MAX = (BODY_MAX - 4) // 5


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\n", "E_INVALID invalid command "),
        (b"\r\n", "E_INVALID invalid command "),
        (b" NOP\n", "E_INVALID invalid command "),
        (b"FOO\n", "E_INVALID invalid command FOO"),
        (b"nop\n", "E_INVALID invalid command nop"),
        (b"FOO bar\n", "E_INVALID invalid command FOO"),
        (b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
        (b"\xff\xc3\xa9\n", "E_INVALID invalid command \\xffé"),
        # SUB
        (b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
        (b"SUB a$ c\n", 'E_BAD_TOPIC SUB topic name "a$" is not valid'),
        (b"SUB  c\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
        (b"SUB t \n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB t c/d\n", 'E_BAD_CHANNEL SUB channel name "c/d" is not valid'),
        (b'SUB t a"b\n', 'E_BAD_CHANNEL SUB channel name "a\\"b" is not valid'),
        (b"SUB t #ephemeral\n", 'E_BAD_CHANNEL SUB channel name "#ephemeral" is not valid'),
        (b"SUB t ..\n", 'E_BAD_CHANNEL SUB channel name ".." is not valid'),
        (b"SUB . c\n", 'E_BAD_TOPIC SUB topic name "." is not valid'),
        (b"SUB \xc3\xa9 c\n", 'E_BAD_TOPIC SUB topic name "é" is not valid'),
        (b"SUB a\0\x7f c\n", 'E_BAD_TOPIC SUB topic name "a\\x00\\x7f" is not valid'),
        (b"SUB a\t\xff\xed\xa0 c\n", r'E_BAD_TOPIC SUB topic name "a\t\xff\xed\xa0" is not valid'),
        (
            "SUB \u2028\U000e0001\x85\\ c\n".encode(),
            r'E_BAD_TOPIC SUB topic name "\u2028\U000e0001\u0085\\" is not valid',
        ),
        (b"SUB n%s c\n" % LONGEST_NAME, f'E_BAD_TOPIC SUB topic name "{"n" * 65}" is not valid'),
        # RDY
        (b"RDY x\n", "E_INVALID RDY could not parse count x"),
        (b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
        (b"RDY +1\n", "E_INVALID RDY could not parse count +1"),
        (b"RDY 1_0\n", "E_INVALID RDY could not parse count 1_0"),
        (b"RDY 1.5\n", "E_INVALID RDY could not parse count 1.5"),
        (b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY %s\n" % (b"9" * 5000), f"E_INVALID RDY count {2**63 - 1} out of range 0-2500"),
        # FIN, REQ, TOUCH
        (b"FIN\n", "E_INVALID FIN insufficient number of params"),
        (b"FIN \n", "E_INVALID invalid message ID"),
        (b"FIN short\n", "E_INVALID invalid message ID"),
        (b"FIN %s0\n" % ID, "E_INVALID invalid message ID"),
        (b"REQ\n", "E_INVALID REQ insufficient number of params"),
        (b"REQ %s\n" % ID, "E_INVALID REQ insufficient number of params"),
        (b"REQ short 5\n", "E_INVALID invalid message ID"),
        (b"REQ %s x\n" % ID, "E_INVALID REQ could not parse timeout x"),
        (b"REQ %s -5\n" % ID, "E_INVALID REQ could not parse timeout -5"),
        (b"REQ XXXXXXXXXXXXXXXX -5\n", "E_INVALID REQ could not parse timeout -5"),
        (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
        (b"TOUCH short\n", "E_INVALID invalid message ID"),
        # PUB
        (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
        (b"PUB a$\n", 'E_BAD_TOPIC PUB topic name "a$" is not valid'),
        (b"PUB t\n" + size(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + size(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
        (
            b"PUB t\n" + size(MESSAGE_MAX + 1),
            "E_BAD_MESSAGE PUB message too big 1048577 > 1048576",
        ),
        # DPUB
        (b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB a$ 5\n", 'E_BAD_TOPIC DPUB topic name "a$" is not valid'),
        (b"DPUB t x\n", "E_INVALID DPUB could not parse timeout x"),
        (b"DPUB t -1\n", "E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (b"DPUB t 5\n" + size(0), "E_BAD_MESSAGE DPUB invalid message body size 0"),
        (
            b"DPUB t 5\n" + size(MESSAGE_MAX + 1),
            "E_BAD_MESSAGE DPUB message too big 1048577 > 1048576",
        ),
        # MPUB
        (b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
        (b"MPUB a$\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$" is not valid'),
        (b"MPUB t\n" + size(0), "E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n" + size(-5), "E_BAD_BODY MPUB invalid body size -5"),
        (b"MPUB t\n" + size(BODY_MAX + 1), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
        (b"MPUB t\n" + sized(b"abc"), "E_BAD_BODY MPUB failed to read message count"),
        (batch_of(0), "E_BAD_BODY MPUB invalid message count 0"),
        (batch_of(-1), "E_BAD_BODY MPUB invalid message count -1"),
        (batch_of(COUNT_MAX + 1), f"E_BAD_BODY MPUB invalid message count {COUNT_MAX + 1}"),
        (batch_of(COUNT_MAX), "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (
            batch_of(2, sized(b"a"), b"\0\0"),
            "E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (
            batch_of(2, sized(b"a"), sized(b"")),
            "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
        ),
        (batch_of(1, size(-7)), "E_BAD_MESSAGE MPUB invalid message(0) body size -7"),
        (
            batch_of(1, size(MESSAGE_MAX + 1)),
            "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
        ),
        (batch_of(1, size(9), b"short"), "E_BAD_MESSAGE MPUB failed to read message body"),
        # IDENTIFY, AUTH
        (b"IDENTIFY\n" + size(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
        (
            b"IDENTIFY\n" + size(BODY_MAX + 1),
            "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880",
        ),
        (b"AUTH x\n", "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH \n", "E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n" + size(-1), "E_BAD_BODY AUTH invalid body size -1"),
        (b"AUTH\n" + size(BODY_MAX + 1), "E_BAD_BODY AUTH body too big 5242881 > 5242880"),
    ],
)
def test_what_is_wrong_is_said_in_nsqs_words_before_any_body_comes(sent: bytes, text: str) -> None:
    assert refusal(sent) == text
    assert refusal(*(sent[n : n + 1] for n in range(len(sent)))) == text
    # Behind a command that is sound, which is still given.
    first, *_, last = parse(b"NOP\n" + sent + b"NOP\n")
    assert first == c.Nop()
    assert isinstance(last, c.Malformed)


def test_nothing_is_parsed_after_what_is_malformed() -> None:
    parser = CommandParser(LIMITS)
    assert len(parser.feed(b"FOO\nNOP\n")) == 1
    assert parser.feed(b"NOP\n") == []
    assert parser.wanted_bytes == 0


def test_the_longest_line_is_taken_and_a_longer_one_refused_before_its_end() -> None:
    longest = b"NOP " + b"x" * (LIMITS.max_line_bytes - 5)
    assert len(longest + b"\n") == LIMITS.max_line_bytes
    assert parse(longest + b"\n") == [c.Nop()]
    assert parse(longest, b"\n") == [c.Nop()]
    refused = "E_INVALID command line of more than 16384 bytes"
    assert refusal(longest + b"x\n") == refused
    assert refusal(longest + b"x") == refused
    assert refusal(longest, b"x") == refused


@pytest.mark.parametrize("line", [b"PUB t\n", b"DPUB t 5\n"])
def test_the_largest_message_is_taken(line: bytes) -> None:
    body = bytes(range(256)) * (MESSAGE_MAX // 256)
    (command,) = parse(line + sized(body))
    assert command in (c.Publish("t", [body]), c.DeferredPublish("t", 5, body))


def test_what_the_body_under_way_lacks_is_said() -> None:
    parser = CommandParser(LIMITS)
    lacking = []
    for piece in (b"PUB", b" t\n", b"\0\0", b"\0\x0a", b"12345", b"6789", b"0", b"NOP\n"):
        parser.feed(piece)
        lacking.append(parser.wanted_bytes)
    assert lacking == [0, 4, 2, 10, 5, 1, 0, 0]


def test_a_large_body_in_small_pieces_is_not_copied_for_each() -> None:
    body = encode_binary([b"z" * 1000] * 5000)
    sent = b"MPUB t\n" + sized(body)
    parser = CommandParser(LIMITS)
    pieces = [sent[at : at + 4096] for at in range(0, len(sent), 4096)]
    tracemalloc.start()
    try:
        for piece in pieces[:-1]:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            assert parser.feed(piece) == []
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 1 << 20  # what a growing buffer takes in reserve, and no more
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < len(sent) * 1.25
    (command,) = parser.feed(pieces[-1])
    assert isinstance(command, c.MultiPublish)
    assert len(command.messages) == 5000
