"""Writes the seeds of corpus/image: small files of every form that is decoded, and hostile ones (hostile_*).

Usage: .env/oracle/bin/python tests/fuzz/make_images.py
"""

import io
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).parent / "corpus" / "image"
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write(name: str, data: bytes) -> None:
    (FOLDER / name).write_bytes(data)


def saved(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, colour: int, data: bytes, *more: bytes, interlace: int = 0) -> bytes:
    return (SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)) +
            b"".join(more) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def interlaced(pixels: np.ndarray) -> bytes:
    """Adam7, which Pillow reads and does not write."""
    data = b""
    for y, x, step_y, step_x in [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                                 (1, 0, 2, 1)]:
        data += b"".join(b"\0" + row.tobytes() for row in pixels[y::step_y, x::step_x] if row.size)
    return png(pixels.shape[1], pixels.shape[0], 8, 2, data, interlace=1)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    y, x, c = np.mgrid[0:10, 0:14, 0:3]
    pixels = ((y * 20 + x * 9 * (c + 1)) % 256).astype(np.uint8)
    rgb = Image.fromarray(pixels)
    rgba = Image.fromarray(np.concatenate([pixels, pixels[:, :, :1]], -1), "RGBA")
    turned = Image.Exif()
    turned[0x0112] = 6
    write("rgb.jpg", saved(rgb, "JPEG", quality=80))
    write("progressive.jpg", saved(rgb, "JPEG", quality=80, progressive=True))
    write("grey.jpg", saved(rgb.convert("L"), "JPEG"))
    write("exif_6.jpg", saved(rgb, "JPEG", exif=turned, quality=40))
    write("rgb.png", saved(rgb, "PNG"))
    write("rgba.png", saved(rgba, "PNG"))
    write("palette_alpha.png", saved(rgba.quantize(12), "PNG"))
    write("two_bits.png", saved(rgb.convert("L").quantize(4), "PNG"))
    write("exif_6.png", saved(rgb, "PNG", exif=turned))
    write("interlaced.png", interlaced(pixels))
    write("lossy.webp", saved(rgb, "WEBP", quality=50))
    write("lossless_alpha.webp", saved(rgba, "WEBP", lossless=True))
    write("exif_6.webp", saved(rgb, "WEBP", exif=turned, quality=50))
    write("animated.webp", saved(rgba, "WEBP", save_all=True, append_images=[rgba.rotate(180)], lossless=True))

    write("hostile_cmyk.jpg", saved(rgb.convert("CMYK"), "JPEG"))
    write("hostile_16_bits.png", saved(Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257), "PNG"))
    write("hostile_gif", saved(rgb, "GIF"))
    # Heads that say more than the file holds.
    jpeg = saved(rgb, "JPEG")
    at = jpeg.index(b"\xff\xc0") + 5
    write("hostile_head.jpg", jpeg[:at] + struct.pack(">HH", 9000, 9000) + jpeg[at + 4:])
    write("hostile_head.png", png(9000, 9000, 8, 2, b"\0" * 900))
    # 20000 x 20000 pixels in 50 kB of honest zeros, of one bit each.
    write("hostile_bomb.png", png(20000, 20000, 1, 0, b"\0" * (2501 * 20000)))
    # A lossless WebP of 16383 x 16383 pixels of one colour: six simple codes, no bits a pixel.
    bits = 16382 | 16382 << 14
    body = b"\x2f" + struct.pack("<I", bits) + b"\x00" * 12
    write("hostile_bomb.webp", b"RIFF" + struct.pack("<I", len(body) + 13) + b"WEBPVP8L" +
          struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2))
    # Text that inflates to 8 MB, and a colour that the palette lacks.
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"a" * (8 << 20), 9))
    write("hostile_text.png", png(14, 10, 8, 2, b"".join(b"\0" + row.tobytes() for row in pixels), text))
    write("hostile_palette.png", png(4, 1, 8, 3, b"\0\0\1\2\3", chunk(b"PLTE", b"\1\2\3" * 3)))
    # One scan after another over the same pixels.
    progressive = saved(rgb, "JPEG", progressive=True)
    begin = progressive.index(b"\xff\xda")
    end = next(i for i in range(begin + 14, len(progressive)) if progressive[i] == 0xFF and progressive[i + 1] != 0)
    # Its averages alone, at full precision, which may be sent any number of times.
    scan = progressive[begin:begin + 13] + b"\0" + progressive[begin + 14:end]
    write("hostile_scans.jpg", progressive[:begin] + scan * 200 + progressive[-2:])


if __name__ == "__main__":
    main()
