"""Files of the Python package `safetensors` read by Ringside, written again, and read by the package: the same bits.

Guards against a dtype, an offset or a header that only our own reader and writer agree on. The package's own refusals are
compared too: what it takes for a broken file must not be read here.

Usage: safetensors_parity.py SAFETENSORS_REWRITE_EXECUTABLE
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import safetensors
import safetensors.torch
import torch

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


def rewrite(executable: str, source: pathlib.Path, target: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run([executable, source, target], capture_output=True, text=True, errors="replace",
                          check=False)


def check_good(executable: str, folder: pathlib.Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for dtype in DTYPES:
        for shape in ((), (0,), (3,), (2, 0, 3), (3, 5, 7)):
            values = torch.randn(shape, generator=generator) * 100
            tensors[f"{dtype} {list(shape)}"] = values.to(torch.int32).to(dtype) if not dtype.is_floating_point else \
                values.to(dtype)
    tensors["special values"] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    tensors["näme \"quoted\" \\ \n"] = torch.ones(2)
    safetensors.torch.save_file(tensors, folder / "in", metadata={"format": "pt", "note": "kept out"})
    done = rewrite(executable, folder / "in", folder / "out")
    assert done.returncode == 0, done.stderr
    again = safetensors.torch.load_file(folder / "out")
    assert again.keys() == tensors.keys()
    for name, value in tensors.items():
        assert again[name].dtype == value.dtype and again[name].shape == value.shape, name
        assert again[name].contiguous().view(-1).view(torch.uint8).equal(value.view(-1).view(torch.uint8)) \
            if value.numel() else again[name].numel() == 0, name
    with safetensors.safe_open(folder / "out", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    print(f"{len(tensors)} tensors equal")


def broken_files() -> dict[str, bytes]:
    def file(header, data: bytes, length=None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    def entry(shape, begin, end, dtype="F32"):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    return {
        "empty": b"", "short": b"\x08\0\0", "length beyond the file": file({}, b"", 100),
        "length beyond all": file({}, b"", 2**63), "no JSON": file(b"{\"a\":", b""), "a list": file([], b""),
        "wrong size": file({"a": entry([2], 0, 4)}, bytes(4)), "beyond the data": file({"a": entry([1], 0, 4)}, bytes(3)),
        "data left over": file({"a": entry([1], 0, 4)}, bytes(5)), "backwards": file({"a": entry([0], 4, 0)}, bytes(4)),
        "a hole": file({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, bytes(12)),
        "an overlap": file({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
        "overflow": file({"a": entry([2**62, 2**62], 0, 0)}, b""), "negative": file({"a": entry([-1], 0, 4)}, bytes(4)),
        "dtype": file({"a": entry([1], 0, 4, "F3")}, bytes(4)), "missing key": file({"a": {"dtype": "F32"}}, b""),
        "not UTF-8": file(b"{\"\xff\":{}}", b""),
    }


def check_broken(executable: str, folder: pathlib.Path) -> None:
    for name, content in broken_files().items():
        (folder / "broken").write_bytes(content)
        try:
            safetensors.torch.load_file(folder / "broken")
        except Exception:  # noqa: BLE001  (the package has no common type for its refusals)
            pass
        else:
            raise AssertionError(f"{name}: the package reads this, it is no broken file")
        done = rewrite(executable, folder / "broken", folder / "out")
        assert done.returncode == 1 and "broken: " in done.stderr, f"{name}: status {done.returncode} {done.stderr}"
    print(f"{len(broken_files())} broken files refused by both")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_good(sys.argv[1], pathlib.Path(folder))
        check_broken(sys.argv[1], pathlib.Path(folder))


main()
