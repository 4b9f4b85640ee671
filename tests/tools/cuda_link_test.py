"""The program that is linked for CUDA devices: it starts, says what it is, and uses one torch.

Usage: cuda_link_test.py RINGSIDE RINGSIDE_CUDA
"""

import pathlib
import re
import subprocess
import sys
import unittest

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
        self.assertRegex(text, r"^ringside \d+\.\d+\.\d+\n")
        self.assertRegex(text, r"\ntorch: built with (2\.11\.\d+), running with \1\n")
        self.assertRegex(text, r"\ncpu: 1 device\n  groups: Gloo\n")
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
