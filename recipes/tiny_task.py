"""Files of a small task for the CPU: a tiny model without weights, demonstrations, prompts.

A task is a list of examples with different prompts. In a share of the demonstrations the wrong completion stands in
place of the right one. Supervised training learns that mixture; a reward that knows what is right repairs it.

Writes into --out, the same files for the same arguments:
    model/           config.json of a small Qwen3 (about 0.8 million parameters) and a tokenizer of single characters
    sft.jsonl        {"prompt", "completion"}   demonstrations
    train.jsonl      {"prompt", "answer"}       prompts to train on: 80 % of the examples
    held_out.jsonl   the same: 10 %             to choose settings by
    test.jsonl       the same: 10 %             for the final figure
    pairs.jsonl, pairs_held_out.jsonl   {"prompt", "chosen", "rejected"}   of train and held_out: the right completion
                                                                           and a wrong one
"""
import argparse
import json
import pathlib
import random
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import quickstart_task  # noqa: E402

EOS = quickstart_task.EOS


@dataclass
class Example:
    prompt: str
    answer: str  # what the reward compares with
    right: str
    wrong: str  # equal to `right` where there is nothing to get wrong
    other_wrong: str = ""  # what a pair rejects there; "" = there is no pair


def demonstrations(examples: list[Example], count: int, flawed: float, rng: random.Random) -> list[dict]:
    lines = []
    for _ in range(count):
        example = rng.choice(examples)
        text = example.wrong if rng.random() < flawed else example.right
        lines.append({"prompt": example.prompt, "completion": text + EOS})
    return lines


def pairs(examples: list[Example]) -> list[dict]:
    found = []
    for example in examples:
        rejected = example.wrong if example.wrong != example.right else example.other_wrong
        if rejected:
            found.append({"prompt": example.prompt, "chosen": example.right + EOS, "rejected": rejected + EOS})
    return found


def prompts(examples: list[Example]) -> list[dict]:
    return [{"prompt": example.prompt, "answer": example.answer} for example in examples]


def write_model(folder: pathlib.Path, vocabulary: dict[str, int], layers: int) -> None:
    quickstart_task.write_model(folder, vocabulary)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": layers}, indent=2) + "\n")


def write_task(description: str, characters: str, make_examples, layers: dict[str, int] | None = None) -> None:
    """The command line of a task's make_data.py. `make_examples(rng)` returns all its examples; `layers`: of the models to
    write, by their folders. Beside teacher_model/ stands teacher.jsonl, demonstrations without a mistake."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory to write, made if it is missing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flawed", type=float, default=0.6, help="share of the demonstrations that are wrong")
    parser.add_argument("--demonstrations", type=int, default=8000)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    examples = make_examples(rng)
    rng.shuffle(examples)
    tenth = len(examples) // 10
    train = examples[2 * tenth:]
    vocabulary = quickstart_task.vocabulary_of(characters)
    for folder, count in (layers or {}).items():
        write_model(options.out / folder, vocabulary, count)
    if layers is None:
        quickstart_task.write_model(options.out / "model", vocabulary)
    files = {"sft": demonstrations(train, options.demonstrations, options.flawed, rng), "train": prompts(train),
             "held_out": prompts(examples[:tenth]), "test": prompts(examples[tenth:2 * tenth]), "pairs": pairs(train),
             "pairs_held_out": pairs(examples[:tenth])}
    if "teacher_model" in (layers or {}):
        files["teacher"] = demonstrations(train, options.demonstrations, 0.0, rng)
    for name, lines in files.items():
        quickstart_task.write_lines(options.out / f"{name}.jsonl", lines)
    print(f"{options.out}: " + ", ".join(f"{len(lines)} lines in {name}.jsonl" for name, lines in files.items()))
