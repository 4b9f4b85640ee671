"""prime-rl's side of its batch transport, for tests: its structs and its publisher.

Written from PrimeIntellect-ai/prime-rl, src/prime_rl/transports/batch/types.py at commit 0f59b241 and zmq.py at 43da2dcb. The
order of a struct's fields is the wire format.
"""

from __future__ import annotations

import msgspec
import zmq


class MMImageRef(msgspec.Struct, array_like=True, gc=False):
    url: str
    offset: int
    length: int


class MMRefs(msgspec.Struct, array_like=True, gc=False):
    images: list[MMImageRef]


class RoutedExperts(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    data: bytes
    shape: list[int]
    dtype: str


class SamplingMask(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    ids: bytes
    counts: bytes


class PayloadSegment(msgspec.Struct, array_like=True, gc=False, frozen=True):
    field: str
    file: str
    offset: int
    pos: int
    rows: int
    dtype: str
    shape: list[int]


class MicroBatch(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    input_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float]
    position_ids: list[int]
    sequence_lengths: list[int]
    temperatures: list[float]
    env_names: list[str]
    seq_lens: list[int]
    ref_logprobs: list[float] | None = None
    routed_experts: RoutedExperts | None = None
    mm_refs: MMRefs | None = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    sampling_mask: SamplingMask | None = None
    trace_ids: list[str] | None = None
    branch_indices: list[int] | None = None
    payload: list[PayloadSegment] | None = None


def pack(samples: list[dict], pad_to: int = 1, **optional) -> MicroBatch:
    """One micro-batch of samples {ids, mask, advantages, logprobs, temperature, env}, one value a token but for the last
    two, padded as prime-rl pads: at the end, counted into the last sequence."""
    batch = MicroBatch([], [], [], [], [], [], [], [], [], **optional)
    for sample in samples:
        length = len(sample["ids"])
        batch.input_ids += sample["ids"]
        batch.loss_mask += sample["mask"]
        batch.advantages += sample["advantages"]
        batch.inference_logprobs += sample["logprobs"]
        batch.position_ids += range(length)
        batch.temperatures += [sample["temperature"]] * length
        batch.env_names += [sample["env"]] * length
        batch.sequence_lengths.append(length)
    padding = -len(batch.input_ids) % pad_to
    batch.input_ids += [1] * padding
    batch.loss_mask += [False] * padding
    batch.advantages += [0.0] * padding
    batch.inference_logprobs += [0.0] * padding
    batch.position_ids += range(padding)
    batch.temperatures += [1.0] * padding
    batch.env_names += [""] * padding
    batch.sequence_lengths[-1] += padding
    batch.seq_lens = list(batch.sequence_lengths)
    return batch


def encode(micro_batches) -> bytes:
    return msgspec.msgpack.Encoder().encode(micro_batches)


class Publisher:
    """The orchestrator's two sockets at neighbouring ports, for one data rank."""

    def __init__(self, port: int | None = None):
        self.context = zmq.Context()
        for _ in range(50):
            self.data, self.ready = self.context.socket(zmq.PUB), self.context.socket(zmq.PULL)
            try:
                self.port = port or self.data.bind_to_random_port("tcp://127.0.0.1")
                if port:
                    self.data.bind(f"tcp://127.0.0.1:{port}")
                self.ready.bind(f"tcp://127.0.0.1:{self.port + 1}")
                break
            except zmq.ZMQError:  # the second port is somebody's
                self.data.close(0)
                self.ready.close(0)
        self.address = f"tcp://127.0.0.1:{self.port}"

    def wait_for_ready(self, seconds: float = 20) -> str:
        if not self.ready.poll(int(seconds * 1000)):
            raise TimeoutError("no READY")
        return self.ready.recv().decode()

    def send(self, payload: bytes, *more: bytes, topic: bytes = b"data_rank|0|"):
        self.data.send_multipart([topic, payload, *more])

    def close(self):
        self.data.close(1000)
        self.ready.close(0)
        self.context.term()
