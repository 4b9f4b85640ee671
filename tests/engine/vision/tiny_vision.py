"""Small randomly drawn models that take images, and documents for them."""
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "oracle"))
import tiny_models  # noqa: E402  (found through the line above)

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
MERGE = 2
VOCAB, IMAGE = 64, 60
IDS = {"image_token_id": IMAGE, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}


def _rope(**fields) -> dict:
    return {"rope_type": "default", "rope_theta": 1e4, **fields}


def make_config(family: str):
    """A tower of three blocks with patches of 4 pixels; in qwen2_5_vl windows of 2 tokens a side in the first and the last
    block."""
    text = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=None,
                eos_token_id=1, pad_token_id=0)
    vision = dict(depth=3, num_heads=2, patch_size=4, temporal_patch_size=2, spatial_merge_size=MERGE)
    table = dict(hidden_size=24, intermediate_size=28, out_hidden_size=32, num_position_embeddings=16)
    if family == "qwen2_vl":
        text["rope_parameters"] = _rope(mrope_section=[1, 1, 2])
        vision |= dict(embed_dim=24, mlp_ratio=2, hidden_size=32)
        return transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **IDS)
    if family == "qwen2_5_vl":
        text["rope_parameters"] = _rope(mrope_section=[1, 1, 2])
        vision |= dict(hidden_size=24, intermediate_size=28, out_hidden_size=32, window_size=16,
                       fullatt_block_indexes=[1])
        return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **IDS)
    if family == "qwen3_vl":
        text |= dict(head_dim=16, rope_parameters=_rope(mrope_section=[4, 2, 2], mrope_interleaved=True))
        return transformers.Qwen3VLConfig(text_config=text, vision_config=vision | table | {"deepstack_visual_indexes": [0, 1]},
                                          **IDS)
    if family == "qwen3_vl_moe":
        text |= dict(head_dim=16, rope_parameters=_rope(mrope_section=[3, 3, 2], mrope_interleaved=True), num_experts=4,
                     num_experts_per_tok=2, moe_intermediate_size=20)
        return transformers.Qwen3VLMoeConfig(text_config=text,
                                             vision_config=vision | table | {"deepstack_visual_indexes": [0, 2]}, **IDS)
    if family in ("qwen3_5", "qwen3_5_moe"):
        text |= dict(num_hidden_layers=4, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
                     linear_key_head_dim=8, linear_value_head_dim=12, linear_conv_kernel_dim=4, full_attention_interval=2,
                     rope_parameters=_rope(partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True))
        if family == "qwen3_5":
            return transformers.Qwen3_5Config(text_config=text, vision_config=vision | table, **IDS)
        del text["intermediate_size"]
        text |= dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=16)
        return transformers.Qwen3_5MoeConfig(text_config=text, vision_config=vision | table, **IDS)
    raise ValueError(f"family is '{family}', expected one of {FAMILIES}")


def make_model(family: str):
    """A float32 model, all of it drawn wide: with transformers' own start every image looks alike."""
    # Hybrid models amplify the roundings of what transformers computes in float32 more than others.
    std = 0.1 if family.startswith("qwen3_5") else 0.15
    model = tiny_models.make_model(make_config(family), seed=len(family), std=std)
    if family.startswith("qwen3_5"):  # the text's norms store their factor less 1, the tower's do not
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".visual." in name and "norm" in name and name.endswith("weight"):
                    parameter.add_(1)
    return model


def save(model, folder: pathlib.Path) -> pathlib.Path:
    model.save_pretrained(folder)
    return folder


def patch_numbers(model) -> int:
    """Numbers of a patch row."""
    vision = model.config.vision_config
    return 3 * vision.temporal_patch_size * vision.patch_size**2


def make_documents() -> list[dict]:
    """Documents of parts: a number of text tokens, or the grid of an image. Some have images at their ends, and the last
    one has images without a token between them."""
    chooser = random.Random(3)
    documents = []
    for parts in ([9], [3, (4, 4), 5], [6, (6, 10), 2], [4, (2, 6), 3, (6, 4), 7], [(4, 2), 5, (2, 2)], [1],
                  [2, (4, 6), (2, 4), 4]):
        ids, images = [], []
        for part in parts:
            if isinstance(part, int):
                ids += [chooser.randrange(2, IMAGE) for _ in range(part)]
            else:
                images.append({"begin": len(ids), "grid": list(part)})
                ids += [IMAGE] * (part[0] * part[1] // MERGE**2)
        documents.append({"ids": ids, "images": images})
    return documents


def are_adjacent(images: list[dict]) -> bool:
    """Whether one image follows another directly, where transformers counts positions wrong."""
    return any(one["begin"] + one["grid"][0] * one["grid"][1] // MERGE**2 == next_one["begin"]
               for one, next_one in zip(images, images[1:]))


def positions(document: dict) -> torch.Tensor:
    """Time, height and width of each token, [3, 1, tokens], written apart from both sides."""
    at, rows = 0, []
    starts = {image["begin"]: image["grid"] for image in document["images"]}
    token = 0
    while token < len(document["ids"]):
        if token not in starts:
            rows.append((at, at, at))
            at, token = at + 1, token + 1
            continue
        height, width = (side // MERGE for side in starts[token])
        rows += [(at, at + y, at + x) for y in range(height) for x in range(width)]
        at, token = at + max(height, width), token + height * width
    return torch.tensor(rows).t().unsqueeze(1)


def inputs(document: dict, patches: torch.Tensor) -> dict:
    """Arguments of a model's forward. patches: of all images of the document."""
    ids = torch.tensor([document["ids"]])
    arguments = {"input_ids": ids}
    if document["images"]:
        is_image = torch.zeros_like(ids)
        for image in document["images"]:
            height, width = image["grid"]
            is_image[0, image["begin"]:image["begin"] + height * width // MERGE**2] = 1
        arguments |= {"pixel_values": patches, "mm_token_type_ids": is_image,
                      "image_grid_thw": torch.tensor([[1, *image["grid"]] for image in document["images"]])}
    if are_adjacent(document["images"]):
        arguments["position_ids"] = positions(document)
    return arguments
