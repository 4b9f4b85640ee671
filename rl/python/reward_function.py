"""Calls a reward function of a user's file for batches of completions.

A batch for which the function raises is tried again one completion at a time, so that one row costs one row.
"""

import importlib.util
import inspect
import math
import os
import sys
import time
import traceback

state = {}


def describe(error):
    """Message with the last line of the user's file that took part."""
    file = state.get("file", "")
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == file:
            place = f"{file}:{frame.lineno}: in {frame.name}: "
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}: "
        return f"{place}{type(error).__name__}: {error.msg}"
    if isinstance(error, Refusal):
        return str(error)
    return place + "".join(traceback.format_exception_only(type(error), error)).strip()


class Refusal(Exception):
    pass


def refuse(text):
    raise Refusal(text)


def setup(value):
    file, name = value["file"], value["function"]
    state["file"] = file
    state["bound"] = value["bound"]
    state["seconds_alone"] = value["seconds_alone"]
    sys.path[:1] = [os.path.dirname(file)]  # its neighbours can be imported
    spec = importlib.util.spec_from_file_location("ringside_rewards", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ringside_rewards"] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        names = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == "ringside_rewards"]
        refuse(f"{file}: has no function {name}; it has " + (", ".join(names) or "none"))
    state["function"], state["name"] = function, name
    parameters = inspect.signature(function).parameters.values()
    state["any"] = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    state["takes"] = {p.name for p in named}
    state["needs"] = [p.name for p in named if p.default is p.empty]


def arguments(value):
    given = value["arguments"]
    columns = value["columns"]
    for row in columns:
        for name in row:
            if name not in given and (state["any"] or name in state["takes"]):
                given[name] = [other.get(name) for other in columns]
    missing = [name for name in state["needs"] if name not in given]
    if missing:
        have = [*value["arguments"], *sorted({name for row in columns for name in row} - set(value["arguments"]))]
        refuse(f"{state['file']}: {state['name']} takes {', '.join(missing)}, and no row has it; there is " + ", ".join(have))
    return {name: list_ for name, list_ in given.items() if state["any"] or name in state["takes"]}


def scores_of(given, count):
    """For each completion a number, or the reason why it has none: "" when the function returned None."""
    where = f"{state['file']}: {state['name']} "
    scores = state["function"](**given)
    try:
        scores = list(scores)
    except TypeError:
        refuse(where + f"returned {type(scores).__name__}, expected a list of {count} numbers")
    if len(scores) != count:
        refuse(where + f"returned {len(scores)} scores for {count} completions")
    results = []
    for i, score in enumerate(scores):
        if score is None:
            results.append("")
            continue
        try:
            number = float(score)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number) and abs(number) <= state["bound"]:
            results.append(number)
        else:
            results.append(where + f"returned {repr(score)[:80]} for completion {i + 1} of {count}, expected a finite number, "
                           f"{-state['bound']:g} to {state['bound']:g}")
    return results


def one_by_one(given, count, error):
    """After an exception: a call for each completion. Those that are not reached in time keep the first exception."""
    results = [describe(error)] * count
    until = time.monotonic() + state["seconds_alone"]
    for i in range(count):
        if time.monotonic() > until:
            break
        try:
            results[i] = scores_of({name: values[i : i + 1] for name, values in given.items()}, 1)[0]
        except BaseException as alone:
            results[i] = describe(alone)
    return results


def answer(value):
    count = len(value["arguments"]["completions"])
    given = arguments(value)
    try:
        return scores_of({name: list(values) for name, values in given.items()}, count)
    except Refusal:
        raise
    except BaseException as error:  # SystemExit too
        if count == 1:
            raise
        return one_by_one(given, count, error)
