"""The Python client against the C++ trainer (argument: the bridge_python_peer executable).

Guards that both sides speak the same protocol: weights arrive bit for bit with the same root hash,
rollouts arrive with every field, and damaged bytes are refused on this side as well.
"""

import contextlib
import copy
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np
import zmq

PYTHON_DIR = pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"
sys.path.insert(0, str(PYTHON_DIR))

from ringside_bridge import (Client, ConversationImage, CurveKeys, Disconnected, Ended, Failed, Granted,  # noqa: E402
                             Rollout, RoutedExperts, RolloutRejected, WeightsReady, image_hash, root_hash_of)
from ringside_bridge import weights as weights_module  # noqa: E402
from ringside_bridge import wire  # noqa: E402
from ringside_bridge.pull import pull  # noqa: E402

PEER = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else ""


# Of the four tokens before the last, as a server returns them: all three layers, or those with experts alone.
SMALL = np.array([[[0, 0], [3, 1], [2, 5]], [[0, 0], [255, 0], [7, 6]], [[0, 0], [1, 2], [3, 4]],
                  [[0, 0], [9, 8], [0, 1]]], np.int32)
ROUTED = [RoutedExperts.from_table(SMALL, [1, 2], 3), RoutedExperts([1, 2], SMALL[:, 1:].astype("u2") + 300), None]


def picture(number):
    """A small image; equal numbers, equal images."""
    return np.arange(60, dtype=np.uint8).reshape(4, 5, 3) + np.uint8(number)


def rollout_of(group, sample, version):
    tokens = [100 * group.group_id + sample, 7, 2**31 - 1]
    return Rollout(rollout_id=f"py-{group.group_id}-{sample}", group_id=group.group_id,
                   group_size=group.group_size, sample_index=sample, attempt=group.attempt,
                   prompt_ids=[1, group.group_id], completion_ids=tokens,
                   logprobs=[-0.5, -1.25, 0.0], versions=[(version, 0, 3)], loss_mask=[1, 0, 1],
                   rewards={"exact": 0.75, "format": -2.0}, finish_reason="length",
                   turn_offsets=[0, 2], turn_rewards=[0.1, -3.0], branches=[(1, 0), (2, 2)], advantages=[0.5, -1.25, 0.0],
                   images=[ConversationImage(picture(group.group_id % 3), 1, 2)] if sample else None,
                   routed_experts=ROUTED[sample], kept_sets=[[tokens[0], 2**31 - 2], [], [3, 9, 2**31 - 1]])


def start_peer(test, *arguments):
    peer = subprocess.Popen([PEER, *arguments], stdout=subprocess.PIPE, text=True)
    test.addCleanup(peer.stdout.close)
    return peer, json.loads(peer.stdout.readline())


class EndToEnd(unittest.TestCase):
    def test_weights_and_rollouts(self):
        peer, hello = start_peer(self)
        self.assertEqual(self.work(peer, hello, None)["denied"], 0)

    def test_curve(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        peer, hello = start_peer(self, folder.name)
        secret, server = (pathlib.Path(folder.name, name) for name in ("worker.key", "trainer.pub"))
        keys = CurveKeys.load(secret, server)
        with Client(hello["address"], "stranger") as stranger:  # plain
            self.assertIsNone(stranger.poll(timeout=1))
        self.assertGreaterEqual(self.work(peer, hello, keys)["denied"], 1)
        secret.chmod(0o640)
        with self.assertRaisesRegex(ValueError, "0640.*0600"):
            CurveKeys.load(secret, server)
        secret.chmod(0o600)
        with self.assertRaisesRegex(ValueError, "one key"):
            CurveKeys.load(secret, pathlib.Path(__file__))

    def work(self, peer, hello, keys):
        seen = []
        with Client(hello["address"], "py", capacity_samples=6, chunk_bytes=100_000,
                    curve=keys) as client:
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
        return result

    def check_weights(self, seen, hello):
        self.assertEqual([w.version for w in seen], [0, 1])
        self.assertEqual(root_hash_of(seen[0].manifest, seen[0].tensors), hello["root_hash"])
        embed = seen[1].tensors["embed.weight"]
        self.assertEqual(embed.dtype, np.float32)
        np.testing.assert_array_equal(embed, np.arange(300000, dtype=np.float32) + np.float32(0.5))
        norm = seen[1].tensors["norm.weight"]  # BF16 as its bits
        np.testing.assert_array_equal(norm, np.array([[0x3F80, 0x4000, 1], [7, 8, 9]], np.uint16))
        self.assertEqual(seen[1].tensors["scale"].item(), 0.25)
        sparse = (7 * np.arange(200000)).astype(np.uint16)
        np.testing.assert_array_equal(seen[0].tensors["sparse.weight"].ravel(), sparse)
        sparse[13::401] ^= 0x8001
        np.testing.assert_array_equal(seen[1].tensors["sparse.weight"].ravel(), sparse)
        still = np.array([1, -0.0, 3])
        self.assertEqual(seen[1].tensors["still.weight"].tobytes(), still.tobytes())

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
            self.assertEqual(r["advantages"], [0.5, -1.25, 0.0])
            self.assertEqual(r["images"], [[image_hash(picture(group % 3)), 1, 2, 4, 5]] if sample else [])
            expected = [([1, 2], [2, 1], SMALL[:, 1:].astype("u1")),
                        ([1, 2], [2, 2], SMALL[:, 1:].astype("<u2") + 300), ([], [0, 1], b"")][sample]
            self.assertEqual((r["routed_layers"], r["routed"]), expected[:2])
            self.assertEqual(bytes(r["routed_ids"]), bytes(expected[2]))
            self.assertEqual(r["kept_counts"], [2, 0, 3])
            self.assertEqual(r["kept_ids"], [100 * group + sample, 2**31 - 2, 3, 9, 2**31 - 1])
            self.assertEqual((r["epoch"], r["finish"], r["prompt"]), (3, "length", [1, group]))
            self.assertGreaterEqual(r["version"], 1 if group >= 6 else 0)
        self.assertTrue(result["committed"] and result["left"])
        self.assertEqual(result["delta_staged"], 1 if weights_module.zstandard else 0)
        self.assertEqual(result["delta_refetched"], 0)
        self.assertEqual((result["accepted"], result["duplicate"], result["lost"]), (24, 0, 0))
        self.assertEqual((result["images"], result["unknown_images"]), (3, 0))  # each once
        self.assertEqual(sum(result["rejected"]), 0)

    def test_settings_go_both_ways(self):
        peer, hello = start_peer(self, "settings")
        with Client(hello["address"], "hot", settings={"temperature": 2.0, "top_k": None}) as hot:
            event = hot.poll(timeout=20)
            self.assertIsInstance(event, Failed)
            self.assertEqual(event.reason, "settings")
            self.assertIn("temperature is 2, the trainer's is 1", event.detail)
        with Client(hello["address"], "py", settings={"temperature": 1.0, "stop_ids": [2]}) as client:
            self.assertEqual(client.settings, {})
            self.assertIsInstance(client.poll(timeout=20), WeightsReady)
            self.assertEqual(client.settings, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "vocab_size": 48,
                                               "stop_ids": [2], "reward_names": ["exact_match"]})
        peer.kill()
        peer.wait(20)

    def test_example_worker(self):
        peer, hello = start_peer(self)
        example = subprocess.run(
            [sys.executable, str(PYTHON_DIR / "examples" / "random_worker.py"), hello["address"], "ex"],
            env={"PYTHONPATH": str(PYTHON_DIR)}, capture_output=True, text=True, timeout=60,
            check=True)
        self.assertIn("finished", example.stdout)
        self.assertEqual(json.loads(peer.stdout.readline())["accepted"], 24)
        self.assertEqual(peer.wait(20), 0)


class WrittenTrainer:
    """A trainer that sends what a test tells it to, to one client."""

    def __init__(self):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"

    def close(self):
        self._context.destroy(linger=0)

    def receive(self, kind):
        """The client's next message of this kind; heartbeats and the like are skipped."""
        while self._socket.poll(10_000):
            self._peer, *parts = self._socket.recv_multipart()
            message = wire.unpack(parts)
            if message.type == kind:
                return message
        raise AssertionError(f"no {kind} within 10 s")

    def receive_any(self, wait_ms=10_000):
        """The type of the client's next message that is no heartbeat; None when there is none."""
        while self._socket.poll(wait_ms):
            self._peer, *parts = self._socket.recv_multipart()
            if (kind := wire.unpack(parts).type) != "HEARTBEAT":
                return kind
        return None

    def ask(self, rollout_id, *numbers):
        self.send("ACK", {"rollout_id": rollout_id, "status": "UNKNOWN_IMAGES", "reason": "", "detail": "",
                          "images": [image_hash(picture(n)) for n in numbers]})

    def send(self, kind, body, seq=None):
        if seq is None:
            self._seq = seq = self._seq + 1
        self._socket.send_multipart([self._peer, *wire.pack(
            kind, body, run_id="run", trainer_term=1, worker_id="w", incarnation=1, seq=seq)])

    def welcome(self):
        hello = self.receive("HELLO")
        self._seq = 0
        self.send("WELCOME", {"weights_address": "", "version": -1, "root_hash": "", "heartbeat_ms": 1000,
                              "timeout_ms": 10_000, "window_bytes": 1 << 20, "chunk_bytes": 4096,
                              "settings": {}})
        return hello

    def grant(self, *samples):
        self.send("CREDIT", {"groups": [{"group_id": 7, "group_size": 4, "min_version": 0, "attempt": 0,
                                         "sample_indices": list(samples)}]})

    def end_session(self):
        self.send("ERROR", {"reason": "unknown_session", "detail": "", "fatal": False}, seq=0)

    def acknowledge(self, rollout_id, status):
        self.send("ACK", {"rollout_id": rollout_id, "status": status, "reason": "malformed", "detail": "why"})


class Grants(unittest.TestCase):
    """What becomes of a sample: nobody may wait for one that nobody makes."""

    @contextlib.contextmanager
    def session(self):
        trainer = WrittenTrainer()
        self.addCleanup(trainer.close)
        client = Client(trainer.address, "w")
        try:
            trainer.welcome()
            yield trainer, client
        finally:
            client._over = True  # nobody answers BYE
            client.close(timeout=0)

    def granted(self, client):
        event = client.poll(timeout=5)
        self.assertIsInstance(event, Granted)
        return [(group.group_id, s) for group in event.groups for s in group.sample_indices]

    def rollout(self, sample):
        return Rollout(rollout_id=f"r{sample}", group_id=7, group_size=4, sample_index=sample, prompt_ids=[1],
                       completion_ids=[2], logprobs=[-1.0], versions=[(0, 0, 1)], trainer_term=1)

    def reconnect(self, trainer, client):
        trainer.end_session()
        self.assertIsInstance(client.poll(timeout=5), Disconnected)
        trainer.welcome()

    def test_a_sample_granted_again_in_a_new_session_is_handed_out_again(self):
        with self.session() as (trainer, client):
            trainer.grant(0, 1)
            self.assertEqual(self.granted(client), [(7, 0), (7, 1)])
            self.reconnect(trainer, client)
            trainer.grant(0, 1)
            self.assertEqual(self.granted(client), [(7, 0), (7, 1)])

    def test_a_sample_whose_rollout_is_unacknowledged_is_not_handed_out_again(self):
        with self.session() as (trainer, client):
            trainer.grant(0, 1)
            self.granted(client)
            client.send(self.rollout(0))
            self.reconnect(trainer, client)
            trainer.grant(0, 1)
            self.assertEqual(self.granted(client), [(7, 1)])

    def test_a_rollout_sent_before_the_grant_is_seen_takes_its_sample_out(self):
        for acknowledged in (False, True):
            with self.session() as (trainer, client):
                trainer.grant(0, 1)
                self.granted(client)
                self.reconnect(trainer, client)
                trainer.grant(0, 1)  # the caller is sampling and has not seen it yet
                client.send(self.rollout(0))
                trainer.receive("ROLLOUT")
                if acknowledged:
                    trainer.acknowledge("r0", "ACCEPTED")
                    self.assertTrue(self.eventually(lambda: not client._pending))
                self.assertEqual(self.granted(client), [(7, 1)])

    def test_a_refusal_without_a_rollout_id_answers_the_rollout_sent_first(self):
        with self.session() as (trainer, client):
            trainer.grant(0, 1)
            self.granted(client)
            client.send(self.rollout(0))
            client.send(self.rollout(1))
            trainer.receive("ROLLOUT")
            trainer.receive("ROLLOUT")
            trainer.acknowledge("", "REJECTED")
            self.assertEqual(client.poll(timeout=5), RolloutRejected("r0", "malformed", "why"))
            trainer.acknowledge("", "STALE")
            self.assertTrue(self.eventually(lambda: not client._pending))

    def pictured(self, sample, *numbers):
        count = len(numbers)
        return Rollout(rollout_id=f"r{sample}", group_id=7, group_size=4, sample_index=sample, prompt_ids=[1],
                       completion_ids=[60] * count + [2], logprobs=[-1.0] * (count + 1), versions=[(0, 0, count + 1)],
                       loss_mask=[0] * count + [1], trainer_term=1,
                       images=[ConversationImage(picture(n), i, i + 1) for i, n in enumerate(numbers)])

    def test_an_image_goes_once_and_again_when_the_trainer_asks(self):
        with self.session() as (trainer, client):
            trainer.grant(0, 1)
            self.granted(client)
            client.send(self.pictured(0, 1, 2, 1))
            client.send(self.pictured(1, 1))
            sent = [trainer.receive("IMAGE") for _ in range(2)]
            for number, message in enumerate(sent, 1):
                self.assertEqual(message.body["hash"], image_hash(picture(number)))
                np.testing.assert_array_equal(message.frames["rgb"], picture(number))
            rollout = trainer.receive("ROLLOUT")
            self.assertEqual(rollout.frames["image_spans"].tolist(), [[0, 1, 4, 5], [1, 2, 4, 5], [2, 3, 4, 5]])
            self.assertEqual(bytes(rollout.frames["image_hashes"][1]).hex(), image_hash(picture(2)))
            self.assertEqual(trainer.receive_any(), "ROLLOUT")  # no third IMAGE
            for message in sent:
                trainer.send("IMAGE_ACK", {"hash": message.body["hash"], "status": "STORED"})
            trainer.ask("r1", 1)
            self.assertEqual([trainer.receive_any(), trainer.receive_any()], ["IMAGE", "ROLLOUT"])
            self.reconnect(trainer, client)  # before its answer: that image may be lost, the other is not
            self.assertEqual([trainer.receive_any() for _ in range(3)], ["IMAGE", "ROLLOUT", "ROLLOUT"])
            trainer.acknowledge("r0", "ACCEPTED")
            trainer.acknowledge("r1", "ACCEPTED")
            self.assertTrue(self.eventually(lambda: not client._pending))

    def test_images_count_in_the_window(self):
        with self.session() as (trainer, client):
            trainer.grant(0)
            self.granted(client)
            trainer.send("CREDIT", {"groups": [], "window_bytes": 100})
            self.assertTrue(self.eventually(lambda: client._window == 100))
            client.send(self.pictured(0, 1, 2))
            first = trainer.receive("IMAGE")  # 60 bytes, as the second
            self.assertIsNone(trainer.receive_any(300))
            trainer.send("IMAGE_ACK", {"hash": first.body["hash"], "status": "STORED"})
            self.assertEqual(trainer.receive_any(), "IMAGE")

    def eventually(self, condition):
        for _ in range(500):
            if condition():
                return True
            threading.Event().wait(0.01)
        return False


class Endings(unittest.TestCase):
    def test_a_client_whose_trainer_is_gone_after_END_closes_without_its_answer(self):
        for connected in (True, False):
            trainer = WrittenTrainer()
            client = Client(trainer.address, "w")
            trainer.welcome()
            trainer.send("END", {"reason": "finished"})
            self.assertEqual(client.poll(timeout=5), Ended("finished"))
            if not connected:
                trainer.close()
            self.assertTrue(client.close(timeout=5))
            trainer.close()


class Refusals(unittest.TestCase):
    def message(self):
        rollout = Rollout("r", 1, 2, 0, [1], [2, 3], [-1.0, -2.0], [(0, 0, 2)])
        return wire.pack("ROLLOUT", rollout.body(), run_id="run", trainer_term=1, worker_id="w",
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

    def test_another_protocol_version_is_an_error_of_its_own(self):
        header = {"v": wire.PROTO_VERSION - 1, "type": "ACK", "run_id": "r", "trainer_term": 1, "seq": 2,
                  "frames": [], "body": {}}
        self.assertRaises(wire.VersionError, wire.unpack, [wire.msgpack.packb(header)])

    def test_only_a_chunk_may_leave_its_hash_out(self):
        for kind, accepted in (("CHUNK", True), ("ROLLOUT", False)):
            header = {"v": wire.PROTO_VERSION, "type": kind, "run_id": "r", "trainer_term": 1, "worker_id": "w", "incarnation": 1, "seq": 0,
                      "frames": [{"name": "data", "dtype": "U8", "shape": [3], "bytes": 3, "xxh3": 0}], "body": {}}
            parts = [wire.msgpack.packb(header), b"abc"]
            if accepted:
                self.assertEqual(bytes(wire.unpack(parts).frames["data"]), b"abc")
            else:
                self.assertRaises(wire.WireError, wire.unpack, parts)
            header["frames"][0]["xxh3"] = 1
            self.assertRaises(wire.WireError, wire.unpack, [wire.msgpack.packb(header), b"abc"])

    def test_invalid_rollouts(self):
        good = Rollout("r", 1, 2, 0, [1], [2, 3], [-1.0, -2.0], [(0, 0, 2)])
        good.validate()
        for field, value in {"logprobs": [-20000.0, -1.0], "rollout_id": "\udcff"}.items():
            bad = copy.deepcopy(good)
            setattr(bad, field, value)
            self.assertRaises(ValueError, bad.validate)
        for field, value in {"logprobs": [0.5, -1.0], "versions": [(0, 0, 1)], "loss_mask": [1],
                             "sample_index": 2, "prompt_ids": [], "temperature": 0.0,
                             "completion_ids": [], "turn_offsets": [1, 1], "advantages": [1.0, math.nan],
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

    def test_images_are_checked_before_sending(self):
        def rollout(*places, mask=(1, 0, 0, 1), branches=None):
            return Rollout("r", 1, 2, 0, [1], [2, 60, 60, 3], [-1.0] * 4, [(0, 0, 4)], loss_mask=list(mask),
                           images=[ConversationImage(picture(1), *place) for place in places], branches=branches)

        rollout((1, 3)).validate()
        rollout((1, 2), (2, 3)).validate()
        for bad, message in [(rollout((1, 1)), "not be empty"), (rollout((1, 5)), "end at 4"),
                             (rollout((1, 3), (2, 3)), "must begin at 3"), (rollout((0, 3)), "loss_mask 0"),
                             (rollout((1, 3), branches=[(2, 0)]), "branch cuts")]:
            with self.assertRaisesRegex(ValueError, message):
                bad.validate()
        for pixels in (picture(1).astype("i4"), picture(1)[:, :, 0], np.zeros((0, 4, 3), "u1"),
                       np.zeros((65537, 1, 3), "u1"), np.zeros((4096, 4096, 3), "u1")):
            with self.assertRaisesRegex(ValueError, "an image of"):
                ConversationImage(pixels, 0, 1)

    def test_routed_experts_are_checked_before_sending(self):
        table = np.array([[[0, 1]], [[2, 3]]])
        good = Rollout("r", 1, 2, 0, [1], [2, 3], [-1.0, -2.0], [(0, 0, 2)],
                       routed_experts=RoutedExperts([4], table))
        good.validate()
        for layers, experts, message in [([4], table[:1], "a row for each of 3"), ([4, 5], table, "shape"),
                                         ([-1], table, "rise"), ([4], table[:, :, 0], "shape"),
                                         ([4], table - 1, "outside"), ([4], table + 32767, "outside"),
                                         ([4], np.array([[[0, 1]], [[2, 2]]]), "twice"),
                                         ([4], table * 1.0, "whole numbers")]:
            bad = copy.deepcopy(good)
            bad.routed_experts = RoutedExperts(layers, experts)
            with self.assertRaisesRegex(ValueError, message):
                bad.validate()
        with self.assertRaisesRegex(ValueError, "1 or 3 layers"):
            RoutedExperts.from_table(np.zeros((2, 2, 2), int), [1], 3)

    def test_a_pull_does_not_wait_for_the_dead(self):
        manifest = {"version": 3, "run_id": "r", "trainer_term": 1, "root_hash": "0" * 32,
                    "tensors": [{"name": "w", "dtype": "F32", "shape": [2], "offset": 0, "bytes": 8, "xxh3": "0" * 32}]}
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(TimeoutError, "silence"):
                pull(f"ipc://{folder}/nobody", manifest, timeout_s=20, silence_s=0.3)

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


def overwrite_payload(positions, values):
    """What the trainer encodes, written down a second time from PROTOCOL.md."""
    gaps = np.diff(np.asarray(positions, "<u4"), prepend=np.uint32(2**32 - 1)) - 1
    planes = [*gaps.astype("<u4").view("u1").reshape(-1, 4).T,
              *values.view("u1").reshape(len(positions), -1).T]
    frames = [weights_module.zstandard.ZstdCompressor(level=1).compress(plane.tobytes())
              for plane in planes]
    lengths = np.array([len(frame) for frame in frames], "<u4")
    return bytes([4]) + lengths.tobytes() + b"".join(frames)


@unittest.skipUnless(weights_module.zstandard, "needs zstandard")
class Overwrites(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(2)
        self.base = rng.integers(0, 2**16, 5000, dtype=np.uint16)
        self.positions = np.flatnonzero(rng.random(5000) < 0.02)
        self.next = self.base.copy()
        self.next[self.positions] ^= 0x8000
        self.payload = overwrite_payload(self.positions, self.next[self.positions])

    def apply(self, payload, changed=None):
        return weights_module.apply_overwrite(payload, changed or len(self.positions),
                                              self.base.tobytes(), 2)

    def test_applies(self):
        self.assertEqual(self.apply(self.payload), self.next.tobytes())

    def test_damaged_payloads(self):
        rng, refused = random.Random(5), 0
        for _ in range(3000):
            payload = bytearray(self.payload)
            payload[rng.randrange(len(payload))] ^= rng.randrange(1, 256)
            if rng.random() < 0.3:
                del payload[rng.randrange(len(payload)):]
            changed = len(self.positions) + (rng.randrange(-1, 2) if rng.random() < 0.3 else 0)
            try:
                made = self.apply(bytes(payload), changed)
            except wire.WireError:
                refused += 1
                continue
            self.assertEqual(len(made), self.base.nbytes)
        self.assertGreater(refused, 1000)
        for changed in (5001, 2**40):
            with self.assertRaises(wire.WireError):
                self.apply(self.payload, changed)
        with self.assertRaisesRegex(wire.WireError, "position"):
            self.apply(overwrite_payload([5000], self.next[:1]), 1)

    def receiver(self, base, payload_bytes):
        def entry(data, **more):
            return {"name": "w", "dtype": "BF16", "shape": [5000], "offset": 0, "bytes": 10000,
                    "xxh3": weights_module.tensor_hash(data.tobytes()), **more}

        run = {"run_id": "r", "trainer_term": 1}
        old = weights_module.Receiver({**run, "version": 1, "encoding": "dense", "base_version": -1,
                                       "tensors": [entry(self.base)]}, 10000)
        for request in old.requests():
            old.accept(request, self.base.view("u1"))
        manifest = {**run, "version": 2, "encoding": "overwrite", "base_version": base, "tensors": [
            entry(self.next, encoding="overwrite", changed=len(self.positions),
                  payload_bytes=payload_bytes)]}
        return weights_module.Receiver(manifest, 100, base=old)

    def pull(self, receiver, payload):
        while not receiver.complete:
            for request in receiver.requests():
                source = (np.frombuffer(payload, "u1") if request["base_version"] >= 0
                          else self.next.view("u1"))
                end = request["offset"] + request["bytes"]
                receiver.accept(request, source[request["offset"]:end])
        np.testing.assert_array_equal(receiver.tensors()["w"], self.next)

    def test_receiver_takes_the_way_that_fits(self):
        wrong = overwrite_payload(self.positions, self.base[self.positions])
        for base, payload, builds, refetched in ((1, self.payload, True, 0), (0, self.payload, False, 0),
                                                 (1, wrong, True, 1), (1, b"\7" * 50, True, 1)):
            receiver = self.receiver(base, len(payload))
            self.assertEqual(receiver.builds_on_base, builds)
            self.pull(receiver, payload)
            self.assertEqual(receiver.refetched, refetched)


if __name__ == "__main__":
    unittest.main(verbosity=2)
