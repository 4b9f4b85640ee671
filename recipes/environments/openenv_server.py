"""An environment of OpenEnv: take the smallest digit, until none is left. Usage: openenv_server.py [--port N]"""
import argparse
import random
import uuid

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Take(Action):
    digit: str


class Digits(Observation):
    digits: str = ""


class SmallestFirst(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state, self._digits, self._count = State(episode_id=str(uuid.uuid4()), step_count=0), "", 4

    def reset(self, seed=None, **_) -> Digits:
        self._state = State(episode_id=str(uuid.uuid4()), step_count=0)
        self._digits = "".join(random.Random(seed).choices("0123456789", k=self._count))
        return Digits(digits=self._digits, done=False, reward=0.0)

    def step(self, action: Take) -> Digits:
        self._state.step_count += 1
        right = action.digit == min(self._digits)
        self._digits = self._digits.replace(action.digit, "", 1) if right else self._digits
        return Digits(digits=self._digits, done=not right or not self._digits, reward=float(right) / self._count)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8123)
    app = create_app(SmallestFirst, Take, Digits, env_name="smallest_first", max_concurrent_envs=256)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="critical")  # it reports every client that leaves
