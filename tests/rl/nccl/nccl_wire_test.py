"""What our trainer says to join vLLM's and SGLang's weight groups, judged by their own code, on the CPU (argument: the
nccl_wire_peer executable).

Guards the pickled NCCL id, the store's keys and prefixes, and the cuts of packed broadcasts. Tests that need vLLM's modules are left out where
.env/vllm/bin/python is not the interpreter; the golden id is compared everywhere.

Usage: nccl_wire_test.py PEER, or nccl_wire_test.py --write-golden with vLLM's Python.
"""

import datetime
import importlib.util
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import unittest

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (Backend, PrefixStore, _new_process_group_helper, _world,
                                                rendezvous)

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "goldens" / "vllm_nccl_id.hex"
ID = bytes((i * 37 + 11) % 256 for i in range(128))
HAVE_VLLM = importlib.util.find_spec("vllm") is not None
PEER = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else ""


def vllm_id():
    from vllm.distributed.device_communicators.pynccl_wrapper import ncclUniqueId

    return ncclUniqueId.from_buffer_copy(ID)


def peer(*arguments, lines=()) -> str:
    text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    return subprocess.run([PEER, *arguments], input=text, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


class Server:
    """The peer in a serving mode; .port says where."""

    def __init__(self, test, *arguments):
        self.process = subprocess.Popen([PEER, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.process.stdout.close)
        test.addCleanup(self.process.kill)
        self.port = int(self.process.stdout.readline())

    def end(self) -> int:
        self.process.stdin.close()
        return self.process.wait(30)


def in_threads(*calls):
    """The results of calls that wait for each other."""
    results = [None] * len(calls)

    def run(i):
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=[i], daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def custom_group(name: str, port: int, rank: int, world_size: int):
    """init_custom_process_group of SGLang (python/sglang/srt/utils), in the calls that touch the store."""
    timeout = datetime.timedelta(seconds=60)
    store, rank, world_size = next(rendezvous(f"tcp://127.0.0.1:{port}", rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = _new_process_group_helper(world_size, rank, [], Backend("gloo"), PrefixStore(name, store), group_name=name,
                                         timeout=timeout)
    _world.pg_group_ranks[group] = {i: i for i in range(world_size)}
    return group


class Wire(unittest.TestCase):
    def test_the_id_is_pickled_as_recorded(self):
        self.assertEqual(peer("id"), GOLDEN.read_text().strip())

    @unittest.skipUnless(HAVE_VLLM, "no vLLM")
    def test_the_recorded_id_is_vllms(self):
        self.assertEqual(GOLDEN.read_text().strip(), pickle.dumps(vllm_id()).hex())
        self.assertEqual(bytes(pickle.loads(bytes.fromhex(peer("id")))), ID)

    @unittest.skipUnless(HAVE_VLLM, "no vLLM")
    def test_ranks_of_a_vllm_group_get_the_id(self):
        from vllm.distributed.utils import StatelessProcessGroup

        server = Server(self, "vllm", 3)

        def join(rank):
            group = StatelessProcessGroup.create("127.0.0.1", server.port, rank, 3, store_timeout=60)
            return bytes(group.broadcast_obj(None, src=0))

        self.assertEqual(in_threads(lambda: join(1), lambda: join(2)), [ID, ID])
        self.assertEqual(server.end(), 0)

    @unittest.skipUnless(HAVE_VLLM, "no vLLM")
    def test_buckets_are_vllms(self):
        import warnings

        from vllm.distributed.weight_transfer.packed_tensor import pack_tensors

        warnings.simplefilter("ignore")  # of tensors above the limit
        rng = random.Random(1)
        cases = [(10, []), (10, [0, 0]), (10, [10, 1]), (10, [11, 1]), (0, [1, 0, 1]), (10, [4, 0, 6, 1, 0])]
        cases += [(rng.randrange(50), [rng.choice([0, rng.randrange(60)]) for _ in range(rng.randrange(40))]) for _ in range(40)]
        answers = peer("buckets", lines=[[limit, *sizes] for limit, sizes in cases]).splitlines()
        for (limit, sizes), answer in zip(cases, answers, strict=True):
            tensors = iter([(str(i), torch.zeros(size, dtype=torch.uint8)) for i, size in enumerate(sizes)])
            expected, first = [], 0
            while (chunk := pack_tensors(tensors, lambda item: item[1], limit)) is not None:
                expected += [first, first + len(chunk.names), chunk.packed_tensor.numel()]
                first += len(chunk.names)
            self.assertEqual([int(word) for word in answer.split()], expected, (limit, sizes))

    def test_ranks_of_a_custom_group_find_each_other(self):
        server = Server(self, "custom", "weights-7", 2)
        group = custom_group("weights-7", server.port, 1, 2)
        tensor = torch.zeros(4)
        dist.broadcast(tensor, src=0, group=group)
        self.assertEqual(tensor.tolist(), [0, 1, 2, 3])
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    if "--write-golden" in sys.argv:
        GOLDEN.write_text(pickle.dumps(vllm_id()).hex() + "\n")
    else:
        unittest.main()
