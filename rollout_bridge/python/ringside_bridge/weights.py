"""Manifests, hashes, and the receiver that pulls one version together."""

from __future__ import annotations

import math
import struct
import time

import numpy as np
import xxhash

from .wire import DTYPES, WireError, unpack_map

try:
    import zstandard
except ImportError:  # the extra "delta": without it every version is fetched whole
    zstandard = None

MAX_MANIFEST_BYTES = 16 << 20
MAX_TENSORS = 65536
MAX_CHANGED = 1 << 31


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
    encoding, base = manifest.get("encoding"), manifest.get("base_version", -1)
    if encoding not in ("dense", "overwrite"):
        raise WireError(f"manifest: encoding {encoding}, expected dense or overwrite")
    if (0 <= base < manifest["version"]) != (encoding == "overwrite"):
        raise WireError(f"manifest: base_version {base} with encoding {encoding}")
    offset = 0
    for entry in manifest["tensors"]:
        size = np.dtype(DTYPES[entry["dtype"]]).itemsize * math.prod(entry["shape"])
        if min(entry["shape"], default=0) < 0 or size != entry["bytes"] or offset != entry["offset"]:
            raise WireError(f"manifest: tensor {entry['name']} contradicts itself")
        _check_encoding(entry, size, encoding == "overwrite")
        offset += size
    if root_hash(manifest["tensors"]) != manifest["root_hash"]:
        raise WireError("manifest: the root hash does not follow from the tensors")
    return manifest


def _check_encoding(entry: dict, size: int, has_base: bool) -> None:
    encoding, changed, payload = (entry.get("encoding", "dense"), entry.get("changed", 0),
                                  entry.get("payload_bytes", 0))
    if encoding == "overwrite":
        elements = math.prod(entry["shape"])
        fits = has_base and 1 <= changed <= elements and 1 <= payload < size
    else:
        fits = (encoding == "dense" or has_base and encoding == "same") and changed == payload == 0
    if not fits:
        raise WireError(f"manifest: tensor {entry['name']}: encoding {encoding} with {changed} "
                        f"changes in {payload} bytes")


def _plane(data, changed: int) -> np.ndarray:
    # Its frame states the size, so it is known before anything is allocated.
    if zstandard.frame_content_size(data) != changed:
        raise WireError("overwrite payload: a plane does not hold one byte a changed element")
    plane = np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8)
    if plane.size != changed:
        raise WireError("overwrite payload: damaged zstd frame")
    return plane


def apply_overwrite(payload, changed: int, base, element_bytes: int) -> bytearray:
    """A copy of the bytes `base` with the `changed` elements of the payload written over it. Raises
    WireError for a payload that is none."""
    payload = memoryview(payload)
    elements = len(base) // element_bytes
    if not 1 <= changed <= min(elements, MAX_CHANGED):
        raise WireError(f"overwrite payload: {changed} changes of {elements} elements")
    gap_bytes = payload[0] if len(payload) else 0
    table = struct.Struct(f"<{gap_bytes + element_bytes}I")
    if gap_bytes not in (1, 2, 4) or len(payload) < 1 + table.size:
        raise WireError("overwrite payload: no table of planes")
    planes, at = [], 1 + table.size
    try:
        for length in table.unpack_from(payload, 1):
            planes.append(_plane(payload[at:at + length], changed))
            at += length
    except zstandard.ZstdError as error:
        raise WireError(f"overwrite payload: {error}") from error
    if at != len(payload):
        raise WireError(f"overwrite payload: planes end at byte {at} of {len(payload)}")
    positions = np.full(changed, 1, np.int64)
    for k in range(gap_bytes):
        positions += planes[k].astype(np.int64) << (8 * k)
    positions = np.cumsum(positions) - 1
    if positions[-1] >= elements:
        raise WireError(f"overwrite payload: position {positions[-1]} of {elements}")
    out = bytearray(base)
    np.frombuffer(out, np.uint8).reshape(elements, element_bytes)[positions] = np.stack(
        planes[gap_bytes:], axis=1)
    return out


class Receiver:
    """Pulls the tensors of a manifest chunk by chunk and verifies each before it counts.

    `base` is the Receiver that completed the version before, or None. If it holds the manifest's
    base_version, changes are fetched and applied to copies of its tensors; otherwise, and where a
    change does not make bytes with the manifest's hash, tensors are fetched whole."""

    def __init__(self, manifest: dict, chunk_bytes: int, window: int = 4, timeout: float = 5.0,
                 max_tries: int = 3, base: Receiver | None = None):
        self.manifest = manifest
        self._chunk, self._window, self._timeout, self._max_tries = (chunk_bytes, window, timeout,
                                                                     max_tries)
        self.builds_on_base = zstandard is not None and self._is_base(base)
        self.refetched = 0  # tensors whose changes made the wrong bytes
        entries = manifest["tensors"]
        self._base = base._data if self.builds_on_base else [None] * len(entries)
        self._overwrite = [self.builds_on_base and e.get("encoding") == "overwrite" for e in entries]
        self._data: list = [self._unchanged(i) for i in range(len(entries))]
        self._missing = [0 if data is not None else self._size(i)
                         for i, data in enumerate(self._data)]
        self._unverified = sum(1 for m in self._missing if m > 0)
        self._data = [bytearray(m) if data is None else data
                      for data, m in zip(self._data, self._missing)]
        self._tries = [1] * len(entries)
        self._waiting = [r for i, m in enumerate(self._missing) if m for r in self._chunks(i)]
        self._waiting.reverse()  # taken from the end
        self._under_way: dict[tuple[int, int], tuple[dict, float]] = {}

    def _is_base(self, base: Receiver | None) -> bool:
        if base is None or self.manifest.get("encoding") != "overwrite" or not base.complete:
            return False
        layout = [[(e["name"], e["dtype"], e["shape"]) for e in m["tensors"]]
                  for m in (self.manifest, base.manifest)]
        return (base.manifest["version"] == self.manifest["base_version"]
                and all(base.manifest[k] == self.manifest[k] for k in ("run_id", "trainer_term"))
                and layout[0] == layout[1])

    def _unchanged(self, tensor: int):
        """The base's bytes of a tensor that is the same, hashed anew: callers hold them too."""
        entry = self.manifest["tensors"][tensor]
        if self.builds_on_base and entry.get("encoding") == "same":
            if tensor_hash(self._base[tensor]) == entry["xxh3"]:
                return self._base[tensor]
        return None

    def _size(self, tensor: int) -> int:
        entry = self.manifest["tensors"][tensor]
        return entry["payload_bytes"] if self._overwrite[tensor] else entry["bytes"]

    def _chunks(self, tensor: int) -> list[dict]:
        total = self._size(tensor)
        base = self.manifest["base_version"] if self._overwrite[tensor] else -1
        return [{"version": self.manifest["version"], "tensor": tensor, "offset": at,
                 "bytes": min(self._chunk, total - at), "base_version": base}
                for at in range(0, total, self._chunk)]

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
        request = self._under_way[key][0]
        if (request["bytes"] != data.nbytes
                or request["base_version"] != body.get("base_version", -1)):
            return
        del self._under_way[key]
        tensor, offset = key
        memoryview(self._data[tensor])[offset:offset + data.nbytes] = data.data.cast("B")
        self._missing[tensor] -= data.nbytes
        if self._missing[tensor] > 0:
            return
        entry = self.manifest["tensors"][tensor]
        if self._overwrite[tensor]:
            self._finish_overwrite(tensor, entry)
            return
        got = tensor_hash(self._data[tensor])
        if got == entry["xxh3"]:
            self._unverified -= 1
            return
        if self._tries[tensor] >= self._max_tries:
            raise WireError(f"version {self.manifest['version']}: tensor {entry['name']} has hash {got} after "
                            f"{self._max_tries} fetches, expected {entry['xxh3']}")
        self._tries[tensor] += 1
        self._missing[tensor] = entry["bytes"]
        self._waiting.extend(reversed(self._chunks(tensor)))

    def _finish_overwrite(self, tensor: int, entry: dict) -> None:
        """Makes the tensor beside the base, or turns to fetching it whole."""
        try:
            made = apply_overwrite(self._data[tensor], entry["changed"], self._base[tensor],
                                   np.dtype(DTYPES[entry["dtype"]]).itemsize)
            if tensor_hash(made) == entry["xxh3"]:
                self._data[tensor] = made
                self._unverified -= 1
                return
        except WireError:
            pass  # counted like bytes with the wrong hash
        self.refetched += 1
        self._overwrite[tensor] = False
        self._data[tensor] = bytearray(entry["bytes"])
        self._missing[tensor] = entry["bytes"]
        self._waiting.extend(reversed(self._chunks(tensor)))

    @property
    def unverified(self) -> int:
        """Tensors that are not here yet."""
        return self._unverified

    @property
    def complete(self) -> bool:
        return self._unverified == 0

    def release(self) -> None:
        """Lets go of the base; this receiver may be the base of the next."""
        self._base = []

    def tensors(self) -> dict[str, np.ndarray]:
        """name -> array; BF16 as the uint16 of its bits. Only when complete."""
        if not self.complete:
            raise RuntimeError("weights asked for before every tensor was verified")
        return {e["name"]: np.frombuffer(data, DTYPES[e["dtype"]]).reshape(e["shape"])
                for e, data in zip(self.manifest["tensors"], self._data)}
