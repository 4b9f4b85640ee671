"""Model directories and data files for recipes whose real ones are not here.

A model directory is the config.json of configs/models and a tokenizer of bytes with the special tokens of the chat
templates; there are no weights. The data has one line of each form.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import quickstart_task  # noqa: E402

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
QUESTION = {"role": "user", "content": "What is 17 * 3?"}


def tokenizer_json() -> dict:
    vocabulary = quickstart_task.vocabulary_of(CHARACTERS)
    vocabulary.pop(";", None)
    vocabulary = {token: i for i, token in enumerate([*vocabulary, ";", *SPECIAL])}
    tokenizer = quickstart_task.tokenizer_json(vocabulary)
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": vocabulary[token], "content": token}
                                  for token in SPECIAL]
    return tokenizer


def model(folder: pathlib.Path, shape: str) -> pathlib.Path:
    """`folder`/`shape`, with the config.json of configs/models/`shape`."""
    target = folder / shape
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_bytes((ROOT / "configs/models" / shape / "config.json").read_bytes())
    (target / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return target


def data(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Files for data.train and data.eval, and for data.sft, by these keys."""
    prompts, chats = folder / "prompts.jsonl", folder / "chats.jsonl"
    prompts.write_text(json.dumps({"prompt": [QUESTION], "answer": "51"}) + "\n")
    chats.write_text(json.dumps({"messages": [QUESTION, {"role": "assistant", "content": "51"}]}) + "\n")
    return {"data.train": prompts, "data.eval": prompts, "data.sft": chats}
