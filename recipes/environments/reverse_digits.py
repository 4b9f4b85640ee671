"""An environment of the package verifiers: reverse a number. It is found as a module by its name."""
import random

import datasets
import verifiers as vf


def same_places(completion, answer) -> float:
    said = (completion[-1]["content"] or "").strip() if completion else ""  # an empty answer leaves no message
    return sum(a == b for a, b in zip(said, answer)) / max(len(said), len(answer))


def load_environment(count: int = 4256, digits: int = 5) -> vf.Environment:
    draws = random.Random(0)
    numbers = [f"{number:0{digits}}" for number in draws.sample(range(10**digits), count)]  # each once: some are held out
    data = datasets.Dataset.from_list([{"question": f"Reverse {number}", "answer": number[::-1]} for number in numbers])
    return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[same_places]))
