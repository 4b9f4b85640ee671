"""Low-rank adapters of a PEFT directory, added to a transformers model without PEFT."""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass

import torch

_PREFIX = "base_model.model."
# Fields of adapter_config.json that change the result and are not understood: refused unless empty.
_REFUSED = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform",
            "layer_replication", "lora_bias", "trainable_token_indices", "target_parameters", "fan_in_fan_out")


@dataclass
class Adapter:
    """A [r, in] and B [out, r] of each adapted module, by the module's name."""

    factors: dict[str, tuple[torch.Tensor, torch.Tensor]]
    scale: float

    @staticmethod
    def read(folder: str) -> Adapter:
        """ValueError naming what is wrong, or OSError."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        config = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
        for name in _REFUSED:
            if config.get(name):
                raise ValueError(f"adapter_config.json: {name} is {config[name]}, which is not supported")
        try:
            tensors = load_file(pathlib.Path(folder) / "adapter_model.safetensors")
        except SafetensorError as error:
            raise ValueError(f"{folder}: {error}") from error
        factors = {}
        for name in sorted(tensors):
            if name.endswith(".lora_A.weight") and name.startswith(_PREFIX):
                other = name.replace(".lora_A.", ".lora_B.")
                if other not in tensors:
                    raise ValueError(f"tensor {other} is missing")
                factors[name[len(_PREFIX):-len(".lora_A.weight")]] = (tensors[name], tensors[other])
        if 2 * len(factors) != len(tensors) or not factors:
            raise ValueError(f"{len(tensors)} tensors, {len(factors)} pairs of lora_A and lora_B")
        return Adapter(factors, config["lora_alpha"] / config["r"])

    def attach(self, model: torch.nn.Module) -> list:
        """Makes each adapted module add scale (x A^T) B^T; returns the hooks, whose remove() ends that. ValueError before
        anything is changed when a module is missing or of another shape."""
        modules = dict(model.named_modules())
        for name, (a, b) in self.factors.items():
            weight = getattr(modules.get(name), "weight", None)
            if weight is None or (b.shape[0], a.shape[1]) != tuple(weight.shape) or a.shape[0] != b.shape[1]:
                found = "no such module" if weight is None else f"weight {list(weight.shape)}"
                raise ValueError(f"adapter of {name}: A {list(a.shape)}, B {list(b.shape)}, the model has {found}")
        return [modules[name].register_forward_hook(self._addition(a.to(modules[name].weight), b.to(modules[name].weight)))
                for name, (a, b) in self.factors.items()]

    def _addition(self, a: torch.Tensor, b: torch.Tensor):
        return lambda _module, inputs, output: output + (inputs[0] @ a.T * self.scale) @ b.T
