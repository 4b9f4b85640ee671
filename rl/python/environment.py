"""Plays environments as sessions: objects with reset() and step(), or with play().

Precedes harness.py. An environment is an instance of the user's class, or of the class Environment of a connector, whose
source is a file of environments/.
"""

import inspect
import types


async def value_of(result):
    return await result if inspect.isawaitable(result) else result


def environment_maker(value, module):
    """A function without arguments that makes the environment of one session."""
    if "connector" in value:
        return lambda: module.Environment(value["argument"], **value["options"])
    made = getattr(module, value["argument"], None)
    if not callable(made):
        raise LookupError(f"{value['file']} has no class {value['argument']}")
    return lambda: made(**value["options"])


def require_environment(environment, value):
    missing = [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]
    if missing and not callable(getattr(environment, "play", None)):
        raise LookupError(f"{value['file']}: {value['argument']} has no {' and no '.join(missing)}; expected reset(record) and "
                          "step(message), or play(session)")


def connector_module(value):
    name = f"ringside_{value['connector']}"
    module = types.ModuleType(name)
    # By this name a traceback tells which file failed.
    exec(compile(value["source"], value["file"], "exec"), module.__dict__)
    return module


class EnvironmentPlayer:
    """Plays a session with an environment of its own, and returns the rewards."""

    def __init__(self, make, max_turns):
        self._make, self._max_turns = make, max_turns

    async def __call__(self, session):
        environment = self._make()
        try:
            if hasattr(environment, "play"):
                return await value_of(environment.play(session))
            return await self._turns(environment, session)
        finally:
            if hasattr(environment, "close"):
                await value_of(environment.close())

    async def _turns(self, environment, session):
        messages = list(await value_of(environment.reset(session.record)))
        rewards, done = [], False
        while not done and len(rewards) < self._max_turns:
            tools = getattr(environment, "tools", None)
            answer = session.chat(messages, **({"tools": tools} if tools else {}))
            message = answer["choices"][0]["message"]
            said, reward, done = await value_of(environment.step(message))
            messages += [message, *said]
            rewards.append(reward)
        return summed(rewards)


def summed(rewards):
    """The result of a session from the rewards of its turns: numbers, rewards by name, or None for nothing."""
    if any(isinstance(reward, dict) for reward in rewards):
        totals = {}
        for reward in rewards:
            named = reward if isinstance(reward, dict) else {"reward": reward or 0.0}
            for name, number in named.items():
                totals[name] = totals.get(name, 0.0) + float(number)
        return {"rewards": totals}
    numbers = [float(reward or 0.0) for reward in rewards]
    last = numbers.pop()
    # The last turn's reward is the sample's, and stands at its end as a turn's does.
    return {"rewards": {"reward": last}} | ({"turn_rewards": [*numbers, 0.0]} if any(numbers) else {})


def records_of(make, count, seed):
    """`count` records of data.train, as the environment makes them."""
    environment = make()
    if not hasattr(environment, "records"):
        raise LookupError("the environment has no records(count, seed)")
    records = []
    for record in environment.records(count, seed):
        if len(records) == count:
            break
        records.append({"prompt": "", **record})
    return records
