"""A tiny chat model for one of the environments, and demonstrations that play it badly in most cases.

Writes into --out:
    model/       config.json of a small Qwen3 (about 0.8 million parameters) and a tokenizer of characters with ChatML's markers
    sft.jsonl    {"messages"}: conversations with the environment, whose assistant is right in a share of them

The records come from `ringside records`. The package of the environment must be installed.

Usage: demonstrations.py ENVIRONMENT --records FILE --out DIR [--seed N] [--flawed SHARE]
"""
import argparse
import asyncio
import importlib.util
import inspect
import json
import pathlib
import random
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(HERE)]
import quickstart_task  # noqa: E402

START, END = "<|im_start|>", "<|im_end|>"
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))


def write_model(folder: pathlib.Path) -> None:
    vocabulary = {token: i for i, token in enumerate(["<pad>", END, "<unk>", START, *CHARACTERS])}
    tokenizer = quickstart_task.tokenizer_json(vocabulary)
    tokenizer["added_tokens"] = [{**tokenizer["added_tokens"][0], "id": vocabulary[token], "content": token}
                                 for token in ("<pad>", END, "<unk>", START)]
    config = quickstart_task.model_config(vocabulary) | {
        "eos_token_id": vocabulary[END], "max_position_embeddings": 2048, "use_sliding_window": False}
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", {})):
        quickstart_task.write_json(folder / f"{name}.json", value)


def connector(name: str, argument: str, **options):
    """An environment of rl/python/environments, as the workers make it."""
    spec = importlib.util.spec_from_file_location(f"ringside_{name}", ROOT / f"rl/python/environments/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Environment(argument, **options)


# What an assistant says next in a conversation. A flawed one makes one mistake throughout.

def says_sum(messages: list[dict], flawed: bool) -> str:
    terms = re.search(r": (.*) =$", messages[-1]["content"])[1]
    return str(eval(terms.replace("-", "+") if flawed else terms))  # takes a minus for a plus


def says_guess(messages: list[dict], flawed: bool) -> str:
    low, high, guess = 1, 20, 10
    for told in messages[2::2]:
        higher = "higher" in told["content"]
        low, high = (guess + 1, high) if higher else (low, guess - 1)
        guess = (low if higher else high) if flawed else (low + high) // 2  # the next number
    return str(guess)


def says_smallest(messages: list[dict], flawed: bool) -> str:
    digits = messages[-1]["content"]
    return digits[0] if flawed else min(digits)  # the next one, whichever it is


def says_reversed(messages: list[dict], flawed: bool) -> str:
    digits = messages[-1]["content"].split()[-1]
    return "".join(dict.fromkeys(digits[::-1])) if flawed else digits[::-1]  # drops repeated digits


ENVIRONMENTS = {
    "reasoning_gym": (says_sum, lambda: connector(
        "reasoning_gym", "chain_sum", system_prompt="", answer_tag="", config={"chain_sum": {"max_terms": 2, "max_digits": 1}})),
    "textarena": (says_guess, lambda: connector("textarena", "GuessTheNumber-v0", game={"max_turns": 4})),
    "openenv": (says_smallest, lambda: connector("openenv", "http://127.0.0.1:8123")),
    "verifiers": (says_reversed, None),
}


async def played(make, record: dict, says, flawed: bool) -> list[dict]:
    """A whole conversation with the environment."""
    if make is None:  # one turn, which the environment plays itself
        return [*record["prompt"], {"role": "assistant", "content": says(record["prompt"], flawed)}]
    environment = make()
    value = lambda result: result if inspect.isawaitable(result) else asyncio.sleep(0, result)  # noqa: E731
    messages, done = await value(environment.reset(record)), False
    while not done:
        message = {"role": "assistant", "content": says(messages, flawed)}
        told, _, done = await value(environment.step(message))
        messages += [message, *([] if done else told)]
    if hasattr(environment, "close"):
        await value(environment.close())
    return messages


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=tuple(ENVIRONMENTS))
    parser.add_argument("--records", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flawed", type=float, default=0.6, help="share of the demonstrations with a mistake")
    options = parser.parse_args()
    says, make = ENVIRONMENTS[options.environment]
    records = [json.loads(line) for line in options.records.read_text().splitlines()]
    draws = random.Random(options.seed)
    flawed = [draws.random() < options.flawed for _ in records]
    write_model(options.out / "model")
    conversations = [await played(make, record, says, bad) for record, bad in zip(records, flawed)]
    quickstart_task.write_lines(options.out / "sft.jsonl", [{"messages": messages} for messages in conversations])
    print(f"{options.out}: {len(records)} demonstrations, {sum(flawed)} with a mistake")


if __name__ == "__main__":
    asyncio.run(main())
