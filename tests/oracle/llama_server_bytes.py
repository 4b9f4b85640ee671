"""ringside_bridge.llama_server with a vocabulary as byte-level tokenizers make it: every third token is the first byte of a
character that never ends, so llama.cpp holds it back and leaves its log-prob out. For server_grpo.py --byte-texts."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"))

from ringside_bridge import gguf_writer, llama_server  # noqa: E402


def byte_texts(size: int) -> list[str]:
    """Letters, and in the alphabet of byte-level tokenizers (where 0xC2..0xF4 are the characters of these numbers) bytes
    that begin a character."""
    return [chr(0xC2 + i // 3) if i % 3 == 2 else f"<{i}>" for i in range(size)]


def write_gguf(directory: pathlib.Path, path: pathlib.Path) -> None:
    size = json.loads((directory / "config.json").read_text())["vocab_size"]
    gguf_writer.write_gguf(directory, path, byte_texts(size))


if __name__ == "__main__":
    llama_server.write_gguf = write_gguf
    llama_server.main()
