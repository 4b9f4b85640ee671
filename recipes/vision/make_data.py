"""Makes the data of the vision quickstart: how many squares are in an image, with demonstrations that are flawed on purpose.

An image has 32 x 32 pixels and 1 to 5 coloured squares on white. In a share of the demonstrations an image of three and more
squares is counted one too low. A reward that knows the right number repairs what they taught.

Writes into --out, the same files for the same arguments:
    model/           config.json of a small Qwen3-VL (0.2 million parameters), a tokenizer of single characters with the
                     placeholders of images, preprocessor_config.json
    images/*.png
    sft.jsonl        {"prompt", "image", "completion"}   demonstrations
    train.jsonl      {"id", "prompt", "image", "answer"} prompts to train on
    held_out.jsonl   the same                            to choose settings by
    test.jsonl       the same                            for the final figure
No image is in two of train, held_out and test; demonstrations show images of train.

Usage: make_data.py --out DIR [--seed N] [--flawed SHARE]
"""
import argparse
import pathlib
import random
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import quickstart_task as text  # noqa: E402

SIDE, CELL = 32, 8
COLOURS = ((220, 40, 40), (40, 160, 60), (40, 70, 210), (230, 160, 30))
MOST = 5
START, END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
PROMPT = START + IMAGE + END + "squares:"


def png(pixels: list[bytes]) -> bytes:
    """A PNG of rows of RGB bytes."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", len(pixels[0]) // 3, len(pixels), 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def draw(count: int, rng: random.Random) -> bytes:
    """An image of `count` squares of 4 to 6 pixels, each in a cell of its own."""
    canvas = [[(255, 255, 255)] * SIDE for _ in range(SIDE)]
    for cell in rng.sample(range((SIDE // CELL) ** 2), count):
        side, colour = rng.randint(4, 6), rng.choice(COLOURS)
        top = cell // (SIDE // CELL) * CELL + rng.randint(0, CELL - side)
        left = cell % (SIDE // CELL) * CELL + rng.randint(0, CELL - side)
        for row in range(top, top + side):
            canvas[row][left:left + side] = [colour] * side
    return png([bytes(value for pixel in row for value in pixel) for row in canvas])


def model_config(vocabulary: dict[str, int]) -> dict:
    ids = {"image_token_id": vocabulary[IMAGE], "video_token_id": vocabulary[VIDEO],
           "vision_start_token_id": vocabulary[START], "vision_end_token_id": vocabulary[END]}
    text_config = {
        "model_type": "qwen3_vl_text", "vocab_size": len(vocabulary), "hidden_size": 64, "intermediate_size": 192,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu",
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2],
                            "mrope_interleaved": True},
        "bos_token_id": None, "eos_token_id": vocabulary[text.EOS], "pad_token_id": vocabulary[text.PAD]}
    vision_config = {"model_type": "qwen3_vl", "depth": 2, "hidden_size": 48, "intermediate_size": 96, "num_heads": 4,
                     "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3,
                     "hidden_act": "gelu_pytorch_tanh", "out_hidden_size": 64, "num_position_embeddings": 64,
                     "deepstack_visual_indexes": [0]}
    return {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "dtype": "float32",
            "tie_word_embeddings": True, "text_config": text_config, "vision_config": vision_config, **ids}


def write_model(folder: pathlib.Path) -> None:
    """config.json, tokenizer and image processor of a model whose weights are still to be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = text.vocabulary_of(text.CHARACTERS)
    for token in (START, END, IMAGE, VIDEO):
        vocabulary[token] = len(vocabulary)
    tokenizer = text.tokenizer_json(vocabulary)
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": vocabulary[token], "content": token}
                                  for token in (START, END, IMAGE, VIDEO)]
    text.write_json(folder / "config.json", model_config(vocabulary))
    text.write_json(folder / "tokenizer.json", tokenizer)
    text.write_json(folder / "tokenizer_config.json", text.tokenizer_config())
    text.write_json(folder / "preprocessor_config.json", {
        "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 64, "longest_edge": 4096}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})


def said(count: int, flawed: float, rng: random.Random) -> int:
    return count - 1 if count >= 3 and rng.random() < flawed else count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory to write, made if it is missing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flawed", type=text.share, default=0.6,
                        help="share of the demonstrations of three and more squares that count one too few")
    parser.add_argument("--demonstrations", type=int, default=16000)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    write_model(options.out / "model")
    (options.out / "images").mkdir(exist_ok=True)
    records, seen = {}, set()
    for name, images in (("train", 4000), ("held_out", 500), ("test", 500)):
        records[name] = []
        while len(records[name]) < images:
            count = rng.randint(1, MOST)
            pixels = draw(count, rng)
            if pixels in seen:
                continue
            seen.add(pixels)
            path = f"images/{name}-{len(records[name])}.png"
            (options.out / path).write_bytes(pixels)
            records[name].append({"id": path[7:-4], "prompt": PROMPT, "image": path, "answer": str(count)})
        text.write_lines(options.out / f"{name}.jsonl", records[name])
    demonstrations = []
    for _ in range(options.demonstrations):
        shown = rng.choice(records["train"])
        count = said(int(shown["answer"]), options.flawed, rng)
        demonstrations.append({"prompt": PROMPT, "image": shown["image"], "completion": f"{count}{text.EOS}"})
    text.write_lines(options.out / "sft.jsonl", demonstrations)
    print(f"{options.out}: {len(demonstrations)} demonstrations, " +
          ", ".join(f"{len(lines)} images in {name}.jsonl" for name, lines in records.items()))


if __name__ == "__main__":
    main()
