"""Pulls one version of the weights from a weights socket into host memory, verified: for what runs inside an inference
server and is told by its rollout worker what to fetch and where. No session, no torch until tensors are asked for.

The caller holds the manifest already (from a WEIGHTS_OFFER); only CHUNK_REQUEST, CHUNK and ERROR go over this socket.
"""

from __future__ import annotations

import base64
import re
import time
from dataclasses import dataclass

import numpy as np
import zmq

from .sockets import CurveKeys, open_dealer
from .weights import Receiver, parse_manifest, root_hash_of
from .wire import Message, WireError, pack, unpack

# What the server says cannot be asked for is not asked for again. Anything else was a damaged request: it times out.
_FINAL = {"gone", "wrong_run", "invalid_field", "unsupported", "limit", "denied"}
_LOCAL = re.compile(r"ipc://|tcp://(127(\.\d+){3}|\[::1\]|localhost):")
_MAX_DAMAGED = 16  # messages that are none; each costs a timeout, so more of them is a broken peer
_POLL_MS = 50


@dataclass
class Pulled:
    """Tensors whose hashes are the manifest's; `root_hash` was computed from these bytes."""

    manifest: dict
    arrays: dict[str, np.ndarray]  # BF16 as the uint16 of its bits
    root_hash: str
    seconds: float

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


def decode_manifest(text: str, run_id: str, trainer_term: int) -> dict:
    """The manifest in base64. ValueError unless it is one, of this run and trainer_term, and its root follows from its tensors."""
    try:
        manifest = parse_manifest(np.frombuffer(base64.b64decode(text, validate=True), np.uint8))
        of = (manifest["run_id"], manifest["trainer_term"])
    except (WireError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"manifest: {error!r}") from error
    if of != (run_id, trainer_term):
        raise ValueError(f"manifest is of run '{of[0]}' trainer_term {of[1]}, asked for '{run_id}' trainer_term {trainer_term}")
    return manifest


def curve_keys(server_key: str, secret_key_file: str) -> CurveKeys | None:
    """Both or neither: ValueError for one alone."""
    if bool(server_key) != bool(secret_key_file):
        raise ValueError("server_key and secret_key_file go together: one of them is empty")
    return CurveKeys.with_server_key(secret_key_file, server_key) if server_key else None


def pull(address: str, manifest: dict, timeout_s: float = 300.0, curve: CurveKeys | None = None,
         chunk_bytes: int = 4 << 20, window: int = 8, silence_s: float = 15.0) -> Pulled:
    """Fetches every tensor whole and verifies each, then the root. Blocks for `timeout_s` at most, and no longer than
    `silence_s` for a source that says nothing: it was killed, and whoever took its place waits for this call to end.

    WireError: a tensor stays wrong after three fetches, or the server refuses (version gone, another run). TimeoutError:
    time is up, or the source is silent. ValueError: plain connection to another machine, an address that is none,
    or a time of 0 or less."""
    if curve is None and not _LOCAL.match(address):
        raise ValueError(f"{address} is not on this machine: only with keys")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s = {timeout_s}, expected > 0")
    started = time.monotonic()
    # Dense whatever the manifest's encoding: nothing here holds a base.
    receiver = Receiver(manifest, chunk_bytes, window=window)
    context = zmq.Context()
    try:
        try:
            socket = open_dealer(context, address, None, curve)
        except zmq.ZMQError as error:
            raise ValueError(f"{address}: {error}") from error
        _fetch(socket, receiver, address, started + timeout_s, silence_s)
    finally:
        context.destroy(linger=0)
    arrays = receiver.tensors()
    root = root_hash_of(manifest, arrays)
    if root != manifest["root_hash"]:
        raise WireError(f"version {manifest['version']}: root hash of the received bytes is {root}, "
                        f"expected {manifest['root_hash']}")
    return Pulled(manifest, arrays, root, time.monotonic() - started)


def _fetch(socket: zmq.Socket, receiver: Receiver, address: str, deadline: float, silence_s: float) -> None:
    version, damaged = receiver.manifest["version"], 0
    heard = time.monotonic()
    while not receiver.complete:
        now = time.monotonic()
        if now > deadline or now > heard + silence_s:
            why = "in time" if now > deadline else f"after {silence_s:g} s of silence"
            raise TimeoutError(f"version {version}: not complete from {address} {why}, "
                               f"{receiver.unverified} of {len(receiver.manifest['tensors'])} tensors are missing")
        _request(socket, receiver)
        if not socket.poll(_POLL_MS):
            continue
        try:
            message = unpack(socket.recv_multipart())
        except WireError as error:
            damaged += 1
            if damaged > _MAX_DAMAGED:
                raise WireError(f"version {version}: {damaged} damaged messages from {address}, the last: {error}") from error
            continue
        heard = time.monotonic()
        _take(message, receiver)


def _request(socket: zmq.Socket, receiver: Receiver) -> None:
    manifest = receiver.manifest
    for request in receiver.requests():
        parts = pack("CHUNK_REQUEST", request, run_id=manifest["run_id"], trainer_term=manifest["trainer_term"],
                     worker_id="", incarnation=0, seq=0)
        try:
            socket.send_multipart(parts, zmq.DONTWAIT)
        except zmq.Again:  # not connected yet, or the peer is slow
            receiver.unsent(request)


def _take(message: Message, receiver: Receiver) -> None:
    manifest = receiver.manifest
    if message.type == "ERROR":
        if message.body.get("reason") in _FINAL:
            raise WireError(f"version {manifest['version']}: refused by the server: {message.body.get('reason')}: "
                            f"{message.body.get('detail')}")
    elif message.type == "CHUNK" and (message.run_id, message.trainer_term) == (manifest["run_id"], manifest["trainer_term"]):
        if "data" in message.frames:
            receiver.accept(message.body, message.frames["data"])


def torch_tensors(pulled: Pulled):
    """Yields (name, torch.Tensor on the CPU) layer by layer and lets go of each: `pulled.arrays` is empty afterwards.
    What has no layer number (embedding, final norm, head) comes first."""
    import torch

    def layer(name: str) -> int:
        found = re.search(r"\.(\d+)\.", name)
        return int(found.group(1)) if found else -1

    bf16 = {entry["name"] for entry in pulled.manifest["tensors"] if entry["dtype"] == "BF16"}
    for name in sorted(pulled.arrays, key=layer):
        array = pulled.arrays.pop(name)
        yield name, (torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if name in bf16
                     else torch.from_numpy(array))
