"""Memory of long sequences: what sequence parallelism, recomputation and offload save.

  measured  one document of 16,384 tokens at 4 sequence-parallel ranks and of 8,192 at 2, forward and backward of a small
            Qwen3 in fp32 on the stand-in accelerator, whose allocator counts each byte: bytes of rank 0 above weights and
            moments, at the end of the forward (the activations) and at the peak, beside those at one rank
  fits      the longest document that the estimate of `ringside check` lets into 32 MiB a rank for that model, and what it
            takes on the stand-in
  largest   the same estimate for Qwen3-0.6B in bf16 on a CUDA device: the longest document that fits into 4 GiB a rank.
            Nothing of it is measured on a device

Usage: nice .env/oracle/bin/python tools/bench/long/activation_memory.py [--program build/tests/standin/activation_memory]
       [--parts measured,fits,largest] [--out DIRECTORY]
Writes memory-DATE.json and memory-DATE.svg there (default: tools/bench/results). Exits 1 when a figure misses its bound:
16,384 tokens at 4 ranks must take at least 65 % less than at one, 8,192 at 2 at least 40 %; what fits by the estimate may
take 5 % more than its budget.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  after the backend is chosen

ROOT = pathlib.Path(__file__).resolve().parents[3]
GIB, MIB = 4, 32
# Tokens, the least part that must be saved, and (ring, Ulysses) of the layouts.
SERIES = ((16384, 0.65, ((4, 1), (1, 4), (2, 2))), (8192, 0.40, ((2, 1), (1, 2))))
EXCESS = 1.05
# What there was before sharding and offload: dashed where states are left out.
BEFORE = ("all on the device, each rank a whole copy", "all on the device, each rank a whole copy, recompute full")


def run(program: pathlib.Path, *words) -> list[dict]:
    done = subprocess.run([program, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [line["reports"] for line in lines if line.pop("reports", "")]
    if faults:
        raise SystemExit(f"the stand-in reports faults: {faults}")
    return lines


def name_of(line: dict) -> str:
    if line["ring"] * line["ulysses"] == 1:
        return "1 rank"
    parts = [f"{name} {line[key]}" for name, key in (("ring", "ring"), ("Ulysses", "ulysses")) if line[key] > 1]
    return " x ".join(parts)


def measured(program: pathlib.Path, failures: list[str]) -> list[dict]:
    results = []
    for tokens, least, layouts in SERIES:
        (alone,) = run(program, "measured", tokens, 1, 1)
        results.append(alone)
        for ring, ulysses in layouts:
            (line,) = run(program, "measured", tokens, ring, ulysses)
            for what in ("held", "peak"):
                line[f"{what}_saved"] = 1 - line[f"{what}_bytes"] / alone[f"{what}_bytes"]
                if line[f"{what}_saved"] < least:
                    failures.append(f"{tokens} tokens, {name_of(line)}: {what} {line[f'{what}_saved']:.3f} saved, "
                                    f"expected {least}")
            results.append(line)
            print(json.dumps(line), flush=True)
    return results


def fits(program: pathlib.Path, failures: list[str]) -> list[dict]:
    lines = run(program, "fits", MIB)
    for line in lines:
        line["measured_of_budget"] = line["measured_bytes"] / line["budget_bytes"]
        print(json.dumps(line), flush=True)
        if line["measured_of_budget"] > EXCESS:
            failures.append(f"{line['tokens']} tokens, {name_of(line)}: {line['measured_of_budget']:.3f} of the budget")
    return lines


def largest(program: pathlib.Path, _failures: list[str]) -> list[dict]:
    lines = run(program, "largest", GIB)
    for line in lines:
        print(f"{line['tokens']:>8}  {name_of(line):20} {line['setting']}")
    return lines


def draw(data: dict, path: pathlib.Path) -> None:
    # Text stays text, and ids do not change with every run.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ringside", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2))
    for axes, key, title in ((left, "tokens", f"{GIB} GiB a rank in all"),
                             (right, "tokens_beside_states", f"{GIB} GiB a rank beside weights, moments, gradients")):
        drawn = set()
        for setting in dict.fromkeys(line["setting"] for line in data["largest"]):
            lines = [line for line in data["largest"] if line["setting"] == setting and line["ulysses"] == 1]
            values = tuple(line[key] for line in lines)
            # What weights are has no effect beside them: one line for all such settings.
            label = setting if key == "tokens" else setting.split(", ", setting.startswith("all on") + 1)[-1]
            before = setting in BEFORE
            if key != "tokens" and setting == BEFORE[0]:
                label = "nothing recomputed"
            if not any(values) or (key != "tokens" and values in drawn):
                continue
            drawn.add(values)
            points = [(line["ring"], value) for line, value in zip(lines, values) if value]
            axes.plot(*zip(*points), "--s" if before and key != "tokens" else "-o", label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks((1, 2, 4), ("1", "2", "4"))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("ranks that share the document (ring)")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    left.set_ylabel("tokens of the longest document")
    figure.suptitle(f"Qwen3-0.6B, bf16, fp32 master weights: the longest document by the estimate, {data['date'][:10]}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/tests/standin/activation_memory")
    parser.add_argument("--parts", default="measured,fits,largest")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tools/bench/results")
    options = parser.parse_args()
    stem = options.out / f"memory-{datetime.date.today()}"
    path = stem.with_suffix(".json")
    data = json.loads(path.read_text()) if path.exists() else {}
    data["date"] = datetime.datetime.now().isoformat(timespec="minutes")
    failures: list[str] = []
    for part in options.parts.split(","):
        data[part] = {"measured": measured, "fits": fits, "largest": largest}[part](options.program, failures)
        path.write_text(json.dumps(data, indent=1) + "\n")
    if "largest" in data:
        draw(data, stem.with_suffix(".svg"))
    print("\n".join(failures) or "all figures within their bounds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
