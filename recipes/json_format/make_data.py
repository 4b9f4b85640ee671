"""Data of the format recipe: write a name and a number as a JSON object; most demonstrations quote the number.

    "bob 7>"  ->  {"name":"bob","age":7};     right
    "bob 7>"  ->  {"name":"bob","age":"7"};   wrong: the schema wants an integer

Usage: make_data.py --out DIR [--seed N] [--flawed SHARE]; the files are described in ../tiny_task.py.
"""
import pathlib
import random
import string
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tiny_task  # noqa: E402


def example(name: str, age: int) -> tiny_task.Example:
    return tiny_task.Example(f"{name} {age}>", "", right=f'{{"name":"{name}","age":{age}}}',
                             wrong=f'{{"name":"{name}","age":"{age}"}}')


def examples(rng: random.Random) -> list[tiny_task.Example]:
    people = {("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 5))), rng.randint(1, 99))
              for _ in range(2000)}
    return [example(name, age) for name, age in sorted(people)]


tiny_task.write_task(__doc__, string.ascii_lowercase + string.digits + ' >{}":,', examples)
