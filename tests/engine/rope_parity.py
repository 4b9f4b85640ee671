"""cos and sin of every rope type at positions 0 to 131,071, beside transformers'.

Guards the frequencies and the factor on cos and sin: a ramp that is off by one pair, a factor that is applied twice or
left out, short factors where the long ones count. Two comparisons a type. Against transformers' own module: the same
fp32 angles, so cos and sin differ by the rounding of their last bit at most. Against the same formulas in fp64: the
distance that fp32 angles cost at such positions, which both sides share; it is printed, not bounded.

Usage: rope_parity.py ROPE_DUMP_EXECUTABLE
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)

POSITIONS = 131_072
# One fp32 rounding of a number up to 1.5, the largest factor below.
LAST_BIT = 2.0**-23 * 1.5


def configurations():
    """Name, configuration, longest document, and whether transformers takes its long factors."""
    for rope in tiny_models.ROPE_TYPES:
        config = tiny_models.make_rope_config(rope, original=32_768, max_positions=POSITIONS, head_dim=128)
        yield rope, config, 0, True
        if rope.startswith("longrope"):
            yield f"{rope}, short", config, 32_768, False
    for family in ("qwen3", "llama"):  # default and llama3
        yield family, tiny_models.make_config(family, 4, 2, False, head_dim=128), 0, True
    qwen = tiny_models.make_config("qwen3", 4, 2, False, head_dim=128)
    qwen.max_position_embeddings = 40_960
    qwen.rope_parameters = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                            "original_max_position_embeddings": 32_768}
    yield "Qwen3-8B's YaRN", qwen, 0, True


def rotary_of(config):
    module = sys.modules[transformers.AutoModelForCausalLM._model_mapping[type(config)].__module__]
    return next(cls for name, cls in vars(module).items() if name.endswith("RotaryEmbedding"))(config)


@torch.no_grad()
def expected(config, positions: int):
    """transformers' cos and sin, [positions, D/2] each, as its forward over so many tokens makes them."""
    cos, sin = rotary_of(config)(torch.zeros(1), torch.arange(positions)[None])
    half = cos.shape[-1] // 2
    return torch.stack([cos[0, :, :half], sin[0, :, :half]])


def in_double(config, positions: int):
    """The angles of transformers' fp32 frequencies, but without a further rounding."""
    rotary = rotary_of(config)
    rotary(torch.zeros(1), torch.arange(positions)[None])  # longrope chooses its factors by the length
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rotary.inv_freq.double()
    return torch.stack([angles.cos(), angles.sin()]) * rotary.attention_scaling


def dumped(executable: str, folder: pathlib.Path, config, longest: int, positions: int):
    config.save_pretrained(folder)
    output = folder / "tables"
    done = subprocess.run([executable, folder, str(longest), str(positions), output], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(numpy.fromfile(output, dtype=numpy.float32)).view(2, positions, -1)


def main() -> None:
    # The first cos, exp or log on two threads at once can be a coarse one: sp/mesh/vector_math.h.
    torch.set_num_threads(1)
    executable = sys.argv[1]
    assert set(ROPE_INIT_FUNCTIONS) - {"proportional"} == {"linear", "dynamic", "yarn", "longrope", "llama3"}
    failures = []
    print(f"{'type':<22}{'positions':>10}{'not equal':>12}{'largest':>12}{'from fp64':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for name, config, longest, whole in configurations():
            positions = POSITIONS if whole else longest
            ours = dumped(executable, pathlib.Path(folder), config, longest, positions)
            theirs = expected(config, positions)
            different = (ours != theirs).sum().item()
            largest = (ours - theirs).abs().max().item()
            exact = (ours.double() - in_double(config, positions)).abs().max().item()
            print(f"{name:<22}{positions:>10}{different:>12}{largest:>12.1e}{exact:>12.1e}", flush=True)
            if not largest <= LAST_BIT:
                failures.append(name)
    assert not failures, f"outside {LAST_BIT:.1e}: {failures}"


main()
