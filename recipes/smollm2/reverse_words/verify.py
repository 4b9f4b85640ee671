"""The reward: reasoning-gym's own verifier. 1 for the answer alone, its share of the text where more stands around it."""
import functools
import json

import reasoning_gym


@functools.cache
def dataset(name: str):
    return reasoning_gym.create_dataset(name, size=1, seed=0)


def verify(completions, entry):
    scores = []
    for text, line in zip(completions, entry):
        question = json.loads(line)
        scores.append(float(dataset(question["metadata"]["source_dataset"]).score_answer(text.strip(), question)))
    return scores
