"""A weights socket for tests: a ROUTER that answers CHUNK_REQUEST from the tensors of a model, as rollout_bridge/PROTOCOL.md
has it, and manifests for it. It can flip a bit in a tensor, damage frames, and stay silent."""

import base64
import contextlib
import pathlib
import sys
import threading

import msgpack
import numpy as np
import torch
import zmq

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"))

from ringside_bridge import weights, wire  # noqa: E402

RUN_ID, RUN_EPOCH = "run", 3
_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}


def bits(tensor: torch.Tensor) -> np.ndarray:
    """Its bytes, row-major."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def manifest_of(version: int, tensors: dict[str, torch.Tensor]) -> dict:
    entries, offset = [], 0
    for name, tensor in tensors.items():
        data = bits(tensor)
        entries.append({"name": name, "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "offset": offset,
                        "bytes": data.nbytes, "xxh3": weights.tensor_hash(data.tobytes())})
        offset += data.nbytes
    return {"run_id": RUN_ID, "trainer_term": RUN_EPOCH, "version": version, "base_version": -1, "encoding": "dense",
            "tensors": entries, "root_hash": weights.root_hash(entries)}


def published(model) -> dict[str, torch.Tensor]:
    """What a trainer publishes of a Hugging Face model: its state without the copy of tied embeddings."""
    tied = model.config.tie_word_embeddings
    return {k: v.detach().clone() for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}


class WeightSource:
    """Serves what hold() was given. `flips`: names of tensors whose chunks come with one bit turned over and a frame hash
    that agrees; `damaged`: how many of the next chunks come with a frame hash that does not; `silent`: no answers."""

    def __init__(self, address: str = "tcp://127.0.0.1:*", curve: tuple[bytes, bytes] | None = None):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        if curve is not None:
            self._socket.curve_server = True
            self._socket.curve_publickey, self._socket.curve_secretkey = curve
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.flips: set[str] = set()
        self.damaged, self.silent, self.served = 0, False, 0
        self._held: dict[int, tuple[dict, list[np.ndarray]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def hold(self, version: int, tensors: dict[str, torch.Tensor], **changes) -> dict:
        """Serves `tensors` as `version`; returns the keywords of a pull, `changes` written over the manifest's fields."""
        manifest = manifest_of(version, tensors)
        self._held[version] = (manifest, [bits(t) for t in tensors.values()])
        return self.request(manifest | changes)

    def request(self, manifest: dict) -> dict:
        text = base64.b64encode(msgpack.packb(manifest)).decode()
        return {"address": self.address, "manifest": text, "run_id": RUN_ID, "trainer_term": RUN_EPOCH, "timeout_s": 60.0}

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _loop(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(20):
                identity, *parts = self._socket.recv_multipart()
                with contextlib.suppress(wire.WireError):
                    self._answer(identity, wire.unpack(parts))

    def _answer(self, identity: bytes, request: wire.Message) -> None:
        if self.silent:
            return
        body = request.body
        held = self._held.get(body["version"])
        if held is None:
            kind, reply, buffers = "ERROR", {"reason": "gone", "detail": "not held", "fatal": False,
                                             "version": body["version"]}, []
        else:
            data = held[1][body["tensor"]][body["offset"]:body["offset"] + body["bytes"]].copy()
            if held[0]["tensors"][body["tensor"]]["name"] in self.flips:
                data[data.size // 2] ^= 1
            kind, reply, buffers = "CHUNK", body, [("data", "U8", data)]
        parts = wire.pack(kind, reply, run_id=request.run_id, trainer_term=request.trainer_term, worker_id="", incarnation=0,
                          seq=0, buffers=buffers)
        if self.damaged and buffers:
            self.damaged -= 1
            parts[1] = bytes([parts[1][0] ^ 1]) + parts[1][1:]
        self.served += 1
        self._socket.send_multipart([identity, *parts])
