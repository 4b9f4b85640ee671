"""Reads a rollout journal as rollout_bridge/trainer/journal.h describes it, dropped records included."""

import dataclasses
import pathlib
import struct

import msgpack
import numpy as np
import xxhash

MAGIC = b"RSJRNL01"
RUN, ROLLOUT, CONSUMED, REOPENED = 1, 2, 3, 4


@dataclasses.dataclass
class Record:
    kind: int
    end: int  # offset behind the record
    rollout: dict | None = None
    ranges: list[tuple[int, int]] | None = None


def parse_rollout(payload: bytes) -> dict:
    """The body of a flat ROLLOUT message with its frames as arrays."""
    (header_bytes,) = struct.unpack_from("<I", payload)
    header = msgpack.unpackb(payload[4:4 + header_bytes])
    rollout, at = dict(header["body"]), 4 + header_bytes
    types = {"I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8", "U8": "u1"}
    for spec in header["frames"]:
        data = payload[at:at + spec["bytes"]]
        rollout[spec["name"]] = np.frombuffer(data, types[spec["dtype"]]).reshape(spec["shape"])
        at += spec["bytes"]
    return rollout


def read_journal(path: pathlib.Path) -> list[Record]:
    """All whole records; a torn tail is left out, as the program does. Raises ValueError for another file."""
    data = path.read_bytes()
    if not data:
        return []
    if data[:8] != MAGIC[:len(data)]:
        raise ValueError(f"{path}: not a rollout journal")
    records, at = [], len(MAGIC)
    while at + 16 <= len(data):
        size, kind, digest = struct.unpack_from("<IIQ", data, at)
        payload = data[at + 16:at + 16 + size]
        if len(payload) < size or xxhash.xxh3_64_intdigest(payload, seed=kind) != digest:
            break
        at += 16 + size
        record = Record(kind, at)
        if kind == ROLLOUT:
            record.rollout = parse_rollout(payload)
        elif kind in (CONSUMED, REOPENED):
            numbers = struct.unpack(f"<{size // 8}q", payload)
            record.ranges = list(zip(numbers[::2], numbers[1::2]))
        records.append(record)
    return records
