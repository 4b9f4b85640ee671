"""The Python client against the C++ trainer (argument: the bridge_python_peer executable).

Guards that both sides speak the same protocol: weights arrive bit for bit with the same root hash,
rollouts arrive with every field, and damaged bytes are refused on this side as well.
"""

import copy
import json
import math
import pathlib
import random
import subprocess
import sys
import unittest

import numpy as np

PYTHON_DIR = pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"
sys.path.insert(0, str(PYTHON_DIR))

from ringside_bridge import (Client, Ended, Granted, Rollout, WeightsReady,  # noqa: E402
                             root_hash_of)
from ringside_bridge import weights as weights_module  # noqa: E402
from ringside_bridge import wire  # noqa: E402

PEER = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else ""


def rollout_of(group, sample, version):
    tokens = [100 * group.group_id + sample, 7, 2**31 - 1]
    return Rollout(rollout_id=f"py-{group.group_id}-{sample}", group_id=group.group_id,
                   group_size=group.group_size, sample_index=sample, attempt=group.attempt,
                   prompt_ids=[1, group.group_id], completion_ids=tokens,
                   logprobs=[-0.5, -1.25, 0.0], versions=[(version, 0, 3)], loss_mask=[1, 0, 1],
                   rewards={"exact": 0.75, "format": -2.0}, finish_reason="length",
                   turn_offsets=[0, 2], turn_rewards=[0.1, -3.0], branches=[(1, 0), (2, 2)])


def start_peer(test):
    peer = subprocess.Popen([PEER], stdout=subprocess.PIPE, text=True)
    test.addCleanup(peer.stdout.close)
    return peer, json.loads(peer.stdout.readline())


class EndToEnd(unittest.TestCase):
    def test_weights_and_rollouts(self):
        peer, hello = start_peer(self)
        seen = []
        with Client(hello["address"], "py", capacity_samples=6, chunk_bytes=100_000) as client:
            while True:
                event = client.poll(timeout=20)
                self.assertIsNotNone(event, "the trainer went silent")
                if isinstance(event, WeightsReady):
                    seen.append(event)
                    client.commit(event, event.tensors)
                elif isinstance(event, Granted):
                    for group in event.groups:
                        for sample in group.sample_indices:
                            client.send(rollout_of(group, sample, seen[-1].version))
                elif isinstance(event, Ended):
                    break
            self.assertEqual(event.reason, "finished")
            self.assertTrue(client.close("done"))
        result = json.loads(peer.stdout.readline())
        self.assertEqual(peer.wait(20), 0)
        self.check_weights(seen, hello)
        self.check_rollouts(result)

    def check_weights(self, seen, hello):
        self.assertEqual([w.version for w in seen], [0, 1])
        self.assertEqual(root_hash_of(seen[0].manifest, seen[0].tensors), hello["root_hash"])
        embed = seen[1].tensors["embed.weight"]
        self.assertEqual(embed.dtype, np.float32)
        np.testing.assert_array_equal(embed, np.arange(300000, dtype=np.float32) + np.float32(0.5))
        norm = seen[1].tensors["norm.weight"]  # BF16 as its bits
        np.testing.assert_array_equal(norm, np.array([[0x3F80, 0x4000, 1], [7, 8, 9]], np.uint16))
        self.assertEqual(seen[1].tensors["scale"].item(), 0.25)

    def check_rollouts(self, result):
        rollouts = {(r["group"], r["sample"]): r for r in result["rollouts"]}
        self.assertEqual(set(rollouts), {(g, s) for g in range(8) for s in range(3)})
        for (group, sample), r in rollouts.items():
            self.assertEqual(r["completion"], [100 * group + sample, 7, 2**31 - 1])
            self.assertEqual(r["logprobs"], [-0.5, -1.25, 0.0])
            self.assertEqual(r["mask"], [1, 0, 1])
            self.assertEqual(r["rewards"], [["exact", 0.75], ["format", -2.0]])
            self.assertEqual((r["turns"], r["turn_rewards"]), ([0, 2], [0.1, -3.0]))
            self.assertEqual(r["branches"], [[1, 0], [2, 2]])
            self.assertEqual((r["epoch"], r["finish"], r["prompt"]), (3, "length", [1, group]))
            self.assertGreaterEqual(r["version"], 1 if group >= 6 else 0)
        self.assertTrue(result["committed"] and result["left"])
        self.assertEqual((result["accepted"], result["duplicate"], result["lost"]), (24, 0, 0))
        self.assertEqual(sum(result["rejected"]), 0)

    def test_example_worker(self):
        peer, hello = start_peer(self)
        example = subprocess.run(
            [sys.executable, str(PYTHON_DIR / "examples" / "random_worker.py"), hello["address"], "ex"],
            env={"PYTHONPATH": str(PYTHON_DIR)}, capture_output=True, text=True, timeout=60,
            check=True)
        self.assertIn("finished", example.stdout)
        self.assertEqual(json.loads(peer.stdout.readline())["accepted"], 24)
        self.assertEqual(peer.wait(20), 0)


class Refusals(unittest.TestCase):
    def message(self):
        rollout = Rollout("r", 1, 2, 0, [1], [2, 3], [-1.0, -2.0], [(0, 0, 2)])
        return wire.pack("ROLLOUT", rollout.body(), run_id="run", run_epoch=1, worker_id="w",
                         incarnation=1, seq=1, buffers=rollout.buffers())

    def test_damaged_messages(self):
        good = self.message()
        self.assertEqual(wire.unpack(good).frames["completion_ids"].tolist(), [2, 3])
        rng = random.Random(1)
        for _ in range(3000):
            parts = [bytearray(p) for p in good]
            part = rng.choice(parts)
            part[rng.randrange(len(part))] ^= rng.randrange(1, 256)
            if rng.random() < 0.3:
                del part[rng.randrange(len(part)):]
            try:
                message = wire.unpack([bytes(p) for p in parts])
            except wire.WireError:
                continue
            np.testing.assert_array_equal(message.frames.get("completion_ids", [2, 3]), [2, 3])
        with self.assertRaises(wire.WireError):
            wire.unpack([b"\xdd\xff\xff\xff\xff"])

    def test_invalid_rollouts(self):
        good = Rollout("r", 1, 2, 0, [1], [2, 3], [-1.0, -2.0], [(0, 0, 2)])
        good.validate()
        for field, value in {"logprobs": [0.5, -1.0], "versions": [(0, 0, 1)], "loss_mask": [1],
                             "sample_index": 2, "prompt_ids": [], "temperature": 0.0,
                             "completion_ids": [], "turn_offsets": [1, 1],
                             "turn_rewards": [1.0]}.items():
            bad = copy.deepcopy(good)
            setattr(bad, field, value)
            with self.assertRaises(ValueError, msg=field):
                bad.validate()
        good.turn_offsets, good.turn_rewards, good.branches = [0, 1], [1.0, 2.0], [(1, 1)]
        good.validate()
        for field, values in {"turn_offsets": ([0, 2], [-1, 1], [0]),
                              "turn_rewards": ([1.0], [1.0, math.nan]),
                              "branches": ([(0, 0)], [(2, 0)], [(1, 2)], [(1, -1)],
                                           [(1, 0), (1, 0)])}.items():
            for value in values:
                bad = copy.deepcopy(good)
                setattr(bad, field, value)
                with self.assertRaisesRegex(ValueError, "turn|branch", msg=f"{field} {value}"):
                    bad.validate()

    def test_receiver_fetches_a_damaged_tensor_anew(self):
        data = np.arange(100, dtype="<f4").tobytes()
        entry = {"name": "w", "dtype": "F32", "shape": [100], "offset": 0, "bytes": len(data),
                 "xxh3": weights_module.tensor_hash(data)}
        manifest = {"version": 4, "tensors": [entry]}
        for damaged, completes in ((1, True), (3, False)):
            receiver = weights_module.Receiver(manifest, chunk_bytes=len(data))
            served = 0
            try:
                while not receiver.complete:
                    for request in receiver.requests():
                        chunk = np.frombuffer(data, "u1").copy()
                        chunk[5] ^= served < damaged
                        served += 1
                        receiver.accept(request, chunk)
            except wire.WireError:
                pass
            self.assertEqual(receiver.complete, completes)


if __name__ == "__main__":
    unittest.main(verbosity=2)
