"""Draws what bench_cp printed: speed of every method as a multiple of one rank's, and the bytes it sent.

Usage: plot.py FIGURES.jsonl PLOT.png
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  after the backend is chosen


def main() -> None:
    source, target = map(pathlib.Path, sys.argv[1:3])
    lines = [json.loads(line) for line in source.read_text().splitlines()]
    lines = [line for line in lines if line["what"] == "attention"]
    regimes = list(dict.fromkeys(line["regime"] for line in lines))
    methods = list(dict.fromkeys(line["method"] for line in lines))
    figure, (speed, volume) = plt.subplots(2, 1, figsize=(11, 7), sharex=True)
    width = 0.8 / len(methods)
    for m, method in enumerate(methods):
        chosen = {line["regime"]: line for line in lines if line["method"] == method}
        places = [r + (m - (len(methods) - 1) / 2) * width for r in range(len(regimes))]
        speed.bar(places, [chosen[r]["efficiency"] for r in regimes], width, label=method)
        volume.bar(places, [chosen[r]["bytes_of_busiest_rank"] / 2**20 for r in regimes], width)
    speed.axhline(1.0, color="grey", linewidth=0.8)
    speed.set_ylabel("speed / one rank's, equal threads")
    speed.legend(ncols=3, fontsize=8)
    volume.set_ylabel("MiB sent by the busiest rank")
    volume.set_xticks(range(len(regimes)), regimes)
    tokens = max(line["tokens"] for line in lines if line["regime"] == regimes[0])
    figure.suptitle(f"Attention forward + backward, {tokens} tokens, 8/2 heads of 64, fp32, 2 threads in all")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
