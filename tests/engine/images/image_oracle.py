"""Compares images, sizes and positions with Pillow, LibTorch's kernel and transformers.

Usage: image_oracle.py IMAGE_LINES. Pixels of JPEG, PNG and WebP files equal Pillow's as transformers uses it
(orientation applied, then over white), resized bytes equal torch's interpolate, sizes equal smart_resize and
positions equal get_rope_index of all three families. What the table of formats refuses is refused.
"""

import io
import itertools
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import types

import numpy as np
import torch
import xxhash
from PIL import Image, ImageFile, ImageOps
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

ImageFile.MAXBLOCK = 1 << 22  # else Pillow cannot write large files of high quality
SIZES = [(1, 1), (7, 9), (8, 8), (16, 17), (33, 64), (127, 61), (240, 320)]


def pixels(height: int, width: int, channels: int, seed: int) -> np.ndarray:
    """Smooth colours with noise, so that every coefficient of a transform has something to do."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin((c + 1) * y / 9 + c) * np.cos(x / (5 + c)) for c in range(channels)]
    noise = draw.integers(-25, 26, (height, width, channels))
    return np.clip(np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def expected(data: bytes) -> tuple[int, int, str]:
    """Height, width and hash of the pixels by Pillow: upright, over white."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.split()[3])
        image = white
    image = image.convert("RGB")
    return image.height, image.width, xxhash.xxh3_128_hexdigest(image.tobytes())


def saved(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    tags[0x010F] = "a camera"
    return tags.tobytes()


def jpegs():
    for (height, width), quality, sampling, progressive in itertools.product(
            SIZES, [30, 75, 95, 100], [0, 1, 2], [False, True]):
        image = Image.fromarray(pixels(height, width, 3, height + quality))
        yield f"jpeg {height}x{width} q{quality} s{sampling} p{progressive}", saved(
            image, "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
    for height, width in SIZES:
        yield f"grey jpeg {height}x{width}", saved(Image.fromarray(pixels(height, width, 1, 5)[:, :, 0]), "JPEG")
    image = Image.fromarray(pixels(40, 56, 3, 1))
    yield "jpeg in RGB", saved(image, "JPEG", keep_rgb=True)
    yield "jpeg with restarts", saved(image, "JPEG", restart_marker_rows=1)
    yield "jpeg with a profile and a comment", saved(image, "JPEG", icc_profile=b"p" * 500, comment="c")
    for orientation in range(1, 9):
        for order in ("<", ">"):
            yield f"jpeg of orientation {orientation} {order}", saved(image, "JPEG", exif=turned(orientation, order))
    for wrong in (0, 9, 77):
        yield f"jpeg of orientation {wrong}", saved(image, "JPEG", exif=exif(wrong))


def turned(orientation: int, order: str) -> bytes:
    """An EXIF block by hand, in a byte order."""
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    entries = [struct.pack(order + "HHII", 0x0100, 4, 1, 56),
               struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)]
    return b"Exif\0\0" + head + struct.pack(order + "H", 2) + b"".join(entries) + struct.pack(order + "I", 0)


def pngs():
    for height, width in SIZES:
        rgb = Image.fromarray(pixels(height, width, 3, 3))
        rgba = Image.fromarray(pixels(height, width, 4, 4), "RGBA")
        grey = rgb.convert("L")
        both = Image.merge("LA", (grey, rgba.split()[3]))
        for name, image in {"rgb": rgb, "rgba": rgba, "grey": grey, "grey and alpha": both,
                            "palette": rgb.quantize(200), "palette of 4": rgb.quantize(4),
                            "palette with alpha": rgba.quantize(60), "black and white": rgb.convert("1")}.items():
            yield f"png {name} {height}x{width}", saved(image, "PNG")
        yield f"png one colour transparent {height}x{width}", saved(rgb, "PNG", transparency=rgb.getpixel((0, 0)))
        yield f"png one grey transparent {height}x{width}", saved(grey, "PNG", transparency=grey.getpixel((0, 0)))
        yield f"png one palette entry transparent {height}x{width}", saved(rgb.quantize(9), "PNG", transparency=0)
    for orientation in range(1, 9):
        yield f"png of orientation {orientation}", saved(rgb, "PNG", exif=exif(orientation))
    steps = Image.fromarray(np.array([[(255 - x, y, a, a) for a in range(256)] for x, y in [(0, 9), (99, 255)]],
                                     np.uint8), "RGBA")
    yield "png of all alphas", saved(steps, "PNG")
    yield "png with a profile and text", saved(rgb, "PNG", icc_profile=b"p" * 500)


def webps():
    for height, width in SIZES:
        for lossless, channels in itertools.product([False, True], [3, 4]):
            image = Image.fromarray(pixels(height, width, channels, 7), "RGB" if channels == 3 else "RGBA")
            yield f"webp {lossless} {channels} {height}x{width}", saved(
                image, "WEBP", lossless=lossless, quality=70)
    for orientation in range(1, 9):
        yield f"webp of orientation {orientation}", saved(
            Image.fromarray(pixels(20, 31, 3, 8)), "WEBP", exif=exif(orientation))
    frames = [Image.fromarray(pixels(20, 31, 4, seed), "RGBA") for seed in (1, 2)]
    yield "animated webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)


def refused():
    image = Image.fromarray(pixels(24, 32, 3, 1))
    deep = Image.fromarray((pixels(24, 32, 1, 1)[:, :, 0].astype(np.uint16) * 257))
    yield "16 bits", saved(deep, "PNG")
    yield "CMYK", saved(image.convert("CMYK"), "JPEG")
    for form in ("GIF", "BMP", "TIFF", "AVIF"):
        yield f"a{'n' if form[0] == 'A' else ''} {form}", saved(image, form)
    for form in ("JPEG", "PNG", "WEBP"):
        whole = saved(image, form)
        for part in (0.3, 0.6, 0.95):
            yield "be decoded", whole[:int(len(whole) * part)]
    progressive = saved(image, "JPEG", progressive=True)
    yield "be decoded", progressive[:len(progressive) * 3 // 4]


def resizes(folder: pathlib.Path):
    draw = random.Random(1)
    cases = [(42, 70, 56, 56), (98, 126, 112, 112), (30, 40, 56, 56), (64, 64, 64, 32), (64, 64, 32, 64), (1, 1, 28, 28),
             (900, 5, 840, 28), (200, 300, 56, 84)]
    cases += [tuple(draw.randrange(1, 200) for _ in range(2)) + tuple(draw.randrange(1, 240) for _ in range(2))
              for _ in range(60)]
    for number, (height, width, to_height, to_width) in enumerate(cases):
        image = pixels(height, width, 3, number)
        if number % 2 == 0:  # noise: every byte at its limits
            image = np.random.default_rng(number).choice(np.array([0, 255, 128], np.uint8), (height, width, 3))
        file = folder / f"{number}.rgb"
        file.write_bytes(image.tobytes())
        tensor = torch.from_numpy(image).permute(2, 0, 1)[None].contiguous()
        want = torch.nn.functional.interpolate(tensor, (to_height, to_width), mode="bicubic", antialias=True,
                                               align_corners=False)
        yield ({"resize": [height, width, to_height, to_width], "rgb": str(file)},
               {"hash": xxhash.xxh3_128_hexdigest(want[0].permute(1, 2, 0).contiguous().numpy().tobytes())})


def sizes():
    draw = random.Random(2)
    options = [(14, 2, 56 * 56, 28 * 28 * 1280), (14, 2, 3136, 12845056), (16, 2, 65536, 16777216), (16, 2, 256, 4096),
               (4, 2, 64, 1024), (14, 2, 3136, 3136)]
    plain = [(42, 70), (98, 126), (14, 14), (1, 200), (200, 1), (1, 201), (13, 13), (4000, 6000), (10000, 50)]
    for patch, merge, least, most in options:
        for height, width in plain + [(draw.randrange(1, 3000), draw.randrange(1, 3000)) for _ in range(120)]:
            try:
                want = {"size": list(smart_resize(height, width, patch * merge, least, most))}
            except ValueError:
                want = None
            yield {"smart_resize": [height, width], "options": [patch, merge, least, most]}, want


class Config:
    vision_config = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)


def documents():
    """Random documents with text between images, which the package needs."""
    draw = random.Random(3)
    for model in (Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel, Qwen3_5Model):
        class Plain:
            config = Config
            get_vision_position_ids = model.get_vision_position_ids
            get_rope_index = model.get_rope_index
        for case in range(40):
            types_of, images = [0] * draw.randrange(case % 2, 6), []
            for _ in range(case % 5):
                grid = [2 * draw.randrange(1, 8), 2 * draw.randrange(1, 8)]
                images.append([len(types_of), *grid])
                types_of += [1] * (grid[0] * grid[1] // 4) + [0] * draw.randrange(1, 9)
            types_of += [0] * draw.randrange(1, 5)
            grids = torch.tensor([[1, h, w] for _, h, w in images]) if images else None
            found, _ = Plain().get_rope_index(torch.zeros(1, len(types_of), dtype=torch.long),
                                              torch.tensor([types_of]), image_grid_thw=grids)
            yield ({"positions": len(types_of), "merge": 2, "images": images},
                   dict(zip(("time", "height", "width"), found[:, 0].tolist())))


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        requests, wanted, names = [], [], []

        def add(request, want, what):
            requests.append(request)
            wanted.append(want)
            names.append(what)

        for number, (what, data) in enumerate(itertools.chain(jpegs(), pngs(), webps())):
            file = folder / f"{number}.image"
            file.write_bytes(data)
            add({"decode": str(file)}, dict(zip(("height", "width", "hash"), expected(data))), what)
        for number, (word, data) in enumerate(refused()):
            file = folder / f"refused{number}.image"
            file.write_bytes(data)
            add({"decode": str(file)}, word, f"refused: {word}, {len(data)} bytes")
        for request, want in itertools.chain(resizes(folder), sizes(), documents()):
            add(request, want, json.dumps(request)[:120])
        done = subprocess.run([sys.argv[1]], input="".join(json.dumps(r) + "\n" for r in requests), text=True,
                              stdout=subprocess.PIPE, check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = 0
    for what, want, got in zip(names, wanted, answers, strict=True):
        right = got == want if isinstance(want, dict) else want is None and "error" in got or (
            isinstance(want, str) and want in got.get("error", ""))
        if not right:
            wrong += 1
            print(f"{what}: expected {str(want)[:200]}, is {str(got)[:200]}")
    print(f"{len(answers)} compared, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
