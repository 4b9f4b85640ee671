"""A Hugging Face causal LM that samples, scores and takes weights: what hf_server.py serves. Ids are token ids, log-probs
natural logarithms. Every method is thread-safe: one runs at a time, so no completion spans two sets of weights.

Shapes: B requests, P longest prompt, V vocabulary.
"""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass, field

import numpy as np
import torch
import transformers

from .adapter import Adapter
from .checkpoint import TIED, TornModel, check_layout, predicts_further, read
from .pull import Pulled, torch_tensors
from .weights import root_hash_of
from .wire import DTYPES

_SCORE_CHUNK = 1024  # tokens whose [tokens, V] log-probs exist at once


@dataclass
class Request:
    prompt_ids: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_ids: list[int] = field(default_factory=list)
    seed: int = 0
    request_id: str = ""


def sampled_distribution(logits_BV: torch.Tensor, temperature_B, top_k_B, top_p_B) -> torch.Tensor:
    """[B, V] fp64 log-probs after temperature, then top-k (0: off; of equal scores the lower id stays), then top-p (1: off;
    the fewest tokens whose share reaches it), each renormalised; -inf for what is cut off."""
    scores_BV = logits_BV.double()
    scores_BV = (scores_BV - scores_BV.amax(1, keepdim=True)) / temperature_B[:, None]  # no overflow at any temperature
    vocabulary = scores_BV.shape[1]
    if bool(((top_k_B > 0) | (top_p_B < 1)).any()):
        sorted_BV, order_BV = scores_BV.sort(dim=1, descending=True, stable=True)
        limit_B1 = torch.where(top_k_B > 0, top_k_B, vocabulary)[:, None]
        cut_BV = torch.arange(vocabulary, device=scores_BV.device)[None] >= limit_B1
        shares_BV = sorted_BV.masked_fill(cut_BV, -torch.inf).softmax(1)
        before_BV = shares_BV.cumsum(1) - shares_BV
        cut_BV |= (before_BV >= top_p_B[:, None]) & (top_p_B < 1)[:, None]
        scores_BV = scores_BV.masked_fill(torch.zeros_like(cut_BV).scatter(1, order_BV, cut_BV), -torch.inf)
    return scores_BV.log_softmax(1)


def inverse_cdf(logprobs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """[B] ids: the first whose cumulated probability, in id order, is above the uniform number, in [0, 1) with 53 bits. Such a
    number times a total between 1/2 and 2 rounds to below the total, so there is one, and it is not of probability 0."""
    cdf_BV = logprobs_BV.exp().cumsum(1)
    return torch.searchsorted(cdf_BV, uniform_B[:, None] * cdf_BV[:, -1:], right=True)[:, 0]


class HfModel:
    def __init__(self, path: str, dtype: str = "float32", device: str = "cpu"):
        self._device = torch.device(device)
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        self._model = model.to(self._device).eval()
        config = model.config.get_text_config()
        self.vocab_size, self.model_type = config.vocab_size, model.config.model_type
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        eos = model.generation_config.eos_token_id
        self._eos = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions, self._takes_keep = "position_ids" in accepted, "logits_to_keep" in accepted
        self._tied = bool(getattr(config, "tie_word_embeddings", False))
        self._hooks: list = []  # of the loaded adapter
        self._lock = threading.Lock()
        self.version, self.torn = -1, False  # of the weights; -1: those it was started with

    def check(self, request: Request) -> None:
        """ValueError naming the field that the model cannot do."""
        self._check_ids("prompt_ids", request.prompt_ids)
        self._check_ids("stop_ids", request.stop_ids)
        for name, value, holds, expected in (
                ("prompt_ids", len(request.prompt_ids), len(request.prompt_ids) >= 1, "at least 1 id"),
                ("max_tokens", request.max_tokens, request.max_tokens >= 1, ">= 1"),
                ("temperature", request.temperature, 0 < request.temperature < float("inf"), "> 0 (greedy: top_k 1)"),
                ("top_p", request.top_p, 0 < request.top_p <= 1, "in (0, 1]"),
                ("top_k", request.top_k, 0 <= request.top_k < 2**63, "in [0, 2^63)"),
                ("seed", request.seed, 0 <= request.seed < 2**64, "in [0, 2^64)")):
            if not holds:
                raise ValueError(f"{name} = {value}, expected {expected}")
        self._check_length("prompt_ids and max_tokens", len(request.prompt_ids) + request.max_tokens)

    def _check_ids(self, name: str, ids: list[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"{name} holds {token}, expected ids in [0, {self.vocab_size})")

    def _check_length(self, what: str, tokens: int) -> None:
        if self.max_positions is not None and tokens > self.max_positions:
            raise ValueError(f"{what}: {tokens} tokens, the model has {self.max_positions} positions")

    @torch.inference_mode()
    def generate(self, requests: list[Request]) -> list[dict]:
        """One batch. A request's random numbers come from its seed alone: whatever else is in the batch, it draws the same
        sample but for rounding of the logits. The stop id that ends a completion is part of it. Blocks."""
        for request in requests:
            self.check(request)
        if not requests:
            return []
        with self._lock:
            self._require_whole()
            return self._generate(requests)

    def _generate(self, requests: list[Request]) -> list[dict]:
        ids_BP, mask_BP = self._left_padded([r.prompt_ids for r in requests])
        positions = (mask_BP.cumsum(1) - 1).clamp(min=0)
        settings = [torch.tensor([getattr(r, name) for r in requests], device=self._device, dtype=kind)
                    for name, kind in (("temperature", torch.float64), ("top_k", torch.int64), ("top_p", torch.float64))]
        generators = [np.random.Generator(np.random.Philox(r.seed)) for r in requests]
        stops = [self._eos | set(r.stop_ids) for r in requests]
        results: list[dict] = [{"completion_ids": [], "logprobs": [], "finish_reason": "", "version": self.version}
                               for _ in requests]
        cache, waiting = None, set(range(len(requests)))
        while waiting:
            logits_BV, cache = self._forward(ids_BP, mask_BP, positions, cache, last_only=True)
            logprobs_BV = sampled_distribution(logits_BV[:, -1], *settings)
            # Rows that have ended draw too, for nobody: the batch keeps its shape.
            uniform_B = torch.tensor([g.random() for g in generators], dtype=torch.float64, device=self._device)
            picked_B = inverse_cdf(logprobs_BV, uniform_B)
            ids, values = picked_B.tolist(), logprobs_BV.gather(1, picked_B[:, None])[:, 0].tolist()
            for row in sorted(waiting):
                result = results[row]
                result["completion_ids"].append(ids[row])
                result["logprobs"].append(values[row])
                if ids[row] in stops[row] or len(result["completion_ids"]) == requests[row].max_tokens:
                    result["finish_reason"] = "stop" if ids[row] in stops[row] else "length"
                    waiting.remove(row)
            ids_BP = picked_B[:, None]
            mask_BP = torch.cat([mask_BP, mask_BP.new_ones(len(requests), 1)], dim=1)
            positions = (positions[:, -1:] + 1).clamp(max=(self.max_positions or 2**31) - 1)
        return results

    def _left_padded(self, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, prompts))
        ids = [[0] * (longest - len(p)) + p for p in prompts]
        mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        return torch.tensor(ids, device=self._device), torch.tensor(mask, device=self._device)

    def _forward(self, ids, mask, positions, cache, last_only: bool):
        more = {"position_ids": positions} if self._takes_positions else {}
        if last_only and self._takes_keep:
            more["logits_to_keep"] = 1
        out = self._model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more)
        if not bool(torch.isfinite(out.logits[:, -1].amax(1)).all()):
            raise RuntimeError(f"the logits of version {self.version} are not finite")
        return out.logits, out.past_key_values

    @torch.inference_mode()
    def score(self, ids: list[int]) -> list[float]:
        """Log-probs of ids[1:], each given what is before it, at temperature 1. Blocks."""
        self._check_ids("ids", ids)
        self._check_length("ids", len(ids))
        found: list[float] = []
        with self._lock:
            self._require_whole()
            row, cache = torch.tensor([ids], device=self._device), None
            for begin in range(0, len(ids) - 1, _SCORE_CHUNK):
                end = min(begin + _SCORE_CHUNK, len(ids) - 1)
                mask, positions = row.new_ones(1, end), torch.arange(begin, end, device=self._device)[None]
                logits, cache = self._forward(row[:, begin:end], mask, positions, cache, last_only=False)
                logprobs = logits[0].float().log_softmax(-1)
                found += logprobs.gather(1, row[0, begin + 1:end + 1, None])[:, 0].tolist()
        return found

    def load(self, path: str, version: int) -> None:
        """Weights of a Hugging Face directory. ValueError or OSError leaves the model as it was."""
        self._install(read(path), version)

    def load_adapter(self, path: str, version: int) -> None:
        """Low-rank adapters of a PEFT directory on top of the weights, in place of earlier ones. ValueError or OSError
        leaves the model as it was."""
        adapter = Adapter.read(path)
        with self._lock, torch.no_grad():
            self._require_whole()
            hooks = adapter.attach(self._model)
            self._drop_adapter()
            self._hooks, self.version = hooks, version

    def _drop_adapter(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def install(self, pulled: Pulled) -> str:
        """Verified weights; returns the root hash, computed from the model itself where it has the manifest's dtypes.
        ValueError leaves the model as it was."""
        self._install(dict(torch_tensors(pulled)), pulled.manifest["version"], pulled.manifest)
        return pulled.root_hash

    def _install(self, tensors: dict[str, torch.Tensor], version: int, manifest: dict | None = None) -> None:
        state = self._model.state_dict()
        config = self._model.config
        layers = getattr(config, "text_config", config).num_hidden_layers
        # transformers' models have no layer that predicts further tokens, and sampling does not need it.
        further = {name: tensor for name, tensor in tensors.items() if name not in state and predicts_further(name, layers)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in further}
        check_layout({k: tuple(v.shape) for k, v in tensors.items()}, {k: tuple(v.shape) for k, v in state.items()},
                     self._tied)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() != state[name].is_floating_point():
                raise ValueError(f"tensor {name} is {tensor.dtype}, the model's {state[name].dtype}")
        self._check_tied(tensors, state)
        with self._lock, torch.no_grad():
            self.torn = True
            self._drop_adapter()
            for name, tensor in tensors.items():
                state[name].copy_(tensor)
            if manifest is not None:
                self._verify(manifest, state | further)
            self.version, self.torn = version, False

    def _check_tied(self, tensors: dict, state: dict) -> None:
        """A head that is sent although it is the embedding must be the embedding."""
        if self._tied and TIED in tensors:
            for name, tensor in state.items():
                if name != TIED and tensor.data_ptr() == state[TIED].data_ptr():
                    if not torch.equal(tensors[name], tensors[TIED]):
                        raise ValueError(f"tensor {TIED} is not {name}, with which the model ties it")

    def _verify(self, manifest: dict, state: dict) -> None:
        arrays = {}
        for entry in manifest["tensors"]:
            tensor = state[entry["name"]].cpu().contiguous()
            expected = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
            if expected.get(entry["dtype"], tensor.dtype) != tensor.dtype:
                return  # converted on the way: other bytes
            arrays[entry["name"]] = tensor.reshape(-1).view(torch.uint8).numpy().view(DTYPES[entry["dtype"]])
        root = root_hash_of(manifest, arrays)
        if root != manifest["root_hash"]:
            raise TornModel(f"version {manifest['version']}: the model is torn, its root hash is {root}, "
                            f"expected {manifest['root_hash']}")

    def _require_whole(self) -> None:
        if self.torn:
            raise TornModel("the model is torn: an update stopped half way, load weights anew")
