"""The model's own chat template as our helper renders it, against transformers' apply_chat_template: text, token ids, and the
assistant's tokens of templates with {% generation %} marks.

Guards: an environment (sandbox, trimming, filters, special tokens, tools) that differs from the one templates are written for.

usage: chat_template_oracle.py CHAT_TEXTS_EXECUTABLE
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from chat_oracle import train_tokenizer
from transformers import AutoTokenizer

TEMPLATES = pathlib.Path(__file__).resolve().parents[1] / "goldens" / "chat_templates"
OPTIONS = {"qwen3": {"enable_thinking": False}}
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WEATHER = [{"type": "function", "function": {"name": "weather", "description": "Weather of a <city> & \"more\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, **arguments):
    return turn("assistant", "", tool_calls=[{"type": "function", "id": "a1b2c3d4e", "function": {"name": name, "arguments": arguments}}])


def conversations():
    """20 conversations, each with its tools."""
    user, bot, system = (lambda text: turn("user", text)), (lambda text: turn("assistant", text)), (lambda text: turn("system", text))
    plain = [
        [user("hi")],
        [user("  leading and trailing space \n")],
        [user("line\n\nline"), bot("yes"), user("and?")],
        [system("You are terse."), user("hi")],
        [system("  be kind "), user("a"), bot("b"), user("c"), bot("d"), user("e")],
        [user("grün 日本語 👩‍🚀 <b>&amp;</b> \"quoted\" 'single'")],
        [user("{{ not_a_variable }} {% if x %}")],
        [user("2+2?"), bot("<think>\nfour\n</think>\n\n4"), user("3+3?")],
        [user("2+2?"), bot("<think>\nfour\n</think>\n\n4"), user("3+3?"), bot("<think>\nsix\n</think>\n\n6"), user("x")],
        [user("a" * 500)],
        [user("<|im_end|> inside")],
        [user("\t tab \r\n")],
        [user("")],
        [user("one"), bot(""), user("two")],
        [system("s"), user("1"), bot(" 2 "), user("3")],
    ]
    tool = turn("tool", "{\"degrees\": 21}", name="weather", tool_call_id="a1b2c3d4e")
    with_tools = [
        [user("weather in Ulm?")],
        [system("Use tools."), user("weather in Ulm?")],
        [user("weather?"), call("weather", city="Köln", days=2), tool],
        [user("weather?"), call("weather", city="Ulm"), tool, bot("21 degrees"), user("thanks")],
        [system("s"), user("weather?"), call("weather", city="Ulm"), tool, bot("It is 21."), user("and in Rom?")],
    ]
    return [(messages, None) for messages in plain] + [(messages, WEATHER) for messages in with_tools]


def model_directory(folder, name, template):
    path = pathlib.Path(folder) / name
    path.mkdir()
    train_tokenizer(str(path))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": {"content": "<|begin_of_text|>", "__type": "AddedToken"},
              "eos_token": "<|im_end|>"}
    if name == "qwen3":  # the newer place
        (path / "chat_template.jinja").write_text(template)
    else:
        config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def ours(executable, path, chats, options, prompt):
    lines = "".join(json.dumps({"messages": messages, "tools": tools}) + "\n" for messages, tools in chats)
    done = subprocess.run([executable, path, json.dumps(options) if options else "", "prompt" if prompt else "whole"],
                          input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(chats)
    return answers


def check(executable, folder, name, template):
    path = model_directory(folder, name, template)
    tokenizer = AutoTokenizer.from_pretrained(path)
    options = OPTIONS.get(name, {})
    refused = 0
    for (messages, tools), mine in zip(conversations(), ours(executable, path, conversations(), options, True)):
        try:
            text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False, **options)
        except Exception as error:
            assert str(error) in mine.get("error", ""), (name, messages, str(error), mine)
            refused += 1
            continue
        assert mine.get("text") == text, (name, messages, mine, text)
        ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False, **options)
        assert mine["ids"] == ids, (name, messages)
    print(f"{name}: {len(conversations())} conversations equal, {refused} of them refused by both")
    assert refused < 8, refused


def check_masks(executable, folder):
    """With marks the assistant's tokens are transformers' mask; without them the same template gives the same tokens."""
    chats = [chat for chat in conversations() if chat[1] is None and chat[0][-1]["role"] == "user"]
    chats = [(messages + [turn("assistant", "\n\nlast grün")], None) for messages, _ in chats]
    bare = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    for name, template in (("marked", MARKED), ("unmarked", bare)):
        path = model_directory(folder, name, template)
        tokenizer = AutoTokenizer.from_pretrained(path)
        for (messages, _), mine in zip(chats, ours(executable, path, chats, {}, False)):
            theirs = tokenizer.apply_chat_template(messages, chat_template=MARKED, return_assistant_tokens_mask=True, return_dict=True)
            assert mine["ids"] == theirs["input_ids"], (name, messages, mine)
            mask = [bool(m) for m in theirs["assistant_masks"]]
            assert mine["learned"] == mask, (name, messages, mine["learned"], mask)
        print(f"{name}: {len(chats)} masks equal")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(TEMPLATES.glob("*.jinja")):
            check(sys.argv[1], folder, file.stem, file.read_text())
        check_masks(sys.argv[1], folder)


if __name__ == "__main__":
    main()
