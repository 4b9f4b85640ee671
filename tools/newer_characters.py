#!/usr/bin/env python3
"""Writes engine/tokenizer/newer_character_table.cpp: the characters that Unicode 15.0 to 16.0 assigned, each with an older
character of the same properties that stands in for it in regular expressions.

Needs a Python whose unicodedata has Unicode 14 (3.11) and `pip install regex==2024.11.6`, whose tables are Unicode 16.0, those of
the package `tokenizers` 0.22.

Usage: newer_characters.py > engine/tokenizer/newer_character_table.cpp
"""
import unicodedata

import regex

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
              "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs"]
SCRIPTS = ["Han", "Latin", "Cyrillic", "Greek", "Arabic", "Devanagari", "Hangul", "Hiragana", "Katakana", "Thai", "Lao", "Telugu",
           "Kannada", "Tamil", "Hebrew", "Armenian", "Georgian", "Ethiopic", "Khmer", "Mongolian", "Common", "Inherited"]
FLAGS = ["Alphabetic", "Lowercase", "Uppercase", "Ideographic", "Emoji", "Extended_Pictographic"]

HEAD = """// Written by tools/newer_characters.py; not to be edited.
#include "engine/tokenizer/newer_characters.h"

namespace ringside::engine {
namespace {

constexpr NewerCharacters kTable[] = {
"""
TAIL = """};

}  // namespace

std::span<const NewerCharacters> newer_characters() { return kTable; }

}  // namespace ringside::engine
"""


def members(name: str, text: str) -> set[str]:
    return set(regex.findall(rf"\p{{{name}}}", text))


def main() -> None:
    # Without U+FFFD, which a pattern may well name.
    old = [c for c in map(chr, range(0x80, 0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co") and c != "\ufffd"]
    unassigned = "".join(c for c in map(chr, range(0x80, 0x110000)) if unicodedata.category(c) == "Cn")
    new = [c for c in unassigned if not regex.match(r"\p{Cn}", c)]
    text = "".join(old + new)
    category = {c: name for name in CATEGORIES for c in members(name, text)}
    script = {c: name for name in SCRIPTS for c in members(f"sc={name}", text)}
    flags = {name: members(name, text) for name in FLAGS}

    def properties(c: str) -> list[tuple]:
        """From all to the least."""
        return [tuple(c in flags[name] for name in FLAGS), (c in flags["Alphabetic"],), ()]

    def kinds(c: str, scripts: list[str]) -> list[tuple]:
        """What a stand-in has in common. The bytes of UTF-8 always, so that places in a text stay."""
        return [(len(c.encode()), category[c], name, chosen) for name in scripts for chosen in properties(c)]

    stand_in: dict[tuple, str] = {}
    for c in old:
        if unicodedata.category(c) == category[c]:
            stand_in |= dict.fromkeys(kinds(c, [script.get(c, "rare"), "any"]), c)  # the last one
    def nearest(c: str) -> str:
        """Of the same properties. Patterns name ranges of the Basic Multilingual Plane: [一-龥ࠀ-一]."""
        alike = [o for o in old if len(o.encode()) == 3 and category[o] == unicodedata.category(o) == category[c]]
        for wanted in range(3):
            close = [o for o in alike if properties(o)[wanted] == properties(c)[wanted]]
            if close:
                return min(close, key=lambda o: abs(ord(o) - ord(c)))
        raise ValueError(f"U+{ord(c):04X} has no stand-in")

    ranges: list[list[str]] = []
    for c in new:
        wanted = kinds(c, [script.get(c, "rare"), "rare", "any"])
        chosen = nearest(c) if ord(c) < 0x10000 else next(stand_in[kind] for kind in wanted if kind in stand_in)
        if ranges and ord(c) == ord(ranges[-1][1]) + 1 and ranges[-1][2] == chosen:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, chosen])
    rows = "".join("    {" + ", ".join(f"0x{ord(c):04X}" for c in row) + "},\n" for row in ranges)
    print(HEAD + rows + TAIL, end="")


main()
