"""Goldens of transformers' image processor: grids and hashes of pixel_values for a table of sizes.

Usage: .env/oracle/bin/python tests/goldens/image_processor.py, with torchvision 0.26 on PYTHONPATH, which .env/oracle
lacks: `pip download --no-deps torchvision==0.26.0`, then unzip it. Made with transformers 5.9.0 and torch 2.11.0.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import xxhash
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

import golden_file

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
# As the models' files have them, and one for small models.
CONFIGS = {
    "qwen2_5_vl": {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2,
                   "merge_size": 2, **CLIP, "image_processor_type": "Qwen2VLImageProcessor",
                   "processor_class": "Qwen2_5_VLProcessor"},
    "qwen3_vl": {"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16,
                 "temporal_patch_size": 2, "merge_size": 2, **HALF, "processor_class": "Qwen3VLProcessor",
                 "image_processor_type": "Qwen2VLImageProcessorFast"},
    "tiny": {"size": {"longest_edge": 4096, "shortest_edge": 64}, "patch_size": 4, "temporal_patch_size": 3,
             "merge_size": 2, **CLIP, "resample": 3, "do_resize": True},
}
SIZES = [(42, 70), (98, 126), (56, 56), (28, 28), (1, 1), (3, 500), (500, 3), (64, 48), (100, 300), (333, 217), (480, 640),
         (41, 43), (256, 256), (255, 257), (14, 14), (30, 31), (700, 20), (96, 160)]
RECIPES = ["noise", "waves", "edges"]


def image(recipe: str, height: int, width: int) -> np.ndarray:
    """Pixels from integers alone, so that another program draws the same."""
    if recipe == "noise":
        state, values = 12345 + height * 1000 + width, np.empty(height * width * 3, np.uint8)
        for i in range(values.size):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            values[i] = state >> 56
        return values.reshape(height, width, 3)
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    if recipe == "waves":
        return ((y * (c + 2) + x * (5 - c) + y * x // 16) % 256).astype(np.uint8)
    return np.where((y // 5 + x // 3 + c) % 2 == 0, 255, 0).astype(np.uint8)


def main() -> None:
    rows = []
    for family, config in CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "preprocessor_config.json").write_text(json.dumps(config))
            processor = Qwen2VLImageProcessor.from_pretrained(folder)
        for number, (height, width) in enumerate(SIZES):
            recipe = RECIPES[number % 3 if family != "tiny" else (number + 1) % 3]
            pixels = torch.from_numpy(image(recipe, height, width)).permute(2, 0, 1)
            out = processor(images=[pixels], return_tensors="pt")
            values = out["pixel_values"].contiguous().numpy()
            assert values.dtype == np.float32
            rows.append({"family": family, "recipe": recipe, "height": height, "width": width,
                         "grid": out["image_grid_thw"][0].tolist(), "shape": list(values.shape),
                         "hash": xxhash.xxh3_128_hexdigest(values.tobytes())})
    golden_file.write_rows(pathlib.Path(__file__).with_suffix(".json"), {"configs": CONFIGS, "images": rows})


if __name__ == "__main__":
    main()
