"""The pipelines of published tokenizers, on small vocabularies made here, against the Python package `tokenizers`.

Guards against a component or an option that a published tokenizer.json has and that is read differently: ids, text back and the
special tokens around a text, on 200 odd lines each (code, CJK, emoji, right to left, control characters, odd spaces, combining marks,
characters of Unicode 15 and 16, added tokens inside words). Source of the pipelines: the published tokenizer.json of each name.

Usage: tokenizer_pipelines.py TOKENIZE_LINES_EXECUTABLE
"""
import base64
import json
import pathlib
import sys
import tempfile

from tokenizer_parity import charsmap, nfkc_map, run
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CL100K_OWN = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{SHORT}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = O200K.replace(SHORT + "?", "").replace("{1,3}", "")
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{SHORT}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{SHORT}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"

FRAGMENTS = [
    "def f(x):\n\treturn x**2  # square", "for (int i = 0; i < 10; ++i) { a[i] += 1; }", "SELECT * FROM t WHERE id=42;", "#include <vector>\r\n",
    "x = {'a': [1, 2, 3]}", "https://example.org/a?b=c&d=%20", "I'LL don't we've You'RE it's", "3.14159e-10 1234567 ½ Ⅷ ١٢٣ 12,345",
    "日本語のテキスト、東京。", "你好，世界！〇一二三々", "한국어 텍스트 각", "ｆｕｌｌｗｉｄｔｈ　ＡＢＣ", "𠀀𪛖 漢字 𰀀", "👩‍🚀 🇩🇪 👍🏽 🫠", "❤️‍🔥⚡️",
    "שלום עולם", "مرحبا بالعالم ٣", "עברית and English \u200fmixed\u200e", "e\u0301\u0323 a\u030a n\u0303", "\u1e9b\u0323 ﬁ ﬆ Å \u212b",
    "İstanbul ıI ſ 'ſ", "Straße STRASSE ẞ", "हिन्दी भाषा", "ไทยภาษา", "Ελληνικά ΣΑΣ ς", "Привет, мир", "\x00\x01\x02\x7f", "\x1b[31mred\x1b[0m",
    "a\u0085b\u00a0c\u1680d\u2003e\u2028f\u2029g\u202fh\u205fi\u3000j", "\u180e\u200b\u200c\u200d\u2060\ufeff", "  two   three    four ", "\t\ttabs\t \t",
    "\n\n\nlines\n \n  \n", "a\r\nb\rc\n", "   ", " ", "trailing  \n", "x  \n\n y \n", "<|end|>word<|end|>", "in<|end|>side <|end|", " <mask> , <mask>\n",
    "word<mask>word", "[tool] [tool]x x[tool] _[tool]_", "<s> </s>   <unk>", "🫨🪿🫩", "\U00031350\U000323af\U0002ebf0", "\U00010d50\U00010d70\U0001cc00",
    "\ua7cb\ua7da\u1c89\u0897", "\U00011bf0\U00011bf9 \U00010d40", "$€₿ ≠ ∑ ± ×", "“quotes” ‘single’ «guillemets»", "…—–- ¿¡", "a_b__c ___ __init__",
    "((([[[{{{}}}]]])))", "!!!???...,,,", "'s 'S 't", "\ud7ff\ue000\ufffd", "CamelCaseWord HTTPServer2Go", "ǅ ǈ ʰ ª º", "\u0600\u0601 ۔، ।",
]
SEPARATORS = ["", " ", "  ", "\n", " \n", "<|end|>", "'s "]


def odd_lines() -> list[str]:
    lines = ["", *FRAGMENTS]
    for step in range(1, 4):
        for i, fragment in enumerate(FRAGMENTS):
            lines.append(fragment + SEPARATORS[(i + step) % len(SEPARATORS)] + FRAGMENTS[(i * 7 + 13 * step) % len(FRAGMENTS)])
    return lines[:200]


def split(pattern: str, behavior: str = "Isolated", invert: bool = False, kind: str = "Regex") -> dict:
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def replace(old: str, new: str, kind: str = "String") -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(key: str, *steps: dict) -> dict:
    return {"type": "Sequence", key: list(steps)}


def byte_level(use_regex: bool = False, prefix: bool = False) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def words(*steps: dict) -> dict:
    return sequence("pretokenizers", *steps, byte_level())


def template(before: list[str], after: list[str], ids: dict[str, int]) -> dict:
    def special(name: str) -> dict:
        return {"SpecialToken": {"id": name, "type_id": 0}}
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [*map(special, before), *text, *map(special, after)]
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in {*before, *after}}}


DIGITS = {"type": "Digits", "individual_digits": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPELLED_DECODER = sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"})
CLIP_NORMALIZER = sequence("normalizers", {"type": "NFC"}, replace(r"\s+", " ", "Regex"), {"type": "Lowercase"})

# Pipelines of byte-level vocabularies: normalizer, pre_tokenizer.
BYTE_LEVEL = {
    "GPT-2, phi-2, Whisper": (None, byte_level(use_regex=True)),
    "cl100k: Phi-4, OLMo 2, GLM-4.5": (None, words(split(CL100K))),
    "cl100k as tiktoken writes it": (None, words(split(CL100K_OWN))),
    "Llama 3": (None, words(split(CL100K))),
    "Claude 2": ({"type": "NFKC"}, byte_level(use_regex=True)),
    "DeepSeek-Coder": (None, words(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS)),
    "DeepSeek-LLM": (None, words(split("[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿΑ-ωа-я]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                                 split(r"\s+$"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS)),
    "DeepSeek-V3": (None, words(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3))),
    "gpt-oss (o200k)": (None, words(split(O200K))),
    "Mistral Nemo (tekken)": (None, words(split(TEKKEN))),
    "Kimi K2": (None, words(split(KIMI))),
    "BLOOM": (None, words(split(BLOOM))),
    "Qwen2.5, Qwen3": ({"type": "NFC"}, words(split(QWEN))),
    "Qwen3.5": ({"type": "NFC"}, words(split(QWEN35))),
    "SmolLM2": (None, sequence("pretokenizers", DIGITS, byte_level(use_regex=True))),
    "Falcon": (None, sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(use_regex=True),
                              {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
    "CLIP's words": (CLIP_NORMALIZER, sequence("pretokenizers", split(CLIP, "Removed", invert=True), byte_level())),
    "RoBERTa": (None, byte_level(use_regex=True)),
}
# Pipelines of SentencePiece's vocabularies of BPE.
SPELLED = {
    "Gemma": (replace(" ", "▁"), split(" ", "MergedWithPrevious", kind="String")),
    "ChatGLM": (sequence("normalizers", replace("\t", "<|tab|>"), replace(" ", "▁")), split("▁", "MergedWithNext", kind="String")),
    "Llama 2, Phi-3": (sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), None),
    "Mistral 7B v0.3": (None, METASPACE | {"prepend_scheme": "first", "split": False}),
    "Yi": (sequence("normalizers", replace(" ", "▁")), None),
    "a contiguous split": (replace(" ", "▁"), split("▁", "Contiguous", kind="String")),
    "splits with invert": (None, sequence("pretokenizers", split(r"\w+", "MergedWithPrevious", invert=True),
                                          split(r"\p{Lu}", "MergedWithNext", invert=True))),
    "a split that keeps white space": (None, split(r"\s", "Contiguous")),
}
SPECIAL = ["<unk>", "<s>", "</s>"]
ADDED = [AddedToken("<|end|>", special=True, normalized=False), AddedToken("</s>", special=True, normalized=False, rstrip=True),
         AddedToken("<mask>", special=True, normalized=False, lstrip=True), AddedToken("[tool]", single_word=True, normalized=True)]


def with_pipeline(model: Tokenizer, normalizer, pre_tokenizer, decoder, post_processor) -> Tokenizer:
    data = json.loads(model.to_str())
    data |= {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}
    # Set where a fine-tune was saved after a training with truncation; transformers resets both at each call.
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_tokens(ADDED)
    data = json.loads(tokenizer.to_str())
    data["post_processor"] = post_processor({name: tokenizer.token_to_id(name) for name in ["<s>", "</s>"]})
    return Tokenizer.from_str(json.dumps(data))


def byte_level_case(name: str, lines: list[str]) -> Tokenizer:
    normalizer, pre_tokenizer = BYTE_LEVEL[name]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False,
                                                           initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    def post_processor(ids: dict[str, int]):
        if name == "RoBERTa":
            return {"type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]], "trim_offsets": True,
                    "add_prefix_space": False}
        if name == "Llama 3":
            return sequence("processors", byte_level(), template(["<s>"], [], ids))
        return byte_level() if name.startswith("Qwen") else None
    return with_pipeline(trained, normalizer, pre_tokenizer, byte_level(), post_processor)


def spelled_case(name: str, lines: list[str]) -> Tokenizer:
    normalizer, pre_tokenizer = SPELLED[name]
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator([line.replace(" ", "▁") for line in lines], trainers.BpeTrainer(vocab_size=700, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    known = [token for token in model["vocab"] if len(token) > 1 or ord(token) < 0x3000]  # the others are spelled by bytes
    names = dict.fromkeys([*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *known])
    merges = [tuple(pair) for pair in model["merges"] if pair[0] in names and pair[1] in names and "".join(pair) in names]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(names)}, merges=merges, unk_token="<unk>", fuse_unk=True,
                               byte_fallback=True))
    return with_pipeline(bpe, normalizer, pre_tokenizer, SPELLED_DECODER, lambda ids: template(["<s>"], [], ids))


def unigram_case(lines: list[str]) -> Tokenizer:
    """T5: a Precompiled map, WhitespaceSplit, Metaspace; old files have no type of the model."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>",
                                                                 show_progress=False))
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(nfkc_map())).decode()}
    return with_pipeline(tokenizer, normalizer, sequence("pretokenizers", {"type": "WhitespaceSplit"}, METASPACE),
                         METASPACE, lambda ids: template([], ["</s>"], ids))


def cases(lines: list[str]) -> dict[str, Tokenizer]:
    made = {name: byte_level_case(name, lines) for name in BYTE_LEVEL}
    made |= {name: spelled_case(name, lines) for name in SPELLED}
    return made | {"T5": unigram_case(lines)}


def check(executable: str, file: pathlib.Path, name: str, theirs: Tokenizer, lines: list[str]) -> None:
    data = json.loads(theirs.to_str())
    if name == "T5":
        del data["model"]["type"]
    file.write_text(json.dumps(data))
    theirs.no_truncation()
    for line, ours in zip(lines, run(executable, file, lines)):
        ids = theirs.encode(line, add_special_tokens=False).ids
        assert ours["ids"] == ids, f"{name}: {line!r}: {ours['ids']} instead of {ids}"
        around = theirs.encode(line).ids
        assert ours["before"] + ids + ours["after"] == around, f"{name}: {line!r}: {ours} instead of {around}"
        back = theirs.decode(ids, skip_special_tokens=False)
        assert ours["text"] == back, f"{name}: {line!r} comes back as {ours['text']!r} instead of {back!r}"
    print(f"{name}: {len(lines)} lines equal")


def main() -> None:
    lines = odd_lines()
    assert len(lines) == 200
    made = cases(lines)
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in made.items():
            check(sys.argv[1], pathlib.Path(folder) / "tokenizer.json", name, tokenizer, lines)
    print(f"{len(made)} pipelines equal")


main()
