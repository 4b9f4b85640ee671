"""Messages: frame 0 is a msgpack map, frames 1..n are raw little-endian buffers it lists."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack
import numpy as np
import xxhash

PROTO_VERSION = 4
MAX_HEADER_BYTES = 64 * 1024
MAX_FRAMES = 16
MAX_DIMS = 8
# BF16 has no numpy type: it arrives as its bits.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
          "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}


class WireError(Exception):
    """Bytes that are not a message of this protocol."""


class VersionError(WireError):
    """A message of another version of the protocol."""


@dataclass
class Message:
    type: str
    run_id: str
    trainer_term: int
    seq: int
    body: dict
    frames: dict[str, np.ndarray]


def pack(kind: str, body: dict, *, run_id: str, trainer_term: int, worker_id: str, incarnation: int,
         seq: int, buffers: list[tuple[str, str, np.ndarray]] = ()) -> list[bytes]:
    """The frames of a message; `buffers` are (name, dtype, array)."""
    specs, parts = [], []
    for name, dtype, array in buffers:
        data = np.ascontiguousarray(array).tobytes()
        specs.append({"name": name, "dtype": dtype, "shape": list(array.shape),
                      "bytes": len(data), "xxh3": xxhash.xxh3_64_intdigest(data)})
        parts.append(data)
    header = {"v": PROTO_VERSION, "type": kind, "run_id": run_id, "trainer_term": trainer_term,
              "worker_id": worker_id, "incarnation": incarnation, "seq": seq, "frames": specs,
              "body": body}
    return [msgpack.packb(header), *parts]


def unpack_map(data, limit: int, max_items: int = 16 * 1024) -> dict:
    """A msgpack map out of at most `limit` bytes, its containers and strings bounded too."""
    if len(data) > limit:
        raise WireError(f"map of {len(data)} bytes, limit {limit}")
    try:
        value = msgpack.unpackb(data, max_array_len=max_items, max_map_len=max_items,
                                max_str_len=4096, max_bin_len=4096, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"not msgpack: {error}") from error
    if not isinstance(value, dict):
        raise WireError("not a msgpack map")
    return value


def unpack(parts: list) -> Message:
    """Checks every frame against the header: count, bytes, dtype, shape, hash."""
    header = unpack_map(parts[0], MAX_HEADER_BYTES)
    if header.get("v") != PROTO_VERSION:
        raise VersionError(f"protocol version {header.get('v')}, expected {PROTO_VERSION}")
    try:
        specs = header["frames"]
        if len(specs) != len(parts) - 1 or len(specs) > MAX_FRAMES:
            raise WireError(f"header lists {len(specs)} frames, received {len(parts) - 1}")
        frames = {}
        for spec, part in zip(specs, parts[1:]):
            data = memoryview(part)
            if spec["name"] in frames:
                raise WireError(f"two frames are named {spec['name']}")
            if len(spec["shape"]) > MAX_DIMS or min(spec["shape"], default=0) < 0:
                raise WireError(f"frame {spec['name']}: shape {spec['shape']}")
            if spec["bytes"] != data.nbytes:
                raise WireError(f"frame {spec['name']}: {data.nbytes} bytes, not {spec['bytes']}")
            # The data of a CHUNK may come without one: its tensor's hash covers it.
            stated = spec["xxh3"] != 0 or header["type"] != "CHUNK"
            if stated and xxhash.xxh3_64_intdigest(data) != spec["xxh3"]:
                raise WireError(f"frame {spec['name']}: bytes do not match their xxh3")
            frames[spec["name"]] = np.frombuffer(data, DTYPES[spec["dtype"]]).reshape(spec["shape"])
        if not isinstance(header["type"], str) or not isinstance(header["body"], dict):
            raise WireError("malformed header: type or body")
        return Message(header["type"], header["run_id"], header["trainer_term"], header["seq"],
                       dict(header["body"]), frames)
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"malformed header: {error!r}") from error
