"""Data of the length recipe: repeat a letter; the demonstrations do it 1 to 40 times, all as often.

    "k>"  ->  "kkkkkkk;"

No completion is wrong: which lengths are liked is known to the reward server alone.

Usage: make_data.py --out DIR [--seed N]; the files are described in ../tiny_task.py.
"""
import pathlib
import random
import string
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_task  # noqa: E402


def example(letters: str, rng: random.Random) -> tiny_task.Example:
    text = letters[-1] * rng.randint(1, 40)
    return tiny_task.Example(f"{letters}>", "", right=text, wrong=text)


def examples(rng: random.Random) -> list[tiny_task.Example]:
    return [example(a + b + c, rng) for a in string.ascii_lowercase for b in string.ascii_lowercase
            for c in rng.sample(string.ascii_lowercase, 6)]


tiny_task.write_task(__doc__, string.ascii_lowercase + ">", examples)
