"""What the documents promise: links that lead somewhere, keys that exist, examples that run.

A fenced block after the line <!-- test: run --> is executed as a shell script, in a folder that looks like the checkout
and is thrown away. One after <!-- test: recipe --> is a recipe: it must pass a dry run.

Usage: documents_test.py RINGSIDE. Standard library only.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
RINGSIDE = pathlib.Path(sys.argv.pop(1)).resolve()
MARKED = re.compile(r"^<!-- test: (\w+) -->\n+```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SECTIONS = "model|data|rollout|algorithm|optimizer|lora|train|parallel|sp|bridge|weights|checkpoint|log|eval"
KEY = re.compile(rf"`((?:{SECTIONS})\.[a-z_0-9]+(?:\.[a-z_0-9]+)*)[`:=]")
FILES = (".json", ".jsonl", ".yaml", ".md", ".py", ".cpp", ".h", ".sh", ".safetensors", ".txt")


def documents() -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                            stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).exists()] or sorted(ROOT.glob("[!.]*/**/*.md"))


def anchor(heading: str) -> str:
    """As GitHub makes them: lower case, blanks to hyphens, punctuation dropped."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)}


def broken_links(page: pathlib.Path) -> list[str]:
    found = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, part = urllib.parse.unquote(target).partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            found.append(f"{page.relative_to(ROOT)}: {target} does not exist")
        elif part and file.suffix == ".md" and part not in anchors(file.read_text()):
            found.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    return found


class Documents(unittest.TestCase):
    def test_relative_links_lead_to_files_and_headings(self):
        pages = documents()
        self.assertGreater(len(pages), 20)
        self.assertEqual([line for page in pages for line in broken_links(page)], [])

    def test_a_broken_link_is_found(self):
        with tempfile.TemporaryDirectory(dir=ROOT / "tests" / "recipes") as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("# A `b` c\n[x](page.md#a-b-c) [y](page.md#d) [z](nothing.md) [w](http://e.x/)\n")
            self.assertEqual([line.split(": ", 1)[1] for line in broken_links(page)],
                             ["page.md#d: no such heading", "nothing.md does not exist"])

    def test_keys_that_are_named_exist(self):
        text = subprocess.run([RINGSIDE, "check", "--defaults"], stdout=subprocess.PIPE, text=True, check=True).stdout
        keys, path = set(), []
        for line in text.splitlines():
            if match := re.match(r"( *)([a-z_0-9]+):", line):
                path = path[:len(match.group(1)) // 2] + [match.group(2)]
                keys.add(".".join(path))
        self.assertIn("rollout.reward_options.http_url", keys)
        named = {(str(page.relative_to(ROOT)), key) for page in documents() for key in KEY.findall(page.read_text())
                 if not key.endswith(FILES)}
        self.assertGreater(len(named), 100)
        self.assertEqual({(page, key) for page, key in named if key not in keys}, set())

    def test_marked_examples_run(self):
        done = 0
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for entry in ("recipes", "configs", "tools", "tests", "rollout_bridge"):
                (folder / entry).symlink_to(ROOT / entry)
            (folder / "build").mkdir()
            (folder / "build" / "ringside").symlink_to(RINGSIDE)
            for page in documents():
                for kind, block in MARKED.findall(page.read_text()):
                    done += 1
                    with self.subTest(page=str(page.relative_to(ROOT)), block=block):
                        self.execute(kind, block, folder)
        self.assertGreater(done, 2)

    def execute(self, kind: str, block: str, folder: pathlib.Path):
        self.assertIn(kind, ("run", "recipe"))
        script = block
        if kind == "recipe":
            (folder / "example.yaml").write_text(block)
            script = "build/ringside run example.yaml --dry-run"
        ended = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=120, env=os.environ)
        self.assertEqual(ended.returncode, 0, ended.stdout[-3000:])


if __name__ == "__main__":
    unittest.main()
