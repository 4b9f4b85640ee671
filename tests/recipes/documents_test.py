"""What the documents promise: links that lead somewhere, keys that exist, examples that run.

A fenced block after the line <!-- test: run --> is executed as a shell script, in a folder that looks like the checkout
and is thrown away. One after <!-- test: recipe --> is a recipe: it must pass a dry run. Other blocks are held by their language:
C++ stands in the file that <!-- test: from FILE --> names, YAML passes `ringside check` but for files that it names, Python
runs, JSON parses.

Usage: documents_test.py RINGSIDE. Standard library only.
"""
import json
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
sys.path.insert(0, str(ROOT / "tests/support/prestarted"))
import prestarted  # noqa: E402
MARKED = re.compile(r"^<!-- test: (run|recipe) -->\n+```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^(?:<!-- test: from (\S+) -->\n+)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FREE = ("mermaid",)  # drawn, not run
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


def blocks() -> list[tuple[str, str, str, str]]:
    """Page, file that it is from, language and text of every block that names its language."""
    return [(str(page.relative_to(ROOT)), *found) for page in documents() for found in BLOCK.findall(page.read_text())]


def missing_lines(text: str, source: str) -> list[str]:
    """The stretches of a block, between lines or ends of lines with "...", that do not stand in the file. Blanks may differ."""
    def plain(code: str) -> str:
        return re.sub(r"\s+", " ", code).strip()
    return [part for part in map(plain, re.split(r"\.\.\.", text)) if part.strip(" };,") and part not in plain(source)]


class Documents(unittest.TestCase):
    def test_relative_links_lead_to_files_and_headings(self):
        pages = documents()
        self.assertGreater(len(pages), 20)
        self.assertEqual([line for page in pages for line in broken_links(page)], [])

    def test_the_first_pages_stay_short(self):
        for page, most in (("README.md", 150), ("ARCHITECTURE.md", 300)):
            self.assertLessEqual(len((ROOT / page).read_text().splitlines()), most, page)

    def test_a_broken_link_is_found(self):
        with tempfile.TemporaryDirectory(dir=ROOT / "tests" / "recipes") as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("# A `b` c\n[x](page.md#a-b-c) [y](page.md#d) [z](nothing.md) [w](http://e.x/)\n")
            self.assertEqual([line.split(": ", 1)[1] for line in broken_links(page)],
                             ["page.md#d: no such heading", "nothing.md does not exist"])

    def test_keys_that_are_named_exist(self):
        text = prestarted.run([RINGSIDE, "check", "--defaults"], stdout=subprocess.PIPE, text=True, check=True).stdout
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

    def test_blocks_of_code_stand_in_a_file_that_is_compiled(self):
        found = [block for block in blocks() if block[2] == "cpp"]
        self.assertGreater(len(found), 2)
        for page, file, _, text in found:
            with self.subTest(page=page):
                self.assertTrue(file, f"{page}: a block of C++ without <!-- test: from FILE -->")
                self.assertEqual(missing_lines(text, (ROOT / file).read_text()), [])

    def test_a_block_that_drifted_is_found(self):
        self.assertEqual(missing_lines("int a;\n...\nint b{\n  1};\n", "int a;\nint c;\nint b{1};"), ["int b{ 1};"])
        self.assertEqual(missing_lines("config.list_blocks();\n", "  list_blocks(config);\n"), ["config.list_blocks();"])

    def test_blocks_of_yaml_have_known_keys_and_values(self):
        found = [block for block in blocks() if block[2] == "yaml"]
        self.assertGreater(len(found), 5)
        harmless = re.compile(r"does not exist|is not set|No such file|no file matches|mistakes?; nothing was started")
        with tempfile.TemporaryDirectory() as folder:
            for page, _, _, text in found:
                recipe = pathlib.Path(folder) / "block.yaml"
                recipe.write_text(text)
                ended = prestarted.run([RINGSIDE, "check", recipe], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, timeout=60, check=False)
                with self.subTest(page=page, block=text):
                    self.assertEqual([line for line in ended.stderr.splitlines() if line and not harmless.search(line)], [])

    def test_blocks_of_python_and_json_are_what_they_say(self):
        self.assertEqual({language for _, _, language, _ in blocks()} - {"cpp", "yaml", "python", "json", *FREE}, set())
        for page, _, language, text in blocks():
            with self.subTest(page=page, block=text):
                if language == "json":
                    json.loads(text)
                if language == "python":
                    names: dict = {"__name__": "block"}
                    exec(compile(text, page, "exec"), names)  # pylint: disable=exec-used
                    if "score" in names:
                        self.assertEqual(names["score"](completions=["17 * 3 is 51", "52"], answers=["51", "51"]), [1.0, 0.0])

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
