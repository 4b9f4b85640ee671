"""Instructions whose fulfilment a program can check: words, letters, a question, JSON, a list; each about a topic.

Writes train.jsonl, held_out.jsonl (to watch training by) and test.jsonl (for the final figure), each line {"prompt",
"kind", "topic", "count"}, which checks.py reads. Topics of one file are in no other.
Usage: make_data.py --out DIR [--seed N]. Standard library only.
"""
import argparse
import json
import pathlib
import random

TOPICS = """apple bridge candle river doctor guitar mountain pencil rabbit teacher window garden engine ocean forest
market kitchen camera desert dragon island ladder mirror needle orange parrot rocket salad ticket umbrella village
wagon basket bottle button castle circus cloud coffee cotton dancer diamond donkey farmer feather ferry flower furnace
goose hammer harbor helmet horse hotel jacket jungle kettle lemon library lion magnet melon monkey museum onion oven
painter palace pepper piano pigeon pilot planet potato prison queen radio railway river robot sailor school
scissors shadow sheep shirt shovel silver soldier spider spoon squirrel stadium statue storm summer sugar surgeon
table tailor tiger toast tomato tower tractor train turtle valley violin volcano wallet walnut whale wheel winter
wolf zebra blanket bread butter cabin carpet cheese clock coat compass cookie curtain""".split()

KINDS = {
    "words": "Write one sentence about the {topic} with exactly {count} words.",
    "capitals": "Write one sentence about the {topic} in capital letters only.",
    "question": "Ask one short question about the {topic}.",
    "json": 'Describe the {topic} as a JSON object with the keys "name" and "use", both with text as values. Write only the JSON.',
    "list": "Name three things that go with the {topic}, separated by commas, on one line. Write only the list.",
}


def line_of(kind: str, topic: str, rng: random.Random) -> dict:
    count = rng.randint(5, 9)
    text = KINDS[kind].format(topic=topic, count=count)
    return {"prompt": [{"role": "user", "content": text}], "kind": kind, "topic": topic, "count": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    topics = sorted(set(TOPICS))
    rng.shuffle(topics)
    parts = {"held_out": topics[:10], "test": topics[10:40], "train": topics[40:]}
    for name, chosen in parts.items():
        lines = [line_of(kind, topic, rng) for topic in chosen for kind in KINDS]
        rng.shuffle(lines)
        (options.out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{options.out}: " + ", ".join(f"{len(KINDS) * len(part)} prompts in {name}.jsonl" for name, part in parts.items()))


if __name__ == "__main__":
    main()
