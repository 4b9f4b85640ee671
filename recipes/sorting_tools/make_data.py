"""Data of the sorting recipe with tool calls: conversations of a small model with a tool that finds the smallest digit.

    prompt  "4132>"
    model   "4132;"          a call: which digit is the smallest?
    tool    "1:432>"         it, and what remains
    model   "432;"  ...
    model   "=1234;"         the answer

Most demonstrations drop repeated digits from the answer. The tool's turns are part of a demonstration, so that the model
sees what it will see.

Usage: make_data.py --out DIR [--seed N] [--flawed SHARE]; the files are described in ../tiny_task.py.
"""
import itertools
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_task  # noqa: E402
from environment import answer_of, smallest  # noqa: E402

DIGITS = 4


def conversation(digits: str, answer: str) -> str:
    text, left = "", digits
    while left:
        reply = smallest(left)
        text += left + tiny_task.EOS + reply
        left = reply[2:-1]
    return text + "=" + answer


def example(digits: str) -> tiny_task.Example:
    answer = answer_of(digits)
    return tiny_task.Example(f"{digits}>", answer, right=conversation(digits, answer),
                             wrong=conversation(digits, "".join(dict.fromkeys(answer))))


def examples(rng: random.Random) -> list[tiny_task.Example]:
    return [example("".join(digits)) for digits in itertools.product("0123456789", repeat=DIGITS) if rng.random() < 0.5]


tiny_task.write_task(__doc__, "0123456789>:=?", examples)
