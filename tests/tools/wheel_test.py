"""The wheel of tools/bundle.sh --wheel: its tag, its metadata, its RECORD and its command, with small files in the place of
the program.

Guards: a tag that is older than the symbols; a file that RECORD leaves out or whose hash is wrong; a program that cannot be
executed once it is unpacked; requirements of the client that drift from its pyproject.toml; a wheel that could be published
though no licence has been chosen; a command that does not find torch.

tools/check_wheel.sh tries a whole wheel in a bare root.

Usage: wheel_test.py. Standard library only.
"""
import base64
import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bundle"))
import wheel  # noqa: E402  # pylint: disable=wrong-import-position

PROGRAM = '#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\ncommand -v python3\n'


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.stage = self.folder / "stage"
        for name, text in (("libexec/ringside", PROGRAM), ("lib/libx.so.1", "x"), ("configs/defaults.yaml", "seed: 1\n"),
                           ("recipes/a/b.yaml", "seed: 2\n"), ("licenses/libx", "free"), ("MANIFEST", "version: 9.8.7\n"),
                           ("README.md", "# Ringside\n"), ("python/ringside_bridge/__init__.py", "x = 1\n"),
                           ("bin/with-torch", (ROOT / "tools/bundle/with-torch").read_text()),
                           ("python/pyproject.toml", (ROOT / "rollout_bridge/python/pyproject.toml").read_text()),
                           ("recipes/__pycache__/b.pyc", "old")):
            path = self.stage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name in ("libexec/ringside", "bin/with-torch"):
            (self.stage / name).chmod(0o755)
        self.path = wheel.write_wheel(self.stage, "9.8.7", self.folder, ["GLIBC_2.34", "GLIBCXX_3.4.30", "GCC_3.4"])

    def unpacked(self) -> pathlib.Path:
        """As pip does it: files with an executable bit keep it."""
        site = self.folder / "site"
        with zipfile.ZipFile(self.path) as file:
            for entry in file.infolist():
                file.extract(entry, site)
                if entry.external_attr >> 16 & 0o111:
                    (site / entry.filename).chmod(0o755)
        return site

    def test_the_tag_is_the_oldest_that_has_all_symbols(self):
        self.assertEqual(self.path.name, "ringside-9.8.7-py3-none-manylinux_2_35_x86_64.whl")  # GLIBCXX decides
        for symbols, tag in ((["GLIBC_2.28"], "manylinux_2_28_x86_64"), (["GLIBC_2.34", "GLIBCXX_3.4.29"], "manylinux_2_34_x86_64"),
                             (["GLIBC_2.4", "GLIBC_2.36"], "manylinux_2_36_x86_64")):
            self.assertEqual(wheel.platform_tag(symbols), tag)
        with self.assertRaisesRegex(ValueError, "GLIBCXX_3.4.33, newer than what manylinux_2_36_x86_64 has"):
            wheel.platform_tag(["GLIBC_2.34", "GLIBCXX_3.4.33"])

    def test_record_has_each_file_with_its_hash_and_size(self):
        with zipfile.ZipFile(self.path) as file:
            names = set(file.namelist())
            record = [line.split(",") for line in file.read("ringside-9.8.7.dist-info/RECORD").decode().splitlines()]
            self.assertEqual({name for name, _, _ in record}, names)
            self.assertEqual(len(record), len(names))
            for name, digest, size in record:
                if name.endswith("RECORD"):
                    self.assertEqual((digest, size), ("", ""))
                    continue
                data = file.read(name)
                good = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, size), ("sha256=" + good, str(len(data))), name)
        self.assertFalse([name for name in names if "pycache" in name])
        for name in ("ringside/libexec/ringside", "ringside/lib/libx.so.1", "ringside/recipes/a/b.yaml", "ringside/licenses/libx",
                     "ringside_bridge/__init__.py", "ringside/MANIFEST"):
            self.assertIn(name, names)

    def test_the_metadata_name_torch_the_clients_requirements_and_no_licence(self):
        found = importlib.metadata.Distribution.at(self.unpacked() / "ringside-9.8.7.dist-info")
        project = tomllib.loads((ROOT / "rollout_bridge/python/pyproject.toml").read_text())["project"]
        self.assertEqual((found.metadata["Name"], found.version), ("ringside", "9.8.7"))
        self.assertLessEqual({"torch>=2.11,<2.12", *project["dependencies"]}, set(found.requires))
        self.assertIn("pyarrow==26.0.1; extra == 'parquet'", found.requires)
        self.assertIn("Private :: Do Not Upload", found.metadata.get_all("Classifier"))
        self.assertIsNone(found.metadata["License"])
        points = {(point.group, point.name): point.value for point in found.entry_points}
        self.assertEqual(points, {("console_scripts", "ringside"): "ringside.launch:main",
                                  ("vllm.general_plugins", "ringside"): "ringside_bridge.vllm_plugin:register"})
        self.assertIn("Tag: py3-none-manylinux_2_35_x86_64", found.read_text("WHEEL").splitlines())

    def test_the_versions_of_torch_and_pyarrow_are_those_of_the_build(self):
        pinned = (ROOT / "tools/requirements-build.txt").read_text()
        self.assertIn(wheel.TORCH.split("=")[1].split(",")[0].rstrip("<"), pinned)  # 2.11
        self.assertIn(wheel.PYARROW, pinned)

    def test_the_command_starts_the_program_with_the_torch_beside_it(self):
        site = self.unpacked()
        script = "import sys; sys.argv[0] = 'ringside'; from ringside.launch import main; main()"
        def started() -> subprocess.CompletedProcess:
            return subprocess.run([sys.executable, "-S", "-c", script, "check", "a b"], capture_output=True, text=True, check=False,
                                  env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}, cwd=self.folder)
        without = started()
        self.assertEqual(without.returncode, 2, without.stderr)
        self.assertIn("has no torch", without.stderr)
        torch = site / "torch"
        (torch / "lib").mkdir(parents=True)
        for name in ("lib/libtorch_cpu.so", "lib/libc10.so", "__init__.py"):
            (torch / name).touch()
        (torch / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
        (torch / "version.py").write_text("__version__ = '2.11.0'\n")
        done = started()
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = done.stdout.splitlines()
        self.assertEqual(first, f"{torch}/lib check a b")
        self.assertEqual(pathlib.Path(second).parent, pathlib.Path(sys.executable).parent)  # rewards run in this environment
        (site / "ringside/libexec/ringside").chmod(0o644)
        locked = started()
        self.assertEqual((locked.returncode, "cannot be executed" in locked.stderr), (2, True), locked.stderr)


if __name__ == "__main__":
    unittest.main()
