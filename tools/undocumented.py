"""Lists the functions of public headers that no comment describes.

Usage: tools/undocumented.py [FOLDER ...]      default: sp engine rl rollout_bridge tools
Exits 0 when there are none, 1 when there are some, 2 when a folder has no header.

A comment covers the declarations that follow it without a blank line. Left out: private members, overrides,
destructors, comparison, assignment and move, deleted and defaulted functions, and one-line accessors.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULT = ["sp", "engine", "rl", "rollout_bridge", "tools"]
TRIVIAL = re.compile(r"=\s*(delete|default)\s*;|\boverride\b|\bfinal\b\s*[;{]|~\w+\s*\(|operator\s*[=!<>]=|operator\s*=|static_assert|"
                     r"\busing\b|MSGPACK_DEFINE|(?P<moved>\w+)\((?P=moved)&&\)|make_define_map")
ACCESSOR = re.compile(r"^[\w:<>,&*\s\[\]]+\s\**&?\w+\(\)\s*(const)?\s*(noexcept)?\s*\{\s*return\s[^;]*;\s*\}$")
KEYWORDS = ("if", "for", "while", "switch", "return", "else", "do", "catch", "throw", "TORCH_CHECK")


def declarations(lines: list[str]):
    """(first line, text, whether a comment covers it, whether it is private) of each declaration at namespace or class scope."""
    scopes: list[list] = []  # [kind, access]
    covered, start, text = False, None, ""
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not text:
            if not line:
                covered = False
                continue
            if line.startswith("//"):
                covered = True
                continue
            if line.startswith("#") or line.startswith("template") and line.endswith(">"):
                continue
            if re.match(r"(public|private|protected):$", line):
                scopes[-1][1] = line[:-1]
                covered = False
                continue
            start = number
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        trailing = "//" in code
        text += " " + code.split("//")[0].strip()
        while True:
            opened = text.count("{") - text.count("}")
            inside = bool(scopes) and scopes[-1][0] == "body"
            if opened == 0 and text.rstrip().endswith((";", "}")) and "(" in text and not inside:
                yield start, text.strip(), covered or trailing, bool(scopes) and any(s[1] == "private" for s in scopes)
                text = ""
            elif opened > 0 and text.rstrip().endswith("{"):
                head = text.split("{")[0]
                kind = ("namespace" if "namespace" in head else
                        "class" if re.search(r"\b(class|struct|union)\b", head) and "(" not in head else
                        "enum" if re.search(r"\benum\b", head) else "body")
                if kind in ("body", "enum"):
                    break  # until it closes
                scopes.append([kind, "private" if re.search(r"\bclass\b", head) else "public"])
                text, covered = "", False
            elif opened < 0 and scopes:
                scopes.pop()
                text, covered = "", False
            elif opened == 0 and text.rstrip().endswith((";", "}", ":")):
                text = ""
            break


def undocumented(file: pathlib.Path) -> list[tuple[int, str]]:
    found = []
    for number, text, covered, private in declarations(file.read_text().split("\n")):
        name = re.search(r"([~\w]+|operator\(\))\s*\(", text)
        if covered or private or name is None or name.group(1) in KEYWORDS or TRIVIAL.search(text) or ACCESSOR.match(text):
            continue
        if re.match(r"(static\s+)?(inline\s+)?constexpr\s+[\w:<>]+\s+k[A-Z]\w*", text) or re.match(r"(struct|class|enum|friend)\b", text):
            continue
        if "=" in text.split("(")[0] or re.match(r"^std::function<", text):
            continue
        found.append((number, re.sub(r"\s+", " ", text)[:140]))
    return found


def headers_of(folder: str) -> list[pathlib.Path]:
    return sorted(file for suffix in ("h", "cuh") for file in (ROOT / folder).rglob(f"*.{suffix}"))


def main() -> int:
    headers, count = 0, 0
    for folder in sys.argv[1:] or DEFAULT:
        files = headers_of(folder)
        if not files:
            print(f"undocumented: error: no header in the folder '{folder}'", file=sys.stderr)
            return 2
        headers += len(files)
        for file in files:
            for number, text in undocumented(file):
                print(f"{file.relative_to(ROOT)}:{number}: {text}")
                count += 1
    print(f"{count} functions without a comment in {headers} headers")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
