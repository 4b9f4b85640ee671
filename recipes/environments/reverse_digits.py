"""An environment of the package verifiers: reverse a number. It is found as a module by its name."""
import random

import datasets
import verifiers as vf


def same_places(completion, answer) -> float:
    said = (completion[-1]["content"] or "").strip()
    return sum(a == b for a, b in zip(said, answer)) / max(len(said), len(answer))


def load_environment(count: int = 4000, digits: int = 5) -> vf.Environment:
    draws = random.Random(0)
    numbers = ["".join(draws.choices("0123456789", k=digits)) for _ in range(count)]
    data = datasets.Dataset.from_list([{"question": f"Reverse {number}", "answer": number[::-1]} for number in numbers])
    return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[same_places]))
