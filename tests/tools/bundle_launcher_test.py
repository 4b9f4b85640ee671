"""with-torch of a bundle: which torch it finds, and what it says when there is none.

Usage: bundle_launcher_test.py WITH_TORCH
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

_WITH_TORCH = pathlib.Path(sys.argv[1]).resolve()


def make_wheel(folder: pathlib.Path, version: str = "2.11.0+cu130") -> pathlib.Path:
    """A torch of empty libraries that must not be imported; returns its folder."""
    torch = folder / "torch"
    (torch / "lib").mkdir(parents=True)
    for library in ("libtorch_cpu.so", "libc10.so"):
        (torch / "lib" / library).touch()
    (torch / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n")
    (torch / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    return torch


class WithTorch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name).resolve()

    def run_it(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        inherited = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        return subprocess.run(
            [_WITH_TORCH, *command], capture_output=True, text=True, env=inherited | environment
        )

    def assert_refused(self, done: subprocess.CompletedProcess, reason: str) -> None:
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(reason, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_the_variable_names_the_folder(self):
        torch = make_wheel(self.folder)
        self.assertEqual(self.run_it(RINGSIDE_TORCH=str(torch)).stdout, f"{torch}\n")

    def test_else_it_is_the_one_that_python_would_import_and_it_is_not_imported(self):
        torch = make_wheel(self.folder)
        done = self.run_it(PYTHONPATH=str(self.folder))
        self.assertEqual((done.stdout, done.stderr), (f"{torch}\n", ""))

    def test_the_variable_comes_before_python(self):
        make_wheel(self.folder / "python")
        torch = make_wheel(self.folder / "named")
        done = self.run_it(RINGSIDE_TORCH=str(torch), PYTHONPATH=str(self.folder / "python"))
        self.assertEqual(done.stdout, f"{torch}\n")

    def test_a_command_gets_the_folders_of_the_wheel_first(self):
        torch = make_wheel(self.folder)
        (self.folder / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        show = ["sh", "-c", 'echo "$LD_LIBRARY_PATH" "$1"', "sh", "a b"]
        done = self.run_it(*show, RINGSIDE_TORCH=str(torch), LD_LIBRARY_PATH="/mine")
        self.assertEqual(done.stdout, f"{torch}/lib:{self.folder}/nvidia/cu13/lib:/mine a b\n")

    def test_a_command_gets_the_folder_of_arrow_too(self):
        torch = make_wheel(self.folder)
        (self.folder / "pyarrow").mkdir()
        done = self.run_it("sh", "-c", 'echo "$LD_LIBRARY_PATH"', RINGSIDE_TORCH=str(torch))
        self.assertEqual(done.stdout, f"{torch}/lib:{self.folder}/pyarrow\n")

    def test_its_exit_status_is_that_of_the_command(self):
        torch = make_wheel(self.folder)
        self.assertEqual(self.run_it("sh", "-c", "exit 7", RINGSIDE_TORCH=str(torch)).returncode, 7)

    def test_a_folder_that_is_not_there(self):
        done = self.run_it(RINGSIDE_TORCH=f"{self.folder}/none")
        self.assert_refused(done, f"the folder '{self.folder}/none' does not exist")

    def test_a_missing_library_is_named(self):
        torch = make_wheel(self.folder)
        (torch / "lib" / "libc10.so").unlink()
        done = self.run_it(RINGSIDE_TORCH=str(torch))
        self.assert_refused(done, f"{torch}/lib/libc10.so is missing")

    def test_another_version_is_refused(self):
        torch = make_wheel(self.folder, version="2.10.1+cpu")
        done = self.run_it(RINGSIDE_TORCH=str(torch))
        self.assert_refused(done, "holds torch '2.10.1+cpu'; this program is linked for torch 2.11")

    def test_a_python_without_torch(self):
        python = self.folder / "python3"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
        python.chmod(0o755)
        done = self.run_it(PATH=f"{self.folder}:{os.environ['PATH']}")
        self.assert_refused(done, f"python3 ({python}) has no torch; install a torch 2.11 wheel")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
