"""Published chat templates of many families: our rendering against transformers' apply_chat_template, text and ids; and the
gateway's turns, whose recorded tokens and what is new must read as the whole rendering does.

Guards: an environment, special tokens or options that differ from those templates are written for, a turn that continues
tokens which the template renders in another way, and one that begins anew although it need not.

The templates are those that TRL's package has (trl/chat_templates), and the *.jinja of folders named as arguments, as
llama.cpp's models/templates. Conversations are made from a seed: with and without system message, tools, several turns, calls
of tools and their results, reasoning, Unicode, empty texts. Where a template reads options, half of them are rendered with.

usage: chat_templates.py CHAT_TEXTS_EXECUTABLE [--conversations 500] [--only NAME ...] [FOLDER ...]
"""

import argparse
import datetime
import importlib.util
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from jinja2 import meta
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

# Options of published templates, and a value that changes something.
OPTIONS = {"enable_thinking": False, "thinking": True, "reasoning_effort": "high", "thinking_budget": 512,
           "model_identity": "You are a test.", "date_string": "1 Jan 2025", "preserve_thinking": True, "clear_thinking": False,
           "force_thinking": True, "tools_in_user_message": False, "builtin_tools": ["browser"], "keep_past_thinking": True,
           "truncate_history_thinking": False, "low_effort": True}
MARKER = re.compile(r"<[|｜]?[A-Za-z_:/▁ ]{1,40}[|｜]?>|\[e~\[|\]~!?b\[|<\|?[a-z_]+\|>|\[/?[A-Z_]{2,20}\]|<[a-z_]+>")
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = ["Hello!", "What is 2 + 2?", "  spaces around  ", "\n\nline\n\n  line\n", "Grüße aus Köln – 今日は晴れ 👩‍🚀", "", " ", "a < b && c > d",
         "{\"a\": [1, 2]}", "{{ not_a_variable }} {% if x %}", "```python\nx = 1\n```", "\"quoted\" 'single' \\ back", "0", "tab\tand\r\nreturn",
         "<b>&amp;</b>", "x" * 200, "I'll look. They've gone; it's fine.", "العربية עברית", "\u2028 line separator \u00a0", "None", "[TOOL", "<|im"]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a <city> & \"more\"", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. Köln"},
                                         "days": {"type": "integer", "description": "", "default": 1},
                                         "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "edit", "description": "Edits lines.\nOf a file.", "parameters": {
        "type": "object", "properties": {"lines": {"type": "array", "items": {"type": "integer"}},
                                         "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
                                         "either": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": []}}},
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"get_weather": [{"city": "Köln"}, {"city": "東京 \"x\"", "days": 3}, {"city": "", "unit": "F", "days": 0}],
             "edit": [{"lines": [1, 2, 3], "options": {"deep": True}, "either": None}, {"lines": []}, {"either": "a\nb</tool_call>"}],
             "now": [{}]}


def conversation(rng):
    """(messages, tools) as clients send them; content is always a text."""
    chance, text = (lambda share: rng.random() < share), (lambda: rng.choice(TEXTS))
    tools = rng.sample(TOOLS, rng.randint(1, 3)) if chance(0.5) else None
    messages = [{"role": "system", "content": text()}] if chance(0.5) else []
    calls = 0
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": text()})
        while tools and chance(0.5):
            message = {"role": "assistant", "content": text() if chance(0.4) else ""}
            if chance(0.4):
                message["reasoning_content"] = text()
            asked = [rng.choice(tools)["function"]["name"] for _ in range(rng.choice([1, 1, 1, 2]))]
            message["tool_calls"] = []
            for name in asked:
                calls += 1
                message["tool_calls"].append({"id": f"call{calls:05}", "type": "function", "function": {
                    "name": name, "arguments": rng.choice(ARGUMENTS[name])}})
            messages.append(message)
            messages += [{"role": "tool", "content": text(), "tool_call_id": call["id"], "name": call["function"]["name"]}
                         for call in message["tool_calls"]]
        message = {"role": "assistant", "content": text()}
        if chance(0.4):
            message["reasoning_content"] = text()
        messages.append(message)
    if chance(0.5):
        messages.pop()
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": text()})
    return messages, tools


def write_model(path, template):
    """A byte-level tokenizer in which the template's markers are tokens."""
    path.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([template, *TEXTS] * 3, trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    markers = sorted(set(MARKER.findall(template)) | {"<bos>", "<eos>"})
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(template)
    (path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": {"content": "<eos>", "__type": "AddedToken"},
        "unk_token": "<bos>", "pad_token": "<eos>"}))


def ours(executable, path, chats, options, form):
    lines = "".join(json.dumps({"messages": messages, "tools": tools}) + "\n" for messages, tools in chats)
    done = subprocess.run([executable, path, json.dumps(options) if options else "", form], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(chats), (len(answers), len(chats))
    return answers


class Theirs:
    """transformers' renderings; None with the error's text where the template refuses."""

    def __init__(self, path, options):
        self.tokenizer, self.options = AutoTokenizer.from_pretrained(path), options

    def render(self, messages, tools, prompt=True):
        try:
            return self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False,
                                                      **self.options), None
        except Exception as error:  # of any kind: the template's
            return None, str(error)

    def ids(self, messages, tools):
        return self.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False, **self.options)


def check_prompts(name, theirs, chats, answers, counts):
    for (messages, tools), mine in zip(chats, answers):
        text, error = theirs.render(messages, tools)
        if text is None:
            assert error in mine.get("error", ""), (name, messages, error, mine)
            counts["refused"] += 1
            continue
        assert mine.get("text") == text, (name, messages, tools, mine, text)
        assert mine["ids"] == theirs.ids(messages, tools), (name, messages)
        counts["equal"] += 1


def check_turns(name, theirs, chats, answers, counts):
    for (messages, tools), mine in zip(chats, answers):
        if "error" in mine:
            assert any(theirs.render(messages[:i], tools, prompt)[0] is None
                       for i in range(1, len(messages) + 1) for prompt in (True, False)), (name, messages, mine)
            counts["conversations without turns"] += 1
            continue
        places = [i for i in range(1, len(messages)) if messages[i]["role"] == "assistant"]
        assert len(places) == len(mine)
        recorded = []  # renderings of what was sampled so far, as a whole
        for count, (i, turn) in enumerate(zip(places, mine)):
            prompt, _ = theirs.render(messages[:i], tools)
            assert turn["text"] == prompt == turn["decoded"], (name, messages[:i], turn, prompt)
            continues = any(prompt.startswith(before) for before in recorded)
            assert turn["continues"] == continues, (name, messages[:i], turn, recorded)
            if count > 0:
                counts["turns that continue" if continues else "turns that begin anew"] += 1
            through, _ = theirs.render(messages[: i + 1], tools, prompt=False)
            assert through.startswith(turn["written"]), (name, messages[:i], turn, through)
            if turn["written"] == prompt:
                pass  # an empty reply without a marker that ends it: nothing is sampled, nothing recorded
            elif turn["written"] and messages[i].get("reasoning_content", "").strip() in turn["written"][len(prompt):]:
                recorded.append(turn["written"])
            else:
                counts["replies in another form"] += 1


def options_of(template):
    """What the template reads of OPTIONS."""
    parse = getattr(_compile_jinja_template, "__wrapped__", _compile_jinja_template)
    read = meta.find_undeclared_variables(parse(template).environment.parse(template))
    return {key: value for key, value in OPTIONS.items() if key in read}


def check(executable, folder, name, template, count):
    path = pathlib.Path(folder) / name
    write_model(path, template)
    rng = random.Random(f"{name} 2026")
    chats = [conversation(rng) for _ in range(count)]
    options = options_of(template)
    counts = dict.fromkeys(["equal", "refused", "turns that continue", "turns that begin anew", "replies in another form",
                            "conversations without turns"], 0)
    runs = [({}, chats[count // 2:] if options else chats)] + ([(options, chats[: count // 2])] if options else [])
    for chosen, some in runs:
        theirs = Theirs(path, chosen)
        check_prompts(name, theirs, some, ours(executable, path, some, chosen, "prompt"), counts)
        check_turns(name, theirs, some, ours(executable, path, some, chosen, "turns"), counts)
    print(f"{name}: {counts}, options {sorted(options)}", flush=True)
    return counts


def checked(executable, folder, name, template, count):
    """check()'s counts; None after the difference was printed."""
    day = datetime.date.today()
    try:
        return check(executable, folder, name, template, count)
    except AssertionError as difference:
        if datetime.date.today() != day:  # the two have rendered different dates
            return checked(executable, folder, name + "-again", template, count)
        print(f"{name}: FAILED: {difference}", flush=True)
        return None


def templates_of(folders):
    trl = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    found = {}
    for folder in [trl, *map(pathlib.Path, folders)]:
        for file in sorted(folder.rglob("*.jinja")):
            if not file.stem.endswith("_training"):  # TRL's own changes
                found.setdefault(re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem), file.read_text())
    return found


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("executable")
    arguments.add_argument("--conversations", type=int, default=500)
    arguments.add_argument("--only", nargs="*", default=[])
    arguments.add_argument("folders", nargs="*")
    chosen = arguments.parse_args()
    templates = {name: text for name, text in templates_of(chosen.folders).items() if not chosen.only or name in chosen.only}
    assert templates and set(chosen.only) <= set(templates), sorted(templates)
    totals, stable, failed = {}, 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name, template in templates.items():
            counts = checked(chosen.executable, folder, name, template, chosen.conversations)
            if counts is None:
                failed.append(name)
                continue
            stable += counts["turns that begin anew"] == 0 and counts["replies in another form"] == 0
            for key, value in counts.items():
                totals[key] = totals.get(key, 0) + value
    print(f"{len(templates)} templates, {stable} of them without a turn that begins anew: {totals}; failed: {failed}")
    assert not failed and totals["equal"] > totals["refused"]


if __name__ == "__main__":
    sys.exit(main())
