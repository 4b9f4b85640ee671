"""Models that take images against transformers: towers, log-probs, the gradient of every parameter, saved directories.

Documents have no, one or two images, with odd grids, at their ends, and without a token between them. There transformers
counts positions wrong and is given our own. Below float32 it computes parts of a tower in float32: the tower in float64 is
also compared with a rewrite that does not (tower_rewrite.py).

Usage: vision_parity.py VISION_PARITY_EXECUTABLE [FAMILY...], of tiny_vision.FAMILIES (all, if none is named)
"""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

import tiny_vision
import tower_rewrite
import tiny_models  # found through tiny_vision
from own_dtype import compute_delta_nets_in_own_dtype

LOGPROBS = {"float32": 2e-4, "float64": 1e-6}
ROWS = {"float32": 2e-5, "float64": 1e-6}
REWRITTEN_ROWS = 1e-12
GRADIENT = 1e-5  # of the largest element of the parameter's gradient


def name_on_disk(name: str, family: str) -> str:
    if not family.startswith("qwen2"):
        return name
    return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")


def expected_pass(model, family: str, documents, patches):
    """Log-probs of all documents and the gradients of their sum by the names of parameters on disk."""
    model.zero_grad()
    parts = []
    for document, of_document in zip(documents, patches):
        scores = model(**tiny_vision.inputs(document, of_document)).logits[0, :-1].log_softmax(-1)
        parts.append(scores.gather(1, torch.tensor(document["ids"][1:], dtype=torch.long)[:, None])[:, 0])
    logprobs = torch.cat(parts)
    logprobs.sum().backward()
    gradients = {name_on_disk(name, family): parameter.grad for name, parameter in model.named_parameters()}
    if family.endswith("_moe"):
        gradients = tiny_models.on_disk(gradients, model.config)
    return logprobs.detach().double(), gradients


@torch.no_grad()
def expected_rows(model, documents, patches):
    """Rows and deepstack rows of all images in one pass."""
    grids = torch.tensor([[1, *image["grid"]] for document in documents for image in document["images"]])
    out = model.model.visual(torch.cat(patches), grid_thw=grids)
    return out.pooler_output.double(), [rows.double() for rows in getattr(out, "deepstack_features", None) or []]


def load(folder: pathlib.Path):
    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", experts_implementation="eager", output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    assert not problems, f"transformers found in {folder}: {problems}"
    return model.eval()


@torch.no_grad()
def differing_logits(saved: pathlib.Path, original: pathlib.Path, documents, patches) -> int:
    """Documents for which transformers computes other logits with the one directory's weights than with the other's."""
    model = load(saved)
    logits = [model(**tiny_vision.inputs(*one)).logits for one in zip(documents, patches)]
    # Into the same memory: products of single rows have other bits at other alignments.
    model.load_state_dict(load(original).state_dict())
    return sum(not torch.equal(found, model(**tiny_vision.inputs(*one)).logits)
               for found, one in zip(logits, zip(documents, patches)))


class Rows:
    """Prints one row a quantity; counts those outside their bounds."""

    def __init__(self):
        self.failures = 0

    def add(self, family: str, dtype: str, what: str, worst: float, bound: float) -> None:
        passed = worst <= bound  # false for NaN too
        self.failures += not passed
        print(f"{family:<14}{dtype:<9}{what:<70}{worst:>12.2e}{'' if passed else f' FAIL, bound {bound}'}", flush=True)


def check_rows(table: Rows, family: str, dtype: str, found, expected, what: str, bound: float) -> None:
    rows, deepstack = expected
    table.add(family, dtype, f"rows, {what}", (found["rows"] - rows).abs().max().item(), bound)
    assert len(deepstack) == sum(name.startswith("deepstack/") for name in found), f"{family}: {len(deepstack)} deepstack"
    for k, of_level in enumerate(deepstack):
        table.add(family, dtype, f"deepstack rows {k}, {what}", (found[f"deepstack/{k}"] - of_level).abs().max().item(), bound)


def check_pass(table: Rows, family: str, dtype: str, found, expected, way: str) -> None:
    logprobs, gradients = expected
    table.add(family, dtype, f"log-probs, {way}", (found[f"logprobs/{way}"] - logprobs).abs().max().item(), LOGPROBS[dtype])
    if dtype != "float64":
        return
    prefix = f"gradient/{way}/"
    names = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
    assert names == set(gradients), f"{family}: parameters differ: {sorted(names ^ set(gradients))}"
    worst, name = max(((found[prefix + name] - value.view_as(found[prefix + name])).abs().max().item() / value.abs().max().item(),
                       name) for name, value in gradients.items())
    table.add(family, dtype, f"gradient, {way}, {name}", worst, GRADIENT)


def check(table: Rows, executable: str, work: pathlib.Path, family: str, dtype: str) -> None:
    model = tiny_vision.make_model(family)
    tiny_vision.save(model, work / family)
    documents = tiny_vision.make_documents()
    generator = torch.Generator().manual_seed(1)
    counts = [sum(h * w for h, w in (image["grid"] for image in document["images"])) for document in documents]
    patches = [torch.randn(count, tiny_vision.patch_numbers(model), generator=generator) for count in counts]
    (work / "task.json").write_text(json.dumps({"documents": documents}))
    safetensors.torch.save_file({f"patches/{d}": rows for d, rows in enumerate(patches) if len(rows)}, work / "patches")
    done = subprocess.run([executable, work / family, dtype, work / "task.json", work / "patches", work / "out"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{family} {dtype}: {done.stderr}")
        table.failures += 1
        return
    found = safetensors.torch.load_file(work / "out")
    if dtype == "float32":
        table.add(family, dtype, "documents with other logits of the saved model",
                  differing_logits(work / f"{family}-saved", work / family, documents, patches), 0)
    model = copy.deepcopy(model).to(getattr(torch, dtype))
    patches = [rows.to(getattr(torch, dtype)) for rows in patches]
    if dtype == "float64":
        compute_delta_nets_in_own_dtype(model)
        tensors = {name: value for name, value in model.model.visual.state_dict().items()}
        grids = [image["grid"] for document in documents for image in document["images"]]
        rewritten = tower_rewrite.Tower(family, tensors, model.config.vision_config).encode(torch.cat(patches), grids)
        check_rows(table, family, dtype, found, rewritten, "rewritten tower", REWRITTEN_ROWS)
    check_rows(table, family, dtype, found, expected_rows(model, documents, patches), "transformers", ROWS[dtype])
    expected = expected_pass(model, family, documents, patches)
    for way in ("plain", "recomputed"):
        check_pass(table, family, dtype, found, expected, way)


def main() -> int:
    torch.set_num_threads(1)
    executable, *families = sys.argv[1:]
    table = Rows()
    with tempfile.TemporaryDirectory() as folder:
        for family in families or tiny_vision.FAMILIES:
            for dtype in LOGPROBS:
                check(table, executable, pathlib.Path(folder), family, dtype)
    print(f"{table.failures} outside their bounds")
    return 1 if table.failures else 0


sys.exit(main())
