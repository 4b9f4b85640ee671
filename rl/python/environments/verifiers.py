"""rollout.environment verifiers(NAME): an installed environment of the package verifiers, by load_environment(NAME).

The environment plays its rollout itself, with the gateway as its OpenAI server. The reward is its rubric's. Needs a version of
the package that has load_environment(): 0.1.9 to 0.3.

Options: the arguments of the environment's load_environment(), and
    sampling       {...}: more fields of its requests
"""

import asyncio
import functools
import json
import ssl
import threading

import verifiers as vf
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

if not hasattr(vf, "load_environment"):
    raise ImportError(f"verifiers {vf.__version__} has no load_environment(); expected 0.1.9 to 0.3: pip install 'verifiers<0.4'")
from verifiers.clients import OpenAIChatCompletionsClient

FIELDS = ("prompt", "answer", "info", "example_id", "task")


@functools.cache
def loop():
    """One event loop for all sessions, because an environment keeps locks that belong to one."""
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, daemon=True).start()
    return made


@functools.cache
def certificates():
    """Read once: a client of its own reads them for 20 ms, which is longer than a short rollout takes."""
    return ssl.create_default_context()


@functools.cache
def environment_of(name, arguments):
    return vf.load_environment(name, **json.loads(arguments))


class Environment:
    def __init__(self, name, sampling=None, **arguments):
        self._environment = environment_of(name, json.dumps(arguments))
        self._sampling = sampling or {}

    def records(self, count, seed):
        for row in self._environment.get_dataset(n=count, seed=seed):
            yield {field: row[field] for field in FIELDS if row.get(field) is not None}

    def play(self, session):
        return asyncio.run_coroutine_threadsafe(self._play(session), loop()).result()

    async def _play(self, session):
        http = DefaultAsyncHttpxClient(verify=certificates())
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0, timeout=86400,
                               http_client=http) as openai:
            given = {field: session.record[field] for field in FIELDS if field in session.record}
            output = await self._environment.run_rollout(given, OpenAIChatCompletionsClient(openai), session.model,
                                                         dict(self._sampling))
        error = output.get("error")
        if error and "EmptyModelResponseError" not in str(error):  # an empty answer was sampled too: the rubric judges it
            raise RuntimeError(f"the rollout of verifiers failed: {error}")
        return float(output["reward"])
