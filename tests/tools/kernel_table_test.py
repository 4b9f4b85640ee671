"""The table of CUDA kernels (tools/kernel_table.py), and the flags under which a kernel that spills is not built.

Guards: a kernel with spilled registers or a stack that is built or passes the table; registers, shared memory and occupancy
that are read wrong; bytes of a layer that do not follow its shape.

Usage: kernel_table_test.py NVCC FLAGS. Standard library.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "kernel_table.py"
NVCC, FLAGS = sys.argv[1:3]

# 64 values of a thread that may have 32 registers.
SPILLS = """
__global__ void __launch_bounds__(1024, 2) spilling(float* x) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int r = 0; r < 8; ++r)
    for (int i = 0; i < 64; ++i) v[i] = v[(i * 7 + 3) % 64] * v[i] + v[(i + 11) % 64];
  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
"""
FITS = """
__global__ void fitting(float* x) {
  __shared__ float all[96];
  all[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = all[95 - threadIdx.x];
}
"""


def load_script():
    spec = importlib.util.spec_from_file_location("kernel_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel_table"] = module
    spec.loader.exec_module(module)
    return module


class KernelTable(unittest.TestCase):
    def setUp(self):
        self.table = load_script()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def source(self, text):
        path = self.folder / "kernel.cu"
        path.write_text(text)
        return path

    def built(self, text):
        return subprocess.run(
            [NVCC, "-arch=sm_90", FLAGS, "-cubin", self.source(text), "-o", self.folder / "out"],
            capture_output=True, text=True, check=False)

    def test_a_kernel_that_spills_is_not_built(self):
        refused = self.built(SPILLS)
        self.assertNotEqual(0, refused.returncode)
        self.assertIn("spilled", refused.stderr + refused.stdout)
        self.assertEqual(0, self.built(FITS).returncode)

    def test_the_table_names_a_kernel_that_spills(self):
        done = subprocess.run([sys.executable, SCRIPT, "--nvcc", NVCC, "--arch", "sm_90", self.source(SPILLS)],
                              capture_output=True, text=True, check=False)
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertIn("spilling", done.stderr)

    def test_the_table_says_what_a_kernel_takes(self):
        (kernel,) = self.table.compiled(NVCC, "sm_90", self.source(FITS))
        self.assertEqual(["fitting"], [name.split("(")[0] for name in self.table.readable([kernel.name])])
        self.assertEqual((384, 0, 0), (kernel.shared, kernel.spilled, kernel.stack))
        self.assertGreater(kernel.registers, 0)

    def test_occupancy_follows_the_scarcest_resource(self):
        def occupancy(arch, registers, shared, threads, dynamic):
            return self.table.occupancy(self.table.Kernel(arch, "k", registers, shared), threads, dynamic)

        self.assertEqual(1.0, occupancy("sm_90", 32, 0, 512, 0))
        self.assertEqual(0.5, occupancy("sm_90", 48, 0, 512, 0))  # 65536 / (48 * 512): 2 blocks of 16 warps
        self.assertEqual(0.5, occupancy("sm_80", 16, 0, 32, 0))  # 32 blocks of one warp
        # 164 and 228 KiB of blocks that take 49 KiB: 3 and 4 of 8 warps.
        self.assertEqual(24 / 64, occupancy("sm_80", 32, 0, 256, 48 << 10))
        self.assertEqual(32 / 64, occupancy("sm_90", 32, 0, 256, 48 << 10))

    def test_bytes_of_a_layer_follow_its_shape(self):
        shape = dict(self.table.QWEN3_600M)
        parts = self.table.bytes_of_layer(shape)
        # gate and up in, one out; both and dy in, both gradients out.
        self.assertEqual(2 * 3 * 3072, parts["SwiGLU, forward"])
        self.assertEqual(2 * 5 * 3072, parts["SwiGLU, backward"])
        wider = self.table.bytes_of_layer({**shape, "hidden_size": 2048})
        self.assertEqual(2 * 2 * 4 * 1024, wider["2 norms, backward"] - parts["2 norms, backward"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
