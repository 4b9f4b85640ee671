"""Sockets with every option set, and the CURVE keys they are opened with."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import zmq

_MAX_FRAME = 64 << 20
_KEY_CHARACTERS = 40


@dataclass(frozen=True)
class CurveKeys:
    """A worker's own pair and the public key of the one trainer it talks to, as Z85 text."""

    public_key: str
    secret_key: str
    server_key: str

    @classmethod
    def load(cls, secret_key_file: str | os.PathLike, server_key_file: str | os.PathLike
             ) -> "CurveKeys":
        """From the files `ringside keygen` writes: one's own NAME.key and the trainer's NAME.pub.
        ValueError when the secret file is open to others or a file does not hold one key."""
        secret = _read_key(secret_key_file, secret=True)
        public = zmq.curve_public(secret.encode()).decode()
        return cls(public, secret, _read_key(server_key_file, secret=False))

    @classmethod
    def with_server_key(cls, secret_key_file: str | os.PathLike, server_key: str) -> "CurveKeys":
        """The server's key as text. ValueError as for load(), or when the text is no key."""
        if len(server_key) != _KEY_CHARACTERS:
            raise ValueError(f"server_key has {len(server_key)} characters, expected {_KEY_CHARACTERS}")
        secret = _read_key(secret_key_file, secret=True)
        return cls(zmq.curve_public(secret.encode()).decode(), secret, server_key)


def _read_key(path: str | os.PathLike, secret: bool) -> str:
    with open(path, encoding="ascii") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if secret and mode & 0o077:
            raise ValueError(f"{path}: a secret key with mode {mode:04o} is open to others; "
                             "expected 0600 (chmod 600)")
        words = [line.split()[0] for line in file if line.strip()]
    keys = [word for word in words if word != "#"]
    # The text is not repeated: it may be a secret in the wrong place.
    if len(keys) != 1 or len(keys[0]) != _KEY_CHARACTERS:
        raise ValueError(f"{path}: expected one key of {_KEY_CHARACTERS} characters")
    return keys[0]


def open_dealer(context: zmq.Context, address: str, identity: str | None,
                curve: CurveKeys | None) -> zmq.Socket:
    """A DEALER that queues nothing before it is connected; with keys it talks to their server only."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.LINGER, 500)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6000)
    if curve is not None:
        socket.curve_serverkey = curve.server_key.encode()
        socket.curve_publickey = curve.public_key.encode()
        socket.curve_secretkey = curve.secret_key.encode()
    if identity is not None:
        socket.setsockopt(zmq.ROUTING_ID, identity.encode())
    socket.connect(address)
    return socket
