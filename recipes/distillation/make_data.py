"""Data of the distillation recipe: add a number below 100 and a digit; most of the student's demonstrations forget the carry.

    "17+5="  ->  "22;"   right: what the teacher learns from
    "17+5="  ->  "12;"   wrong

Usage: make_data.py --out DIR [--seed N] [--flawed SHARE]; the files are described in ../tiny_task.py. The student has two
layers (model/), the teacher six (teacher_model/).
"""
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_task  # noqa: E402


def example(a: int, b: int) -> tiny_task.Example:
    without_carry = a // 10 * 10 + (a + b) % 10
    return tiny_task.Example(f"{a}+{b}=", str(a + b), right=str(a + b), wrong=str(without_carry))


def examples(_: random.Random) -> list[tiny_task.Example]:
    return [example(a, b) for a in range(100) for b in range(10)]


tiny_task.write_task(__doc__, "0123456789+=", examples, layers={"model": 2, "teacher_model": 6})
