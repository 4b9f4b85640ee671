"""Data of the two adapters: each sum with a carry twice, once for each adapter with the answer that it shall give.

    {"prompt": "17+5=", "answer": "22", "adapter": "carry"}       the sum
    {"prompt": "17+5=", "answer": "12", "adapter": "no_carry"}    the sum without its carry

Usage: make_data.py --out DIR: writes DIR/train.jsonl. Standard library only.
"""
import argparse
import json
import pathlib


def lines() -> list[str]:
    records = []
    for a in range(100):
        for b in range(10):
            without_carry = a // 10 * 10 + (a + b) % 10
            if a + b != without_carry:
                prompt = f"{a}+{b}="
                records.append({"prompt": prompt, "answer": str(a + b), "adapter": "carry"})
                records.append({"prompt": prompt, "answer": str(without_carry), "adapter": "no_carry"})
    return [json.dumps(record) for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory to write, made if it is missing")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.jsonl").write_text("\n".join(lines()) + "\n")


main()
