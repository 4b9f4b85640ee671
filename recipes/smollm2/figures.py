"""Table and curves of all runs of run.py that are there: each task with its seeds.

Usage: .env/oracle/bin/python recipes/smollm2/figures.py [--runs runs/smollm2] [--out recipes/smollm2/curves.svg]
Prints a Markdown table of the test set before and after with 95 % intervals, and of the first and last five steps of
training. A panel of the plot is a task: reward of the training prompts by step (thin) and of the held-out ones (dots).
"""
import argparse
import json
import pathlib
import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  after the backend is chosen

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = ("reverse_words", "instructions", "preference")
ENDS = 5


def interval(figure: dict) -> str:
    return f"{figure['mean']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"


def ends(values: list[float], digits: str) -> str:
    return f"{statistics.mean(values[:ENDS]):{digits}} to {statistics.mean(values[-ENDS:]):{digits}}"


def row(summary: dict) -> str:
    minutes = sum(summary["seconds"].values()) / 60
    cells = [f"`{summary['task']}`", str(summary["seed"]), str(len(summary["reward"])), f"{minutes:.0f}",
             interval(summary["before"]["reward"]), interval(summary["after"]["reward"]), ends(summary["reward"], ".2f"),
             ends(summary["entropy"], ".2f"), f"{statistics.median(summary['k3_kl']):.1g}"]
    return "| " + " | ".join(cells) + " |"


def plot(summaries: list[dict], path: pathlib.Path) -> None:
    figure, panels = plt.subplots(1, len(TASKS), figsize=(12, 3.6), sharey=True)
    for task, panel in zip(TASKS, panels):
        for summary in (s for s in summaries if s["task"] == task):
            steps = range(1, len(summary["reward"]) + 1)
            [line] = panel.plot(steps, summary["reward"], linewidth=0.8, alpha=0.6)
            panel.plot(*zip(*summary["eval"]), marker="o", markersize=4, color=line.get_color(),
                       label=f"seed {summary['seed']}, held out")
        panel.set(title=task, xlabel="step", ylim=(0, 1))
        panel.grid(alpha=0.3)
        if panel.lines:
            panel.legend(fontsize=7)
    panels[0].set_ylabel("reward")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=pathlib.Path, default=ROOT / "runs" / "smollm2")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "recipes" / "smollm2" / "curves.svg")
    options = parser.parse_args()
    summaries = [json.loads(path.read_text()) for path in sorted(options.runs.glob("*/summary.json"))]
    if not summaries:
        parser.error(f"no summary.json below {options.runs}: run recipes/smollm2/run.py first")
    summaries.sort(key=lambda summary: (TASKS.index(summary["task"]), summary["seed"]))
    print("| task | seed | steps | minutes | test reward before | after | reward in training | entropy | k3_kl (median) |")
    print("|---|---|---|---|---|---|---|---|---|")
    for summary in summaries:
        print(row(summary))
    plot(summaries, options.out)


if __name__ == "__main__":
    main()
