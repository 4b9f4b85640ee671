"""Ringside's tokenizer against the Python package `tokenizers`: same ids and same text back on random strings.

Guards against a split, merge or normalization that differs on text nobody thinks of: marks, digits of other scripts, runs of
spaces, added tokens inside words, emoji, text already decomposed. Lone ids (pieces of characters) are decoded too.

Usage: tokenizer_parity.py TOKENIZE_LINES_EXECUTABLE
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

WORDS = ["the", "The", "don't", "I'LL", "we've", "sort", "694440", "x=3.14;", "Straße", "café", "café", "naïve", "日本語", "한국어",
         "각", "עברית", "हिन्दी", "١٢٣", "Ⅷ", "½", "👩‍🚀", "🇩🇪", "e\u0301\u0323", "\u1e9b\u0323", "ﬁ", "İ", "ſ", "'ſ",
         "<|end|>", "<|end|", "[tool]", "_", "__init__", "\u200d", "\u180e", "\u0085", "\u00a0", "\u3000", "\t", "\n", "\r\n", "\n\n",
         "  ", "   ", "#!", "...", "—", "\x00", "\x7f", "𝔘𝔫𝔦", "\ufeff", "\ufffd"]


def random_text(rng: random.Random) -> str:
    pieces = []
    for _ in range(rng.randrange(0, 12)):
        if rng.random() < 0.7:
            pieces.append(rng.choice(WORDS))
        else:
            top = rng.choice([0x80, 0x250, 0x3000, 0x11000])
            code = rng.randrange(1, top)
            pieces.append(" " if unicodedata.category(chr(code)) == "Cs" else chr(code))  # surrogates are no text
        if rng.random() < 0.6:
            pieces.append(" ")
    return "".join(pieces)


def byte_level_bpe(pattern: str | None, texts: list[str], nfc: bool, ignore_merges: bool) -> Tokenizer:
    """As Qwen (one digit, NFC), Llama 3 (three digits, ignore_merges) or GPT-2 (ByteLevel's own pattern) build theirs."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(["<|end|", "<|end|>"])  # the longer one wins
    tokenizer.add_tokens([AddedToken("[tool]", normalized=True), AddedToken("caf\u00e9", normalized=True)])
    return tokenizer


def character_bpe(unk: bool) -> Tokenizer:
    """A vocabulary of characters and one pair, no splitting into words."""
    vocab = {token: i for i, token in enumerate(["<pad>", ";", "<unk>", *" 0123456789=>abcdefé", "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")], fuse_unk=unk, unk_token="<unk>" if unk else None))
    tokenizer.decoder = decoders.Fuse() if unk else None
    tokenizer.add_special_tokens([";", "<pad>"])
    return tokenizer


def word_level(pre_tokenizer) -> Tokenizer:
    words = sorted({word for text in WORDS for word in [text, *text]} | {"<unk>", "the sort"})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def unigram(texts: list[str], byte_fallback: bool, scheme: str, split: bool, nfkc: bool) -> Tokenizer:
    """As SentencePiece's converted tokenizers: trained on the texts, without their rare characters."""
    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.Replace(Regex(" {2,}"), " ")] if nfkc else []
    tokenizer.normalizer = normalizers.Sequence(([normalizers.NFKC()] if nfkc else []) + steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)
    # Without the other letters, so that some are unknown.
    known = ["".join(c for c in text if ord(c) < 0x250 or c in "日本語") for text in texts]
    tokenizer.train_from_iterator(known, trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False))
    data = json.loads(tokenizer.to_str())
    if byte_fallback:
        data["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        data["model"]["byte_fallback"] = True
        data["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    else:
        data["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    return Tokenizer.from_str(json.dumps(data))


def unigram_with_prepend(texts: list[str]) -> Tokenizer:
    tokenizer = unigram(texts, byte_fallback=True, scheme="never", split=False, nfkc=False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    tokenizer.add_special_tokens(["<|end|", "<|end|>"])
    return tokenizer


def charsmap(entries: dict[str, str]) -> bytes:
    """SentencePiece's precompiled_charsmap: a double array as Darts-clone writes it, and the replacements."""
    blob, at = bytearray(), {}
    for value in entries.values():
        if value not in at:
            at[value] = len(blob)
            blob += value.encode() + b"\0"
    root: dict = {}
    for key, value in entries.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = at[value]  # the leaf, under the byte that no key holds
    units, taken = {0: 0}, {0}
    used_offsets, first_free = set(), 1

    def place(node: dict, index: int, label: int) -> None:
        nonlocal first_free
        while first_free in taken:
            first_free += 1
        child = min(node)
        position = first_free
        while True:  # the children's places are offset ^ byte
            offset = index ^ (position ^ child)
            base = position ^ child
            if base not in used_offsets and offset < 1 << 21 and all(base ^ byte not in taken for byte in node):
                break
            position += 1
        used_offsets.add(base)
        taken.update(base ^ byte for byte in node)
        units[index] = label | (1 << 8 if 0 in node else 0) | offset << 10
        for byte, below in node.items():
            if byte == 0:
                units[base] = below | 1 << 31
            else:
                place(below, base ^ byte, byte)

    place(root, 0, 0)
    size = max(units) // 256 * 256 + 256
    trie = b"".join(units.get(index, 0).to_bytes(4, "little") for index in range(size))
    return len(trie).to_bytes(4, "little") + trie + bytes(blob)


def nfkc_map() -> dict[str, str]:
    """Like SentencePiece's nmt_nfkc for some thousand characters: NFKC, white space to a space, controls to nothing."""
    entries = {chr(code): "" for code in [*range(1, 9), *range(14, 32), 0x7f, 0x200d, 0xfeff]}
    entries |= {chr(code): " " for code in (9, 10, 12, 13, 0xa0, 0x85, 0x1680, 0x200b, 0x2028, 0x3000)}
    for code in [*range(0x80, 0x600), *range(0x1e00, 0x2200), *range(0xac00, 0xac80), *range(0xfb00, 0xfb50), 0x1d518]:
        plain = unicodedata.normalize("NFKC", chr(code))
        if plain != chr(code) and chr(code) not in entries:
            entries[chr(code)] = plain
        apart = unicodedata.normalize("NFD", chr(code))
        if len(apart) > 1:
            entries[apart] = unicodedata.normalize("NFC", apart)
    return entries


def sentencepiece(texts: list[str]) -> Tokenizer:
    """As transformers converts T5 and XLM-RoBERTa."""
    tokenizer = unigram(texts, byte_fallback=False, scheme="always", split=True, nfkc=False)
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(charsmap(nfkc_map())), normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "▁")])
    return tokenizer


def spelled_bpe(texts: list[str], legacy: bool, all_bytes: bool = True) -> Tokenizer:
    """As transformers converts Llama 2 (legacy) and Mistral: characters and byte pieces, without splitting into words."""
    known = ["".join(c for c in text if ord(c) < 0x250 or c in "日本語").replace(" ", "▁") for text in texts]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("(?<!▁)(?=▁)"), "isolated")
    trained.train_from_iterator(known, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if all_bytes or byte % 5]
    vocab = {token: i for i, token in enumerate(names + [token for token in model["vocab"] if token not in names])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=legacy)])
    return tokenizer


def cases(texts: list[str]) -> dict[str, Tokenizer]:
    return {
        "qwen": byte_level_bpe(QWEN, texts, nfc=True, ignore_merges=False),
        "llama3": byte_level_bpe(LLAMA3, texts, nfc=False, ignore_merges=True),
        "gpt2": byte_level_bpe(None, texts, nfc=False, ignore_merges=False),
        "unigram": unigram(texts, byte_fallback=False, scheme="always", split=True, nfkc=True),
        "unigram, bytes": unigram(texts, byte_fallback=True, scheme="first", split=True, nfkc=False),
        "unigram, whole text": unigram(texts, byte_fallback=False, scheme="never", split=False, nfkc=False),
        "unigram, Prepend": unigram_with_prepend(texts),
        "sentencepiece": sentencepiece(texts),
        "Llama 2": spelled_bpe(texts, legacy=True),
        "Mistral": spelled_bpe(texts, legacy=False),
        "bytes that lack some": spelled_bpe(texts, legacy=False, all_bytes=False),
        "characters": character_bpe(unk=False),
        "characters with unk": character_bpe(unk=True),
        "words, Whitespace": word_level(pre_tokenizers.Whitespace()),
        "words, WhitespaceSplit": word_level(pre_tokenizers.WhitespaceSplit()),
        "words, Split on nothing": word_level(pre_tokenizers.Split("", "isolated")),
        "words, Split removed": word_level(pre_tokenizers.Split(" ", "removed")),
        "words, Digits": word_level(pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)])),
    }


def run(executable: str, file: pathlib.Path, lines: list) -> list[dict]:
    done = subprocess.run([executable, file], input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, f"{file}: {done.stderr}"
    answers = [json.loads(line) for line in done.stdout.split("\n")[:-1]]  # splitlines() would cut at U+0085
    assert len(answers) == len(lines)
    return answers


def check(executable: str, file: pathlib.Path, name: str, theirs: Tokenizer, texts: list[str], rng: random.Random) -> None:
    theirs.save(str(file))
    lone_ids = [[rng.randrange(theirs.get_vocab_size() + 3) for _ in range(rng.randrange(6))] for _ in texts]
    for line, ours in zip(texts + lone_ids, run(executable, file, texts + lone_ids)):
        ids = line if isinstance(line, list) else theirs.encode(line, add_special_tokens=False).ids
        assert ours["ids"] == ids, f"{name}: {line!r}: {ours['ids']} instead of {ids}"
        for skip, key in ((False, "text"), (True, "text_skip")):
            back = theirs.decode(ids, skip_special_tokens=skip)
            assert ours[key] == back, f"{name}: {line!r} comes back as {ours[key]!r} instead of {back!r}"
        assert ours["vocab_size"] == theirs.get_vocab_size()
    print(f"{name}: {len(texts)} texts and {len(lone_ids)} lists of ids equal")


def main() -> None:
    executable = sys.argv[1]
    rng = random.Random(1)
    texts = [random_text(rng) for _ in range(3000)]
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in cases(texts[:500]).items():
            check(executable, pathlib.Path(folder) / "tokenizer.json", name, tokenizer, texts, rng)


if __name__ == "__main__":
    main()
