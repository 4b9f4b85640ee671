"""Manifests, hashes, and the receiver that pulls one version together."""

from __future__ import annotations

import math
import time

import numpy as np
import xxhash

from .wire import DTYPES, WireError, unpack_map

MAX_MANIFEST_BYTES = 16 << 20
MAX_TENSORS = 65536


def tensor_hash(data) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def root_hash(entries: list[dict]) -> str:
    """Over "name TAB dtype TAB d0,d1,... TAB hash LF" of each tensor in order."""
    text = "".join(f"{e['name']}\t{e['dtype']}\t{','.join(map(str, e['shape']))}\t{e['xxh3']}\n"
                   for e in entries)
    return xxhash.xxh3_128_hexdigest(text.encode())


def root_hash_of(manifest: dict, tensors: dict[str, np.ndarray]) -> str:
    """The root hash of installed bytes: hashes `tensors` anew, in the manifest's order."""
    return root_hash([{**entry, "xxh3": tensor_hash(np.ascontiguousarray(tensors[entry["name"]]))}
                      for entry in manifest["tensors"]])


def parse_manifest(frame: np.ndarray) -> dict:
    manifest = unpack_map(frame.tobytes(), MAX_MANIFEST_BYTES, MAX_TENSORS)
    if manifest.get("encoding") != "dense":
        raise WireError(f"manifest: encoding {manifest.get('encoding')}, expected dense")
    offset = 0
    for entry in manifest["tensors"]:
        size = np.dtype(DTYPES[entry["dtype"]]).itemsize * math.prod(entry["shape"])
        if min(entry["shape"], default=0) < 0 or size != entry["bytes"] or offset != entry["offset"]:
            raise WireError(f"manifest: tensor {entry['name']} contradicts itself")
        offset += size
    if root_hash(manifest["tensors"]) != manifest["root_hash"]:
        raise WireError("manifest: the root hash does not follow from the tensors")
    return manifest


class Receiver:
    """Pulls the tensors of a manifest chunk by chunk and verifies each before it counts."""

    def __init__(self, manifest: dict, chunk_bytes: int, window: int = 4, timeout: float = 5.0,
                 max_tries: int = 3):
        self.manifest = manifest
        self._chunk, self._window, self._timeout, self._max_tries = (chunk_bytes, window, timeout,
                                                                     max_tries)
        self._data = [bytearray(e["bytes"]) for e in manifest["tensors"]]
        self._missing = [e["bytes"] for e in manifest["tensors"]]
        self._tries = [1] * len(self._data)
        self._waiting = [r for i in range(len(self._data)) for r in self._chunks(i)]
        self._waiting.reverse()  # taken from the end
        self._under_way: dict[tuple[int, int], tuple[dict, float]] = {}
        self._unverified = sum(1 for m in self._missing if m > 0)

    def _chunks(self, tensor: int) -> list[dict]:
        total = len(self._data[tensor])
        return [{"version": self.manifest["version"], "tensor": tensor, "offset": at,
                 "bytes": min(self._chunk, total - at)} for at in range(0, total, self._chunk)]

    def requests(self) -> list[dict]:
        """Chunks to ask for now."""
        now = time.monotonic()
        for key, (request, since) in list(self._under_way.items()):
            if now - since >= self._timeout:
                del self._under_way[key]
                self._waiting.append(request)
        out = []
        while self._waiting and len(self._under_way) < self._window:
            request = self._waiting.pop()
            self._under_way[request["tensor"], request["offset"]] = (request, now)
            out.append(request)
        return out

    def unsent(self, request: dict) -> None:
        self._under_way.pop((request["tensor"], request["offset"]), None)
        self._waiting.append(request)

    def accept(self, body: dict, data: np.ndarray) -> None:
        """Takes a chunk; raises WireError when a tensor stays wrong after `max_tries` fetches."""
        key = (body.get("tensor"), body.get("offset"))
        if key not in self._under_way or body.get("version") != self.manifest["version"]:
            return
        if self._under_way[key][0]["bytes"] != data.nbytes:
            return
        del self._under_way[key]
        tensor, offset = key
        self._data[tensor][offset:offset + data.nbytes] = data.tobytes()
        self._missing[tensor] -= data.nbytes
        if self._missing[tensor] > 0:
            return
        entry = self.manifest["tensors"][tensor]
        if tensor_hash(self._data[tensor]) == entry["xxh3"]:
            self._unverified -= 1
            return
        if self._tries[tensor] >= self._max_tries:
            raise WireError(f"tensor {entry['name']} does not match its hash")
        self._tries[tensor] += 1
        self._missing[tensor] = entry["bytes"]
        self._waiting.extend(reversed(self._chunks(tensor)))

    @property
    def complete(self) -> bool:
        return self._unverified == 0

    def tensors(self) -> dict[str, np.ndarray]:
        """name -> array; BF16 as the uint16 of its bits. Only when complete."""
        if not self.complete:
            raise RuntimeError("weights asked for before every tensor was verified")
        return {e["name"]: np.frombuffer(data, DTYPES[e["dtype"]]).reshape(e["shape"])
                for e, data in zip(self.manifest["tensors"], self._data)}
