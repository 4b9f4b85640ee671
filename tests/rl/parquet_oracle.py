"""Compares the rows that Ringside reads of Parquet files with what pyarrow reads.

Usage: parquet_oracle.py PRINT_RECORDS. One table with every kind of column that data sets have, nulls in
all of them, written in each compression, version, page version and size of row groups.
"""

import datetime
import decimal
import itertools
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["", "a", "Zürich", "日本語", "🙂\u200d", "line\nbreak\ttab\x00nul", "\"quoted\\", "x" * 5000]


def make_table(rows: int, seed: int) -> pa.Table:
    draw = random.Random(seed)
    text = lambda: draw.choice(TEXTS)
    small = lambda: draw.randint(-100, 100)
    message = lambda: {"role": draw.choice(["user", "assistant"]), "content": maybe(text),
                       "tool_calls": maybe(lambda: [{"name": text(), "arguments": {"n": small()}}])}

    def maybe(make):
        return None if draw.random() < 0.2 else make()

    def column(make, kind):
        return pa.array([maybe(make) for _ in range(rows)], kind)

    messages = pa.list_(pa.struct([
        ("role", pa.string()), ("content", pa.string()),
        ("tool_calls", pa.list_(pa.struct([("name", pa.string()),
                                           ("arguments", pa.struct([("n", pa.int64())]))])))]))
    return pa.table({
        "prompt": column(text, pa.string()),
        "large": column(text, pa.large_string()),
        "coded": column(text, pa.string()).dictionary_encode(),
        "bytes": column(lambda: text().encode(), pa.binary()),
        "image": column(lambda: b"\xff\xd8" + bytes(draw.randrange(256) for _ in range(9)), pa.binary()),
        "messages": column(lambda: [message() for _ in range(draw.randrange(4))], messages),
        "flag": column(lambda: draw.random() < 0.5, pa.bool_()),
        "i8": column(small, pa.int8()),
        "u16": column(lambda: abs(small()) * 600, pa.uint16()),
        "i64": column(lambda: draw.choice([2**63 - 1, -(2**63), 0]), pa.int64()),
        "u64": column(lambda: draw.choice([2**64 - 1, 7]), pa.uint64()),
        "f16": column(lambda: small() / 8, pa.float16()),
        "f32": column(lambda: draw.choice([0.5, -1e30, math.nan, math.inf]), pa.float32()),
        "f64": column(lambda: draw.choice([0.1, 1e-300, -math.inf, 3.0]), pa.float64()),
        "pair": column(lambda: [small(), small()], pa.list_(pa.int32(), 2)),
        "nested": column(lambda: [[maybe(small)], [], None], pa.list_(pa.list_(pa.int32()))),
        "named": column(lambda: [(str(k), small()) for k in range(3)], pa.map_(pa.string(), pa.int64())),
        "numbered": column(lambda: [(7, text())], pa.map_(pa.int32(), pa.string())),
        "price": column(lambda: decimal.Decimal(small()) / 4, pa.decimal128(9, 2)),
        "day": column(lambda: datetime.date(2020, 1, 1 + abs(small()) % 28), pa.date32()),
        "nothing": pa.nulls(rows),
    })


def plain(value, kind):
    """A cell as Ringside promises it; None where it is left out."""
    if value is None:
        return None
    if pa.types.is_dictionary(kind):
        return plain(value, kind.value_type)
    if pa.types.is_binary(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if pa.types.is_floating(kind):
        return float(value) if math.isfinite(value) else None
    if pa.types.is_map(kind):
        if pa.types.is_string(kind.key_type):
            return {k: plain(v, kind.item_type) for k, v in value if v is not None}
        return [[plain(k, kind.key_type), plain(v, kind.item_type)] for k, v in value]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [plain(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        cells = {f.name: plain(value[f.name], f.type) for f in kind}
        return {name: cell for name, cell in cells.items() if cell is not None}
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return str(value)
    return value


def expected(table: pa.Table) -> list[str]:
    row = pa.struct(list(table.schema))
    return [plain(cells, row) for cells in table.to_pylist()]


def same(ours, theirs) -> bool:
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and ours == theirs


def main() -> int:
    failures = 0
    table = make_table(41, 7)
    rows = expected(table)
    options = itertools.product(["none", "snappy", "gzip", "brotli", "zstd", "lz4"], ["1.0", "2.6"],
                                ["1.0", "2.0"], [3, 100])
    with tempfile.TemporaryDirectory() as folder:
        for compression, version, pages, group in options:
            file = pathlib.Path(folder) / "table.parquet"
            pq.write_table(table, file, compression=compression, version=version, data_page_version=pages,
                           row_group_size=group, use_dictionary=pages == "1.0")
            done = subprocess.run([sys.argv[1], file], capture_output=True, text=True, timeout=60)
            ours = [json.loads(line) for line in done.stdout.split("\n") if line][::-1]
            wrong = [i for i, row in enumerate(rows) if i >= len(ours) or not same(ours[i], row)]
            if done.returncode or wrong or len(ours) != len(rows):
                failures += 1
                print(compression, version, pages, group, done.stderr, "rows", wrong)
                if wrong and wrong[0] < len(ours):
                    print(" ours  ", ours[wrong[0]], "\n theirs", rows[wrong[0]])
    print("files read alike" if not failures else f"{failures} files differ")
    return 1 if failures else 0


sys.exit(main())
