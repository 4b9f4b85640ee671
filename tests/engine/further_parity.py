"""The layer that predicts a further token against a reference in float64: loss and gradients, at every layout.

The reference is transformers' decoder layer of the family, with what is around it as DeepSeek-V3's report (section 2.2)
and vLLM have it (model_executor/models/deepseek_mtp.py, qwen3_next_mtp.py: embedding before hidden state, the hidden
state behind the model's last norm, positions of the hidden state's token). Norms and routers, which transformers
computes in float32, are computed in float64.

Usage: further_parity.py FURTHER_PARITY_EXECUTABLE [FAMILY...], of FAMILIES
"""
import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile
from unittest import mock

import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)
from own_dtype import compute_delta_nets_in_own_dtype, float_unless_double  # noqa: E402

FAMILIES = ("deepseek_v3", "deepseek_v3, queries without latent", "glm4_moe", "qwen3_next", "qwen3_5")
LENGTHS = [3, 2, 7, 23, 40, 65]
COEF = 0.3
BOUND = 1e-10  # of the loss, and of a gradient, relative to the largest element of the parameter's

_to, _type, _softmax = torch.Tensor.to, torch.Tensor.type, torch.nn.functional.softmax


def to_unless_double(self, *arguments, **options):
    dtype = options.get("dtype", arguments[0] if arguments else None)
    return self if self.dtype == torch.float64 and dtype == torch.float32 else _to(self, *arguments, **options)


def type_unless_double(self, *arguments):
    return self if self.dtype == torch.float64 and arguments == (torch.float32,) else _type(self, *arguments)


def softmax_in_own_dtype(values, *arguments, dtype=None, **options):
    return _softmax(values, *arguments, **options)


def compute_in_own_dtype(model) -> None:
    compute_delta_nets_in_own_dtype(model)
    for module in model.modules():
        if any(part in type(module).__name__ for part in ("Norm", "Router", "MoE", "SparseMoe")):
            for target, name, function in ((torch.Tensor, "float", float_unless_double), (torch.Tensor, "to", to_unless_double),
                                           (torch.Tensor, "type", type_unless_double),
                                           (torch.nn.functional, "softmax", softmax_in_own_dtype)):
                module.forward = mock.patch.object(target, name, function)(module.forward)


class Further(torch.nn.Module):
    """The layer and what is around it, with parameters of its own."""

    def __init__(self, model):
        super().__init__()
        config = copy.deepcopy(model.config)
        config.num_hidden_layers += 1
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types + ["full_attention"]
        if getattr(config, "mlp_layer_types", None):
            config.mlp_layer_types = config.mlp_layer_types + ["sparse"]
        layer, norm = type(model.model.layers[0]), type(model.model.norm)
        width = config.hidden_size
        self.layer = layer(config, config.num_hidden_layers - 1)
        self.embedding_norm, self.hidden_norm, self.norm = (norm(width, eps=config.rms_norm_eps) for _ in range(3))
        self.projection = torch.nn.Linear(2 * width, width, bias=False)
        self.qwen = config.model_type.startswith("qwen3")

    def forward(self, hidden, embedded, position_embeddings):
        joined = self.projection(torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], -1))
        output = self.layer(joined, position_embeddings=position_embeddings, attention_mask=None)
        return self.norm(output[0] if isinstance(output, tuple) else output)

    def on_disk(self, tensors: dict[str, torch.Tensor], config) -> dict[str, torch.Tensor]:
        """Tensors by this module's names -> by those of published files."""
        layer = "mtp." if self.qwen else f"model.layers.{config.num_hidden_layers}."
        names = dict(zip(("embedding_norm", "hidden_norm", "projection", "norm"),
                         ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm") if self.qwen else
                         ("enorm", "hnorm", "eh_proj", "shared_head.norm")))
        result = {}
        for name, value in tensors.items():
            part, rest = name.split(".", 1)
            if part == "layer":
                result[layer + ("layers.0." if self.qwen else "") + rest] = value
            else:
                result[f"{layer}{names[part]}.{rest}"] = value
        return tiny_models.on_disk(result, config)


def drawn(further: Further, config, seed: int) -> Further:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in further.named_parameters():
            noise = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise + 1 if "norm" in name and not further.qwen else noise)
        for name, buffer in further.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return further


def documents() -> list[list[int]]:
    """The last two begin alike: their prefix is one run of tokens, parted where the next tokens differ."""
    chooser = random.Random(7)
    lists = [[chooser.randrange(2, tiny_models.VOCAB) for _ in range(length)] for length in LENGTHS]
    lists[-1][:17] = lists[-2][:17]
    return lists


def expected(model, further, lists, detach: bool) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad(), further.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    further_sum, entries, further_entries = torch.zeros((), dtype=torch.float64), 0, 0
    for ids in lists:
        tokens = torch.tensor([ids[:-1]])
        hidden = model.model(tokens).last_hidden_state
        total = total - model.lm_head(hidden)[0].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None]).sum()
        entries += len(ids) - 1
        positions = torch.arange(len(ids) - 1)[None]
        rotated = model.model.rotary_emb(hidden, position_ids=positions)
        embedded = model.model.embed_tokens(torch.tensor([ids[1:]]))
        head = model.lm_head.weight
        if detach:
            hidden, embedded, head = hidden.detach(), embedded.detach(), head.detach()
        predicted = further(hidden, embedded, rotated)[0, :-1]
        if len(ids) > 2:
            scores = (predicted @ head.T).log_softmax(-1)
            further_sum = further_sum - scores.gather(1, torch.tensor(ids[2:])[:, None]).sum()
            further_entries += len(ids) - 2
    loss = further_sum / further_entries
    (total / entries + COEF * loss).backward()
    gradients = {}
    for module, rename in ((model, lambda t: tiny_models.on_disk(t, model.config)),
                           (further, lambda t: further.on_disk(t, model.config))):
        gradients |= rename({name: parameter.grad.clone() for name, parameter in module.named_parameters()} |
                            {name: torch.zeros_like(buffer) for name, buffer in module.named_buffers()
                             if "correction_bias" in name})
    return loss.item(), gradients


def check(executable: str, work: pathlib.Path, family: str) -> int:
    """Prints one row a layout; returns how many exceed the bound."""
    model = tiny_models.make_model(tiny_models.make_family(family), seed=len(family))
    further = drawn(Further(model), model.config, seed=3).eval()
    folder = tiny_models.save(model, work / family)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    stored |= {name: value.contiguous() for name, value in
               further.on_disk(dict(further.state_dict()), model.config).items()}
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    fields["mtp_num_hidden_layers" if further.qwen else "num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(fields))
    (work / "task.json").write_text(json.dumps({"documents": documents(), "coef": COEF}))
    out = work / f"{family}.safetensors"
    done = subprocess.run([executable, folder, work / "task.json", out], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{family}: {done.stderr}")
        return 1
    found = safetensors.torch.load_file(out)
    model, further = model.double(), further.double()
    compute_in_own_dtype(model), compute_in_own_dtype(further)
    references = {detach: expected(model, further, documents(), detach) for detach in (True, False)}
    failures = 0
    for layout in (name.removeprefix("loss/") for name in sorted(found) if name.startswith("loss/")):
        loss, gradients = references["shared" not in layout]
        prefix = f"gradient/{layout}/"
        names = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
        if names != set(gradients):
            print(f"{family}: parameters differ: {sorted(names ^ set(gradients))}")
            return failures + 1
        of_loss = abs(found[f"loss/{layout}"].item() - loss)
        worst, name = max(((found[prefix + name] - value).abs().max().item() / (value.abs().max().item() or 1.0), name)
                          for name, value in gradients.items())
        passed = of_loss <= BOUND and worst <= BOUND  # false for NaN too
        failures += not passed
        print(f"{family:<38}{layout:<36}loss {of_loss:.1e}, gradient {worst:.1e} {name}{'' if passed else ' FAIL'}",
              flush=True)
    return failures


def main() -> int:
    torch.set_num_threads(1)
    executable, *families = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        failures = sum(check(executable, pathlib.Path(folder), family) for family in families or FAMILIES)
    print(f"{failures} outside their bounds")
    return 1 if failures else 0


sys.exit(main())
