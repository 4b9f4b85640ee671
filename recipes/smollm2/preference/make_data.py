"""Replies to customers: demonstrations of mixed quality, pairs of replies of which one is preferred, and prompts.

Replies are put together from parts. Which of two is preferred is decided by judge.py, and one pair in ten is labelled
the wrong way round, as people do. Prompts of the pairs, of train.jsonl, of held_out.jsonl and of test.jsonl differ.

Writes sft.jsonl {"messages"}, pairs.jsonl {"prompt", "chosen", "rejected"}, and train.jsonl,
held_out.jsonl and test.jsonl {"prompt", "answer"}; the answer is the thing complained of, which judge.py looks for.
Usage: make_data.py --out DIR [--seed N]. Standard library only.
"""
import argparse
import json
import pathlib
import random

import judge

ITEMS = """kettle lamp phone bike chair clock coat toaster printer radio camera watch heater blanket mirror scooter guitar
backpack keyboard tent drill sofa mixer fan speaker helmet table router ladder pump""".split()
PROBLEMS = ["arrived broken", "stopped working after a week", "came in the wrong colour", "makes a strange noise",
            "is missing a part", "smells of smoke", "came two weeks late", "does not turn on", "has a scratch",
            "is too small"]
OPENINGS = ["I am sorry that your {item} {problem}", "We apologise for the trouble with your {item}",
            "Sorry about the {item}", "Sorry about that", "Thank you for writing about your {item}", "Hello",
            "Your {item} {problem} because you used it wrongly", "It is your own fault", "This happens",
            "Nobody else has complained about the {item}"]
ENDINGS = ["and we will send you a new one today.", "and we will replace it.", "and you will get a refund.",
           "and we will repair it.", "and we hope it gets better.", "and we wish you a nice day", "so buy another one.",
           "and that is all that we can say about it", "and there is nothing that we can do.", "and so on and so on"]
FLAWED = 0.7  # share of demonstrations whose parts are drawn without a look at their quality


def prompt_of(item: str, problem: str) -> list[dict]:
    return [{"role": "user", "content": f'A customer writes: "My {item} {problem}." Write a reply of one sentence.'}]


def reply_to(item: str, problem: str, rng: random.Random) -> str:
    text = f"{rng.choice(OPENINGS)}, {rng.choice(ENDINGS)}"
    return text.format(item=item, problem=problem)


def demonstration(item: str, problem: str, rng: random.Random) -> dict:
    replies = [reply_to(item, problem, rng) for _ in range(1 if rng.random() < FLAWED else 4)]
    best = max(replies, key=lambda text: judge.quality(text, item))
    return {"messages": [*prompt_of(item, problem), {"role": "assistant", "content": best}]}


def pair(item: str, problem: str, rng: random.Random) -> dict:
    while True:
        first, second = (reply_to(item, problem, rng) for _ in range(2))
        if judge.quality(first, item) != judge.quality(second, item):
            break
    chosen, rejected = sorted([first, second], key=lambda text: judge.quality(text, item), reverse=True)
    if rng.random() < 0.1:
        chosen, rejected = rejected, chosen
    return {"prompt": prompt_of(item, problem)[0]["content"], "chosen": chosen, "rejected": rejected}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    cases = [(item, problem) for item in ITEMS for problem in PROBLEMS]
    rng.shuffle(cases)
    parts = {"held_out": cases[:30], "test": cases[30:90], "train": cases[90:200]}
    of_pairs, of_demonstrations = cases[200:250], cases[250:]
    files = {name: [{"prompt": prompt_of(*case), "answer": case[0]} for case in part] for name, part in parts.items()}
    files["sft"] = [demonstration(*rng.choice(of_demonstrations), rng) for _ in range(1000)]
    files["pairs"] = [pair(*rng.choice(of_pairs), rng) for _ in range(1500)]
    for name, lines in files.items():
        (options.out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{options.out}: " + ", ".join(f"{len(lines)} lines in {name}.jsonl" for name, lines in files.items()))


if __name__ == "__main__":
    main()
