"""Data of the code recipe: write a Python function of two steps; most demonstrations forget the parentheses.

    "add 3 mul 4>"  ->  f=lambda x:(x+3)*4;   right
    "add 3 mul 4>"  ->  f=lambda x:x+3*4;     wrong: multiplication binds first

The answer is test code: two assertions that only the right function passes.

Usage: make_data.py --out DIR [--seed N] [--flawed SHARE]; the files are described in ../tiny_task.py.
"""
import pathlib
import random
import string
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_task  # noqa: E402


def example(sign: str, n: int, m: int) -> tiny_task.Example:
    step = n if sign == "+" else -n
    tests = "\n".join(f"assert f({x}) == {(x + step) * m}" for x in (1, 7))
    return tiny_task.Example(f"{'add' if sign == '+' else 'sub'} {n} mul {m}>", tests,
                             right=f"f=lambda x:(x{sign}{n})*{m}", wrong=f"f=lambda x:x{sign}{n}*{m}")


def examples(_: random.Random) -> list[tiny_task.Example]:
    return [example(sign, n, m) for sign in "+-" for n in range(1, 40) for m in range(2, 10)]


tiny_task.write_task(__doc__, string.ascii_lowercase + string.digits + " >=:()+-*", examples)
