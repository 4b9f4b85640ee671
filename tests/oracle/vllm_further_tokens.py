"""Directories that Ringside wrote, against vLLM's own draft models: every parameter of the draft is loaded, and is that of
the directory that training began with.

Guards: a further layer's tensor that is lost, renamed or in another shape, and a config.json that no longer announces it.

Usage: vllm_further_tokens.py HF_RESAVE_EXECUTABLE, with a Python that has vLLM for the CPU (.env/vllm). By hand: starting
vLLM takes a minute.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import tiny_models  # noqa: E402

FAMILIES = ("glm4_moe", "deepseek_v3", "qwen3_next")


def with_further_layer(folder: pathlib.Path, config, qwen: bool) -> dict[str, torch.Tensor]:
    """Adds the layer under its published names: the model's last layer once more, and what is around it. Returns them."""
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    last = f"model.layers.{config.num_hidden_layers - 1}."
    own, layer = ("mtp.", "mtp.layers.0.") if qwen else (f"model.layers.{config.num_hidden_layers}.",) * 2
    further = {layer + name.removeprefix(last): torch.randn_like(value) for name, value in stored.items()
               if name.startswith(last)}
    width = config.hidden_size
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm") if qwen else ("enorm", "hnorm", "shared_head.norm")
    further |= {f"{own}{name}.weight": torch.randn(width) for name in norms}
    further[own + ("fc.weight" if qwen else "eh_proj.weight")] = torch.randn(width, 2 * width)
    if not qwen:
        further |= {own + "embed_tokens.weight": torch.randn(config.vocab_size, width),
                    own + "shared_head.head.weight": torch.randn(config.vocab_size, width)}
    safetensors.torch.save_file(stored | further, folder / "model.safetensors", metadata={"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | ({} if qwen else {"num_nextn_predict_layers": 1})))
    return further


def draft_of(folder: pathlib.Path):
    """vLLM's draft model of a directory, before weights are loaded."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    config = EngineArgs(model=str(folder), dtype="float32", max_model_len=64, enforce_eager=True,
                        speculative_config={"method": "mtp", "num_speculative_tokens": 1}).create_engine_config()
    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, backend="gloo")
            initialize_model_parallel(1)
        return initialize_model(config, model_config=config.speculative_config.draft_model_config)


def check(executable: str, work: pathlib.Path, family: str) -> int:
    model = tiny_models.make_model(tiny_models.make_family(family), seed=3)
    began, written = tiny_models.save(model, work / family), work / f"{family}-written"
    further = with_further_layer(began, model.config, family.startswith("qwen3"))
    subprocess.run([executable, began, written, "float32"], check=True)
    found = safetensors.torch.load_file(written / "model.safetensors")
    differing = [name for name, value in further.items() if name not in found or not torch.equal(found[name], value)]
    draft = draft_of(written)
    loaded = draft.load_weights(iter(found.items()))
    missing = sorted({name for name, _ in draft.named_parameters()} - set(loaded))
    # Shared with the target at start.
    missing = [name for name in missing if not name.endswith(("embed_tokens.weight", "lm_head.weight"))]
    print(f"{family}: {type(draft).__name__}, {len(further)} tensors, differing {differing}, not loaded {missing}")
    return int(bool(differing or missing))


def main() -> int:
    torch.set_num_threads(1)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for family in sys.argv[2:] or FAMILIES:
            failures += check(sys.argv[1], pathlib.Path(folder), family)
    print(f"{failures} families fail")
    return 1 if failures else 0


sys.exit(main())
