"""Prompts of reasoning-gym's task word_sequence_reversal: "Reverse this list of words: one, two, three".

Two worked examples stand before each question, as turns of the conversation; they are the same in all prompts and in
none of the questions. Without them none of 192 sampled answers was right, and there is nothing to learn from.

Writes train.jsonl, held_out.jsonl (to watch training by) and test.jsonl (for the final figure), each line
{"prompt": messages, "answer", "entry"}; `entry` is what the verifier of verify.py takes. No two lines have the same
question. Usage: make_data.py --out DIR [--seed N]
"""
import argparse
import json
import pathlib

import reasoning_gym

TASK = "word_sequence_reversal"
SIZES = {"held_out": 48, "test": 200, "train": 2000}


def question_of(entry: dict) -> str:
    """The line that asks; the lines before it describe the format, which the examples show."""
    return entry["question"].strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {"min_words": 2, "max_words": 4}
    shots = [message for entry in reasoning_gym.create_dataset(TASK, size=2, seed=0, min_words=3, max_words=4)
             for message in ({"role": "user", "content": question_of(entry)},
                             {"role": "assistant", "content": entry["answer"]})]
    seen = {shots[0]["content"], shots[2]["content"]}
    entries = iter(reasoning_gym.create_dataset(TASK, size=2 * sum(SIZES.values()), seed=1_000_000 * options.seed, **settings))
    for name, size in SIZES.items():
        lines = []
        while len(lines) < size:
            entry = next(entries)
            question = question_of(entry)
            if question not in seen:
                seen.add(question)
                lines.append({"prompt": [*shots, {"role": "user", "content": question}], "answer": entry["answer"],
                              "entry": json.dumps(entry)})
        (options.out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{options.out}: " + ", ".join(f"{size} prompts in {name}.jsonl" for name, size in SIZES.items()))


if __name__ == "__main__":
    main()
