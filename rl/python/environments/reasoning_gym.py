"""rollout.environment reasoning_gym(TASK), or reasoning_gym(TASK, TASK ...): tasks of the package reasoning-gym.

One turn: the task's question, and the score of its verifier for the answer. A record names its entry by task, seed,
size of the dataset and index; the entry itself is made again, because its metadata may be no JSON.

Options:
    config         {TASK: {...}}: fields of the tasks' configurations
    system_prompt  a name of reasoning_gym.utils.SYSTEM_PROMPTS, a text, or "" for none
    answer_tag     the answer stands between <TAG> and </TAG>; "" = the whole message is the answer
"""

import functools
import json

import reasoning_gym
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer


@functools.lru_cache(maxsize=64)
def dataset_of(task, config, seed, size):
    if task not in reasoning_gym.factory.DATASETS:
        known = ", ".join(sorted(reasoning_gym.factory.DATASETS))
        raise LookupError(f"reasoning-gym has no task {task!r}; expected one of {known}")
    # Some datasets choose their entries when they are made, so the size counts.
    return reasoning_gym.create_dataset(task, **json.loads(config) | {"seed": seed, "size": size})


class Environment:
    def __init__(self, tasks, config=None, system_prompt="default", answer_tag="answer"):
        self._tasks = [task.strip() for task in tasks.split(",")]
        self._config = config or {}
        if unknown := set(self._config) - set(self._tasks):
            raise ValueError(f"config has {', '.join(sorted(unknown))}, expected tasks among {', '.join(self._tasks)}")
        self._system_prompt = SYSTEM_PROMPTS.get(system_prompt, system_prompt)
        self._tag = answer_tag
        self._entry = self._dataset = None

    def _open(self, task, seed, size):
        return dataset_of(task, json.dumps(self._config.get(task, {}), sort_keys=True), seed, size)

    def records(self, count, seed):
        size = max(count, 10)  # some datasets need more than a few
        for index in range(count):
            task = self._tasks[index % len(self._tasks)]
            entry = self._open(task, seed, size)[index]
            yield {"prompt": entry["question"], "answer": str(entry["answer"]), "task": task, "seed": seed, "index": index, "size": size}

    def reset(self, record):
        self._dataset = self._open(record["task"], record["seed"], record["size"])
        self._entry = self._dataset[record["index"]]
        if self._entry["question"] != record["prompt"]:
            raise ValueError(f"entry {record['index']} of {record['task']} has another question than its record; the "
                             "records are of another version of reasoning-gym or another config: make them again")
        system = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
        return [*system, {"role": "user", "content": record["prompt"]}]

    def step(self, message):
        said = message.get("content") or ""
        answer = extract_answer(said, self._tag) if self._tag else said.strip()
        return [], float(self._dataset.score_answer(answer, self._entry)), True
