"""Every function of a public header has a comment (tools/undocumented.py).

Guards: a function that was added without a comment; a checker that finds none in a header that has some.

Usage: documented_test.py. Standard library.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "undocumented.py"
FOLDERS = ["sp", "engine", "rl", "rollout_bridge", "tools", "tests/support"]

HEADER = """// Examples.
#pragma once

namespace ringside {

int bare(int a);

// Doubles.
int described(int a);
int covered_too(int a);

template <class T>
T bare_template(T a) {
  return a;
}

class Example {
 public:
  explicit Example(int size);
  // Of the given size.
  Example(int size, int more);

  Example(Example&&) noexcept;
  ~Example();

  int size() const { return size_; }
  bool operator==(const Example&) const = default;
  int bare_member(int a) const;
  void overridden() override;

 private:
  void hidden(int a);
  int size_;
};

}  // namespace ringside
"""


def load_script():
    spec = importlib.util.spec_from_file_location("undocumented", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*folders: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *folders], capture_output=True, text=True, timeout=60, check=False)


class Documented(unittest.TestCase):
    def test_finds_functions_without_a_comment(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "example.h"
            header.write_text(HEADER)
            found = load_script().undocumented(header)
        lines = HEADER.split("\n")
        self.assertEqual(["int bare(int a);", "T bare_template(T a) {", "explicit Example(int size);",
                          "int bare_member(int a) const;"],
                         [lines[number - 1].strip() for number, _ in found])

    def test_every_function_has_a_comment(self):
        done = run(*FOLDERS)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_refuses_a_folder_without_headers(self):
        done = run("configs")
        self.assertEqual(2, done.returncode, done.stdout + done.stderr)
        self.assertIn("'configs'", done.stderr)


if __name__ == "__main__":
    unittest.main()
