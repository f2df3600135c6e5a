"""Messages between two Python workers of one user, over a socket file. Every wait has an end, every message a limit.

    asking worker                                    hosting worker
      a nonce                        ------------->
                                     <-------------  its own nonce, and a proof that it knows the key
      a proof that it knows the key  ------------->
      messages                       <------------>  messages

A message is a kind (one byte), a length and that many bytes. Both workers read the key from a file that only this user
can read; nobody learns it by listening or by answering, and neither sends anything else before the other has shown it.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from hmac import compare_digest, digest
from pathlib import Path

GREETING_S = 10.0  # the whole greeting
SILENCE_S = 30.0  # the longest wait for the next bytes
ALIVE_S = 5.0  # how often a worker that computes says so
MESSAGE_BYTES_MAX = (1 << 31) - 1  # Arrow's binary columns end there, too
PATH_BYTES_MAX = 100  # a socket's address has room for a few more
NONCE_BYTES = 32
HEADER = struct.Struct("!cQ")
ALIVE = b"A"


class Channel:
    """One end of a connection that has been greeted."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline
        self._sending = threading.Lock()

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._sending:
            _send(self.connection, HEADER.pack(kind, len(payload)), self.deadline)
            _send(self.connection, payload, self.deadline)

    def receive(self, bytes_max: int = MESSAGE_BYTES_MAX) -> tuple[bytes, bytes]:
        """Return the next message's kind and content. Signs of life only prolong the wait, up to the deadline."""
        while True:
            kind, length = HEADER.unpack(_receive(self.connection, HEADER.size, self.deadline))
            if length > bytes_max:
                raise OSError(f"a message of {length} bytes, where {bytes_max} are allowed")
            payload = _receive(self.connection, length, self.deadline)
            if kind != ALIVE:
                return kind, payload

    @contextmanager
    def says_it_is_alive(self) -> Iterator[None]:
        """Send signs of life from another thread while this one computes."""
        done = threading.Event()

        def tell() -> None:
            with suppress(OSError):  # nobody listens any more: the answer will find out
                while not done.wait(ALIVE_S):
                    self.send(ALIVE)

        thread = threading.Thread(target=tell, name="counterflow-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.settimeout(_patience(deadline))
    connection.sendall(data)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        connection.settimeout(_patience(deadline))
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            raise EOFError("the other worker has closed the connection")
        data += part
    return bytes(data)


def _patience(deadline: float) -> float:
    """Return how long to wait for the next bytes. Raises a TimeoutError after the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for this exchange is over")
    return min(left, SILENCE_S)


# --- the greeting


def greet_host(connection: socket.socket, key: bytes) -> None:
    """Prove the key to the host, and let it prove the key first."""
    until = time.monotonic() + GREETING_S
    _check_user(connection)
    mine = secrets.token_bytes(NONCE_BYTES)
    _send(connection, mine, until)
    theirs = _receive(connection, NONCE_BYTES, until)
    _check_proof(_receive(connection, sha256().digest_size, until), key, b"host", mine, theirs)
    _send(connection, _proof(key, b"asker", mine, theirs), until)


def greet_asker(connection: socket.socket, key: bytes) -> None:
    """Prove the key to a worker that asks, and let it prove the key."""
    until = time.monotonic() + GREETING_S
    _check_user(connection)
    theirs, mine = _receive(connection, NONCE_BYTES, until), secrets.token_bytes(NONCE_BYTES)
    _send(connection, mine + _proof(key, b"host", theirs, mine), until)
    _check_proof(_receive(connection, sha256().digest_size, until), key, b"asker", theirs, mine)


def _proof(key: bytes, role: bytes, asker_nonce: bytes, host_nonce: bytes) -> bytes:
    return digest(key, role + asker_nonce + host_nonce, "sha256")


def _check_proof(given: bytes, key: bytes, role: bytes, asker_nonce: bytes, host_nonce: bytes) -> None:
    if not compare_digest(given, _proof(key, role, asker_nonce, host_nonce)):
        raise PermissionError("the other process does not know the key")


def _check_user(connection: socket.socket) -> None:
    if sys.platform == "linux":
        size = struct.calcsize("3i")
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user != os.getuid():
            raise PermissionError(f"the other process is of user {user}")


# --- socket files


def listen(path: Path, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        with _address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(GREETING_S)
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a path that fits into a socket's address: a long one goes through the folder's descriptor."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
