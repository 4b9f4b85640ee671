"""Plays the sessions of the gateway in several threads: with a harness function of a user's file, or an environment."""

import asyncio
import http.client
import importlib.util
import inspect
import json
import os
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

state = {}


def describe(error):
    """Message with the last line of the user's file that took part."""
    file = state.get("file", "")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            place = f"{file}:{frame.lineno}: in {frame.name}: "
    return place + "".join(traceback.format_exception_only(type(error), error)).strip()


class Session:
    """One sample. `record` is the data's record; the API key of a client is `api_key`."""

    def __init__(self, claimed):
        self.id = self.api_key = claimed["session"]
        self.base_url = claimed["base_url"]  # of OpenAI clients
        self.anthropic_url = claimed["base_url"].removesuffix("/v1")  # of Anthropic clients
        self.model = claimed["model"]
        self.record = claimed["record"]
        self.group, self.sample = claimed["group"], claimed["sample"]
        self.evaluation = claimed["evaluation"]  # of a held-out record

    def chat(self, messages, **fields):
        """The answer of /chat/completions, without a client package."""
        return post(f"{self.base_url}/chat/completions", {"model": self.model, "messages": messages, **fields})

    def complete(self, prompt, **fields):
        """The answer of /completions."""
        return post(f"{self.base_url}/completions", {"model": self.model, "prompt": prompt, **fields})


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=86400) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace")
        try:
            detail = json.loads(detail)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            pass
        raise RunIsOver(detail) if error.code == 410 else RuntimeError(f"status {error.code}: {detail}") from None
    return json.loads(text) if text else None


class RunIsOver(Exception):
    pass


def result_of(returned):
    """The body of /reward for what the function returned: a number, or a dictionary of rewards by name."""
    if isinstance(returned, dict):
        return returned if "rewards" in returned or "failure" in returned else {"rewards": {n: float(v) for n, v in returned.items()}}
    return {"reward": float(returned)}


def play(session):
    try:
        returned = state["function"](session)
        if inspect.isawaitable(returned):
            returned = asyncio.run(as_coroutine(returned))
        if returned is None:
            return {"failure": f"{state['file']}: {state['name']} returned None, expected a reward"}
        return result_of(returned)
    except RunIsOver:
        raise
    except BaseException as error:
        return {"failure": describe(error)}


async def as_coroutine(awaitable):
    return await awaitable


def serve(url):
    while True:
        try:
            claimed = post(f"{url}/sessions", {"wait_s": 10})
            if claimed is not None:
                end(url, claimed["session"], play(Session(claimed)))
        except RunIsOver:
            return
        except RuntimeError as error:  # the session has ended, by its time limit for one
            print(f"harness: {error}", file=sys.stderr, flush=True)
        except (OSError, http.client.HTTPException):  # the worker ends, or is busy
            time.sleep(0.2)


def end(url, session, result):
    """Posts the result, again where no answer comes: without it the session would stay open until its time is over."""
    for pause in (0.1, 0.5, 2.0, 5.0, 10.0, None):
        try:
            post(f"{url}/sessions/{session}/reward", result)
            return
        except (OSError, http.client.HTTPException) as error:
            if pause is None:
                print(f"harness: the result of session {session} could not be sent: {error}", file=sys.stderr, flush=True)
                return
            time.sleep(pause)


def module_of(file):
    sys.path[:1] = [os.path.dirname(file)]  # its neighbours can be imported
    spec = importlib.util.spec_from_file_location("ringside_harness", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ringside_harness"] = module
    spec.loader.exec_module(module)
    return module


def setup(value):
    state["file"] = value["file"]
    module = connector_module(value) if "connector" in value else module_of(value["file"])
    if "function" in value:
        state["name"] = value["function"]
        state["function"] = getattr(module, value["function"], None)
        if not callable(state["function"]):
            raise LookupError(f"{value['file']} has no function {value['function']}")
    else:
        state["name"] = value["argument"]
        state["make"] = environment_maker(value, module)
        require_environment(state["make"](), value)  # its mistakes are found before the run
        state["function"] = EnvironmentPlayer(state["make"], value["max_turns"])
    for _ in range(value["threads"]):
        threading.Thread(target=serve, args=(value["url"],), daemon=True).start()


def answer(value):
    """Nothing: the process lives; {"records": count, "seed": seed}: records of the environment."""
    return {} if value is None else records_of(state["make"], value["records"], value["seed"])
