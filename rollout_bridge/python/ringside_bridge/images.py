"""Images of conversations: what they are known by, and their places in a completion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash

MAX_IMAGES = 1024  # places in a completion
MAX_SIDE = 65536
MAX_BYTES = 32 << 20  # of one image
MAX_ROLLOUT_BYTES = 256 << 20  # of a rollout's images, each counted once


def image_hash(pixels: np.ndarray) -> str:
    """XXH3-128 of the text "HEIGHT x WIDTH:" and the pixels, [height, width, 3] of uint8."""
    digest = xxhash.xxh3_128(f"{pixels.shape[0]} x {pixels.shape[1]}:".encode())
    digest.update(np.ascontiguousarray(pixels).tobytes())
    return digest.hexdigest()


@dataclass
class ConversationImage:
    """An image that a tool returned. Completion tokens [begin, end) are its placeholder, once for each of its
    tokens; nobody sampled them, so their `loss_mask` is 0."""

    pixels: np.ndarray  # [height, width, 3] of uint8: RGB, resized as the model takes it
    begin: int
    end: int
    hash: str = ""  # filled in from the pixels

    def __post_init__(self) -> None:
        shape = list(self.pixels.shape)
        if self.pixels.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3:
            raise ValueError(f"an image of {self.pixels.dtype} with shape {shape}, expected uint8 [height, width, 3]")
        if not (1 <= shape[0] <= MAX_SIDE and 1 <= shape[1] <= MAX_SIDE):
            raise ValueError(f"an image of {shape[0]} x {shape[1]} pixels, expected sides of 1 to {MAX_SIDE}")
        if self.pixels.nbytes > MAX_BYTES:
            raise ValueError(f"an image of {self.pixels.nbytes} bytes, limit {MAX_BYTES}")
        self.hash = self.hash or image_hash(self.pixels)

    def span(self) -> list[int]:
        return [self.begin, self.end, self.pixels.shape[0], self.pixels.shape[1]]


def distinct(images: list[ConversationImage] | None) -> list[ConversationImage]:
    """Each image once, in order."""
    return list({image.hash: image for image in images or []}.values())


def check_places(images: list[ConversationImage], loss_mask: list[int] | None, length: int,
                 branches: list[tuple[int, int]]) -> None:
    """Raises ValueError unless the images fit a completion of `length` tokens."""
    if len(images) > MAX_IMAGES:
        raise ValueError(f"images has {len(images)} entries, limit {MAX_IMAGES}")
    previous = 0
    for image in images:
        if not previous <= image.begin < image.end <= length:
            raise ValueError(f"images: tokens [{image.begin}, {image.end}) must begin at {previous} or later, not be "
                             f"empty, and end at {length} or before")
        if not loss_mask or any(loss_mask[image.begin:image.end]):
            raise ValueError(f"images: tokens [{image.begin}, {image.end}) must have loss_mask 0")
        for begin, context_end in branches:
            if image.begin < begin < image.end or image.begin < context_end < image.end:
                raise ValueError(f"images: a branch cuts tokens [{image.begin}, {image.end})")
        previous = image.end
    total = sum(image.pixels.nbytes for image in distinct(images))
    if total > MAX_ROLLOUT_BYTES:
        raise ValueError(f"images have {total} bytes together, limit {MAX_ROLLOUT_BYTES}")


def buffers(images: list[ConversationImage]) -> list[tuple[str, str, np.ndarray]]:
    """The frames of a ROLLOUT that name them."""
    hashes = np.frombuffer(bytes.fromhex("".join(image.hash for image in images)), "u1").reshape(-1, 16)
    spans = np.asarray([image.span() for image in images], "<i8").reshape(-1, 4)
    return [("image_hashes", "U8", hashes), ("image_spans", "I64", spans)]
