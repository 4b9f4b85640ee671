#!/usr/bin/env python3
"""Converts a GGUF file to a Hugging Face directory: from_gguf.py FILE.gguf DIRECTORY. Needs transformers, torch and gguf from PyPI.

transformers reads the weights; they are written in bf16 if that holds all of their values, else in fp32. Vocabulary, rules,
special tokens and the chat template of a byte-level tokenizer come from the file itself: transformers 5.9 leaves out how
the file's `tokenizer.ggml.pre` splits text before it merges, and takes the first token's id for the last's. Rules that are
not known here are refused; take tokenizer.json from the published model then.
"""
import json
import pathlib
import sys

CONTROL = 3  # token type of special tokens in GGUF
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# How text is split, by tokenizer.ggml.pre. Patterns: tokenizer.json of Llama 3 and of Qwen2.
PATTERNS = {"llama-bpe": rf"{SHORT}|{WORDS}|\p{{N}}{{1,3}}|{REST}", "qwen2": rf"{SHORT}|{WORDS}|\p{{N}}|{REST}"}


def byte_level(by_words: bool) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": by_words}


def pre_tokenizer(name: str) -> dict:
    if name in ("gpt-2", "default"):
        return byte_level(True)
    if name == "smollm":
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]}
    if name in PATTERNS:
        split = {"type": "Split", "pattern": {"Regex": PATTERNS[name]}, "behavior": "Isolated", "invert": False}
        return {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}
    known = ", ".join(["gpt-2", "default", "smollm", *PATTERNS])
    raise SystemExit(f"tokenizer.ggml.pre is {name!r}, expected {known}; take tokenizer.json from the published model")


def is_byte_level(field) -> bool:
    return field("tokenizer.ggml.model") == "gpt2"


def token(field, name: str) -> str | None:
    """The text of a special token: `bos`, `eos`, `padding` or `unknown`."""
    at = field(f"tokenizer.ggml.{name}_token_id")
    return None if at is None else field("tokenizer.ggml.tokens")[at]


def first_token(field) -> dict | None:
    """The rule that puts the token of the beginning before a text, where the file asks for it."""
    text = token(field, "bos")
    if not field("tokenizer.ggml.add_bos_token") or text is None:
        return None
    parts = [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"SpecialToken": {"id": text, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    ids = [field("tokenizer.ggml.bos_token_id")]
    return {"type": "TemplateProcessing", "single": parts, "pair": [*parts, *second],
            "special_tokens": {text: {"id": text, "ids": ids, "tokens": [text]}}}


def tokenizer_json(field) -> dict:
    """tokenizer.json of a byte-level tokenizer. field(name): a value of the GGUF file, or None."""
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    special = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, kind in enumerate(types) if kind == CONTROL]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": pre_tokenizer(field("tokenizer.ggml.pre") or "default"),
        "post_processor": first_token(field), "decoder": byte_level(True) | {"add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": token(field, "unknown"),
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": field("tokenizer.ggml.pre") == "llama-bpe", "vocab": {text: i for i, text in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in field("tokenizer.ggml.merges")]},
    }


def tokenizer_config(field, longest: int) -> dict:
    named = {"bos_token": token(field, "bos"), "eos_token": token(field, "eos"), "pad_token": token(field, "padding"),
             "unk_token": token(field, "unknown"), "chat_template": field("tokenizer.chat_template")}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": bool(field("tokenizer.ggml.add_bos_token")),
            "clean_up_tokenization_spaces": False, "model_max_length": longest,
            **{key: value for key, value in named.items() if value is not None}}


def end_ids(field) -> dict:
    found = {name: field(f"tokenizer.ggml.{key}_token_id") for name, key in
             (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))}
    return {name: at for name, at in found.items() if at is not None}


def reader_of(path: pathlib.Path):
    """field(name) of the file."""
    import gguf
    fields = gguf.GGUFReader(path).fields
    return lambda name: fields[name].contents() if name in fields else None


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(field, directory: pathlib.Path, longest: int) -> None:
    write_json(directory / "tokenizer.json", tokenizer_json(field))
    write_json(directory / "tokenizer_config.json", tokenizer_config(field, longest))


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, directory = map(pathlib.Path, sys.argv[1:])
    field = reader_of(source)
    if is_byte_level(field):
        pre_tokenizer(field("tokenizer.ggml.pre") or "default")  # refuses before the weights are read
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    fits = all(torch.equal(weight.bfloat16().float(), weight) for weight in model.state_dict().values())
    model = model.to(torch.bfloat16) if fits else model
    ends = end_ids(field)
    for name, at in ends.items():
        setattr(model.config, name, at)
        setattr(model.generation_config, name, at)
    if getattr(model.config, "rms_norm_eps", None):
        model.config.rms_norm_eps = round(model.config.rms_norm_eps, 9)  # GGUF has it in fp32
    model.save_pretrained(directory)
    if is_byte_level(field):
        write_tokenizer(field, directory, model.config.max_position_embeddings)
    else:
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(directory)
    print(f"{directory}: weights in {'bf16' if fits else 'fp32'}, tokenizer of "
          f"{'the file' if is_byte_level(field) else 'transformers'}")


if __name__ == "__main__":
    main()
