"""The program that is linked for CUDA devices: it starts, says what it is, uses one torch, and refuses
model.device=cuda before anything starts where there is no such device.

Usage: cuda_link_test.py RINGSIDE RINGSIDE_CUDA
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RINGSIDE, _RINGSIDE_CUDA = sys.argv[1:3]


def version(program: str) -> str:
    return subprocess.check_output([program, "--version"], text=True, timeout=60)


def libraries(program: str) -> dict[str, pathlib.Path]:
    """Names of the shared libraries that the loader finds, and where."""
    lines = subprocess.check_output(["ldd", program], text=True, timeout=60)
    if missing := re.findall(r"(\S+) => not found", lines):
        raise AssertionError(f"{program}: not found: {missing}")
    found = re.findall(r"(\S+) => (/\S+)", lines)
    return {name: pathlib.Path(path).resolve() for name, path in found}


class Version(unittest.TestCase):
    def test_the_program_for_the_cpu_has_the_cpu_alone(self):
        text = version(_RINGSIDE)
        self.assertRegex(text, r"^ringside \d+\.\d+\.\d+( \(commit [0-9a-f]+\+?\))?\n")
        self.assertRegex(text, r"\ntorch: built with (2\.11\.\d+), running with \1\n")
        self.assertRegex(text, r"\ncpu: 1 device\n  groups: shared memory on one machine, Gloo\n")
        self.assertNotIn("cuda", text.lower())

    def test_the_program_for_cuda_adds_what_it_was_built_with_and_what_it_found(self):
        text = version(_RINGSIDE_CUDA)
        self.assertTrue(text.startswith(version(_RINGSIDE).rstrip("\n")), text)
        built = re.search(r"\n  built with: CUDA (\S+), NCCL (\S+), kernels for sm_\d+", text)
        self.assertTrue(built, text)
        self.assertIn(f"\n  running with: CUDA {built[1]}, NCCL {built[2]}\n", text)
        self.assertIn("\n  groups: NCCL\n", text)
        found = re.search(r"\ncuda: (?:(\d+) devices?|no device: (.+))\n", text)
        self.assertTrue(found, text)
        if found[1]:
            self.assertEqual(len(re.findall(r"\n  device \d+: .+ MiB, ", text)), int(found[1]))
        else:
            self.assertIn("driver", found[2])


class Libraries(unittest.TestCase):
    def test_all_of_torch_comes_from_one_wheel(self):
        for program in (_RINGSIDE, _RINGSIDE_CUDA):
            found = libraries(program)
            torch = {path.parent for name, path in found.items() if re.match("lib(torch|c10)", name)}
            self.assertEqual(len(torch), 1, torch)
            nvidia = [path for name, path in found.items() if re.match("lib(cudart|nccl)", name)]
            site_packages = torch.pop().parents[1]
            for path in nvidia:
                self.assertTrue(path.is_relative_to(site_packages), path)

    def test_the_program_for_the_cpu_loads_no_cuda_library_of_torch(self):
        self.assertNotIn("libtorch_cuda.so", libraries(_RINGSIDE))
        self.assertIn("libtorch_cuda.so", libraries(_RINGSIDE_CUDA))


class Device(unittest.TestCase):
    def refused(self, program: str, reason: str) -> None:
        """`train` on a good recipe ends with a usage error that says `reason`, and starts nothing."""
        with tempfile.TemporaryDirectory() as folder:
            make = [sys.executable, _ROOT / "tools" / "quickstart_task.py", "--out", f"{folder}/data"]
            subprocess.check_output([*make, "--variant", "short", "--seed", "1", "--flawed"])
            command = [program, "train", _ROOT / "recipes" / "quickstart" / "sft.yaml", "--run-dir"]
            command += [f"{folder}/run", f"model.path={folder}/data/model"]
            command += [f"data.sft={folder}/data/sft.jsonl", "model.device=cuda"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("model.device: " + reason, done.stderr)
            self.assertFalse(pathlib.Path(f"{folder}/run").exists())

    def test_a_program_for_the_cpu_refuses_cuda_and_says_what_it_has(self):
        self.refused(_RINGSIDE, "cuda: this program was linked without it; it has cpu")

    def test_without_a_device_cuda_is_refused_with_the_reason(self):
        found = re.search(r"\ncuda: no device: (.+)\n", version(_RINGSIDE_CUDA))
        if not found:
            self.skipTest("this machine has a CUDA device")
        self.refused(_RINGSIDE_CUDA, f"cuda: no device: {found[1]}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
