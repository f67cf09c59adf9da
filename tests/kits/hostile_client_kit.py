"""A client of another user that tries the TCP ports of some processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
# Sends a message to several ports at once and prints the first answer of each; "silent" if there is
# none within two seconds after as many ports have answered as should.
_SPEAKER = r"""
import json, select, socket, sys, time
ports, message, answering = json.loads(sys.argv[1])
waiting = {}
for port in ports:
    connected = socket.create_connection(("127.0.0.1", port), 30)
    connected.sendall(bytes.fromhex(message))
    waiting[connected] = port
answers = dict.fromkeys(waiting.values(), "silent")
end = time.monotonic() + 30
while waiting and (left := end - time.monotonic()) > 0:
    for connected in select.select(list(waiting), [], [], left)[0]:
        port = waiting.pop(connected)
        try:
            answers[port] = connected.recv(65536).decode("latin-1")
        except ConnectionResetError:
            answers[port] = "reset"
    if len(ports) - len(waiting) == answering:
        end = min(end, time.monotonic() + 2)
print(json.dumps(answers))
"""


def as_somebody_else(client: str, argument: object) -> dict[int, str]:
    """Run a program as the user `nobody`, if this one may change users.

    Args:
        client: The program, which prints a text for each port.
        argument: Its only argument, passed as JSON.
    """
    setpriv = shutil.which("setpriv")
    change = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups"] if setpriv else []
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    done = subprocess.run(
        [*(change if os.geteuid() == 0 else []), python, "-I", "-c", client, json.dumps(argument)],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=120,
        check=True,
    )
    answers: dict[str, str] = json.loads(done.stdout)
    return {int(port): text for port, text in answers.items()}


def answers_to(message: bytes, ports: Iterable[int], answering: int) -> dict[int, str]:
    """Send a message to ports as another user and return the first answer of each.

    Args:
        message: Sent as it is.
        ports: On loopback.
        answering: Number of ports that should answer; the others may be silent.
    """
    return as_somebody_else(_SPEAKER, [sorted(ports), message.hex(), answering])


def rpc_without_handshake() -> bytes:
    """Return an RPC of Spark: a serialized Java object for the endpoint that every driver has."""
    name = b"endpoint-verifier"
    text = b"\xac\xed\x00\x05t\x00\x04oops"
    return _rpc(b"\0\0" + struct.pack(">H", len(name)) + name + text)


def handshake(secret: str) -> bytes:
    """Return the first message of Spark's handshake (version 2) for a secret."""
    name = b"sparkSaslUser"
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    key = HKDF(SHA256(), 16, salt, name + salt).derive(secret.encode())
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    parts = (name, salt, nonce + AESGCM(key).encrypt(nonce, public, name + salt))
    return _rpc(b"\xfb" + b"".join(struct.pack(">i", len(part)) + part for part in parts))


def was_accepted(answer: str) -> bool:
    """Tell whether an answer is one of Spark to an RPC, not the report of a failure."""
    return answer[8:9] == "\4"


def was_refused(answer: str) -> bool:
    """Tell whether an answer is Spark's refusal of a client that has not authenticated itself."""
    reasons = ("Unknown challenge message", "Expected SaslMessage", "Authentication failed")
    return answer[8:9] == "\5" and any(reason in answer for reason in reasons)


def _rpc(body: bytes) -> bytes:
    head = struct.pack(">bqi", 3, 1, len(body))
    return struct.pack(">q", 8 + len(head) + len(body)) + head + body


def listening(pid: int) -> dict[int, str]:
    """Return the TCP ports that a process listens on, with their addresses in hexadecimal.

    A process that has ended listens on none.
    """
    links = []
    with contextlib.suppress(FileNotFoundError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                links.append(str(descriptor.readlink()))
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                host, _, port = columns[1].rpartition(":")
                found[int(port, 16)] = host
    return found


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process; what ends meanwhile has none."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += [int(one) for one in (task / "children").read_text().split()]
    return found


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def ports_of(pids: Iterable[int]) -> dict[int, str]:
    """Return the TCP ports that some processes listen on, as `listening` does."""
    found: dict[int, str] = {}
    for pid in pids:
        found |= listening(pid)
    return found
