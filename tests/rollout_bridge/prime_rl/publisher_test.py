"""The C++ end of prime-rl's batch transport against batches that msgspec wrote, over ZeroMQ (argument: the prime_rl_peer
executable).

Guards a field read at another place, or about another token; a message that is lost at the start or after the publisher was
started anew; and damaged messages getting through.
"""

import json
import math
import random
import struct
import subprocess
import sys
import unittest

import msgspec
import numpy as np

import batches
from batches import encode, pack

PEER = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else ""


def sample(rng, prompt, mask, env="math", temperature=0.75):
    length = prompt + len(mask)
    return {"ids": [rng.randrange(2**31) for _ in range(length)], "mask": [False] * prompt + mask,
            "advantages": [rng.uniform(-3, 3) for _ in range(length)],
            "logprobs": [0.0] * prompt + [-rng.expovariate(1) if m else 0.0 for m in mask],
            "temperature": temperature, "env": env}


def f32(values):
    return np.asarray(values, np.float32).tolist()


class WithPeer(unittest.TestCase):
    def start(self, messages, port=None):
        publisher = batches.Publisher(port)
        self.addCleanup(publisher.close)
        peer = subprocess.Popen([PEER, publisher.address, str(messages)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (peer.kill(), peer.wait(), peer.stdout.close()))
        self.assertEqual(publisher.wait_for_ready(), "0")
        return publisher, peer

    def answer(self, peer):
        return json.loads(peer.stdout.readline())

    def answers(self, payloads):
        """What the other side made of each payload, in order."""
        publisher, peer = self.start(len(payloads))
        for payload in payloads:
            publisher.send(payload)
        return [self.answer(peer) for _ in payloads]


class Stream(WithPeer):
    def check(self, got, sent, prompt_id):
        split = sent["mask"].index(True)
        self.assertEqual(got["prompt"], sent["ids"][:split])
        self.assertEqual(got["completion"], sent["ids"][split:])
        self.assertEqual(got["mask"], [int(m) for m in sent["mask"][split:]])
        self.assertEqual(f32(got["logprobs"]), f32(sent["logprobs"][split:]))
        self.assertEqual(f32(got["advantages"]), f32(sent["advantages"][split:]))
        self.assertEqual(f32([got["temperature"]]), f32([sent["temperature"]]))
        self.assertEqual((got["prompt_id"], got["rewards"], got["top_p"]), (prompt_id, [], 1))
        self.assertEqual((got["group_size"], got["sample"], got["version"]), (1, 0, 5))
        self.assertEqual(got["covered"], len(sent["ids"]) - split)

    def test_every_field_of_every_sample(self):
        rng = random.Random(1)
        first = [sample(rng, 3, [True] * 5), sample(rng, 1, [True, False, False, True, True], "code", 1.25)]
        dummy = sample(rng, 4, [False] * 3)
        second = [sample(rng, 40, [True] * 30 + [False] * 200 + [True] * 30)]
        tokens = sum(len(s["ids"]) for s in first)
        full = pack(first, ref_logprobs=[-0.5] * tokens, mm_token_type_ids=[0] * tokens, rl_weights=[1.0] * tokens,
                    ce_weights=[0.0] * tokens, ref_kl_weights=[0.0] * tokens, trace_ids=["t0", ""], branch_indices=[2, -1],
                    payload=[])
        one, two = self.answers([encode([full, pack([dummy]), pack(second, pad_to=64)]), encode([pack(first[:1])])])
        self.assertEqual((one["without_loss"], one["padding"]), (1, -len(second[0]["ids"]) % 64))
        self.assertEqual([r["id"] for r in one["rollouts"]], ["prime-rl-1-0", "prime-rl-1-1", "prime-rl-1-2"])
        self.assertEqual([r["group"] for r in one["rollouts"]], [0, 1, 2])
        for got, sent, prompt_id in zip(one["rollouts"], first + second, ["math/t0/2", "code", "math"]):
            self.check(got, sent, prompt_id)
        self.assertEqual((two["rollouts"][0]["group"], two["rollouts"][0]["id"]), (100, "prime-rl-2-0"))
        self.check(two["rollouts"][0], first[0], "math")

    def test_integers_where_floats_are_meant(self):
        rng = random.Random(2)
        sent = sample(rng, 1, [True] * 3) | {"advantages": [0, 1, -2, 300], "temperature": 1}
        (got,) = self.answers([encode([pack([sent])])])
        self.check(got["rollouts"][0], sent, "math")

    def test_a_publisher_that_is_started_anew_gets_ready_again(self):
        publisher, peer = self.start(2)
        payload = encode([pack([sample(random.Random(3), 2, [True])])])
        publisher.send(payload)
        self.assertEqual(self.answer(peer)["counters"], [1, 0, 1, 0])
        publisher.close()
        anew = batches.Publisher(publisher.port)
        self.addCleanup(anew.close)
        self.assertEqual(anew.wait_for_ready(), "0")
        anew.send(payload)
        self.assertEqual(self.answer(peer)["counters"], [2, 1, 2, 0])

    def test_messages_of_another_form_are_counted_and_passed_over(self):
        publisher, peer = self.start(1)
        payload = encode([pack([sample(random.Random(4), 2, [True])])])
        publisher.send(payload, topic=b"data_rank|1|")  # of another rank: not subscribed to
        publisher.send(payload, topic=b"data_rank|0|0")
        publisher.send(payload, payload)
        publisher.data.send(b"data_rank|0|")
        publisher.send(payload)
        got = self.answer(peer)
        self.assertEqual((len(got["rollouts"]), got["counters"]), (1, [1, 0, 1, 3]))


class Hostile(WithPeer):
    def batch(self, **fields):
        rng = random.Random(5)
        batch = pack([sample(rng, 2, [True, True]), sample(rng, 1, [True, False, True])])
        for name, value in fields.items():
            setattr(batch, name, value)
        return batch

    def check_refused(self, cases):
        """cases: (what is sent, part of the reason)."""
        payloads = [case if isinstance(case, bytes) else encode([case]) for case, _ in cases]
        for got, (_, reason) in zip(self.answers(payloads), cases, strict=True):
            self.assertIn(reason, got.get("error", "accepted"))

    def test_what_this_trainer_cannot_honour(self):
        ones, zeros = [1.0] * 8, [0.0] * 8
        mask = self.batch().loss_mask
        self.check_refused([
            (self.batch(routed_experts=batches.RoutedExperts(b"\0" * 8, [8, 1, 1], "uint8")), "routed_experts: "),
            (self.batch(mm_refs=batches.MMRefs([])), "mm_refs: "),
            (self.batch(mm_token_type_ids=[0] * 7 + [1]), "mm_token_type_ids: token 7"),
            (self.batch(rl_weights=[1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]), "rl_weights: token 3"),
            (self.batch(ce_weights=[0.0] * 5 + [0.25] + [0.0] * 2), "ce_weights: token 5"),
            (self.batch(ref_kl_weights=ones), "ref_kl_weights: token 0"),
            (self.batch(sampling_mask=batches.SamplingMask(b"", b"\0" * 32)), "sampling_mask: "),
            (self.batch(payload=[batches.PayloadSegment("routed_experts", "f", 0, 0, 1, "uint8", [1])]), "payload: "),
            (self.batch(temperatures=[1.0] * 7 + [0.5]), "temperatures 1.000000 and 0.500000"),
            (self.batch(loss_mask=[True] + mask[1:]), "sequence 0: the first token"),
            (self.batch(position_ids=list(range(8))), "sequence 1: position 4 at token 0"),
        ])
        # weights of 0 on tokens that are not trained on are padding's
        (got,) = self.answers([encode([self.batch(rl_weights=[float(m) for m in mask], ce_weights=zeros)])])
        self.assertEqual(len(got["rollouts"]), 2)

    def test_wrong_lengths(self):
        full = self.batch()
        cases = [(self.batch(**{name: getattr(full, name)[:-1]}), f"{name}: 7 values, expected 8")
                 for name in ("loss_mask", "advantages", "inference_logprobs", "position_ids", "temperatures", "env_names")]
        cases += [(self.batch(**{name: [0.0] * 9}), f"{name}: 9 values, expected 8")
                  for name in ("ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights", "mm_token_type_ids")]
        cases += [(self.batch(trace_ids=["a"]), "trace_ids: 1 values, expected 2"),
                  (self.batch(branch_indices=[0, 1, 2]), "branch_indices: 3 values, expected 2"),
                  (self.batch(sequence_lengths=[4, 3]), "sequence_lengths: 7 values, expected 8"),
                  (self.batch(sequence_lengths=[4, 5]), "sequence_lengths: a length of 5 with 4"),
                  (self.batch(sequence_lengths=[0, 8]), "sequence_lengths: a length of 0"),
                  (self.batch(sequence_lengths=[-1, 9]), "sequence_lengths: a length of -1"),
                  (self.batch(sequence_lengths=[2**63 - 1]), "sequence_lengths: a length of"),
                  (self.batch(seq_lens=[3, 5]), "seq_lens: differs"),
                  (self.batch(input_ids=full.input_ids + [1]), "loss_mask: 8 values, expected 9")]
        self.check_refused(cases)

    def test_values_and_types(self):
        full = self.batch()
        with_value = lambda name, value: self.batch(**{name: getattr(full, name)[:3] + [value] + getattr(full, name)[4:]})
        cases = [(with_value(name, value), f"{name}: a value that is not finite")
                 for name in ("advantages", "inference_logprobs", "temperatures") for value in (math.nan, math.inf)]
        cases += [(with_value("inference_logprobs", 0.5), "logprobs[1] = 0.5"),
                  (with_value("advantages", 1e300), "advantages[1] = inf"),
                  (with_value("temperatures", 0.0), "temperature"),
                  (self.batch(temperatures=[-1.0] * 8), "temperature = -1"),
                  (with_value("input_ids", 2**31), "completion_ids[1] = 2147483648"),
                  (with_value("input_ids", -1), "completion_ids[1] = -1"),
                  (with_value("input_ids", 2**64 - 1), "input_ids: the integer"),
                  (with_value("loss_mask", 1), "loss_mask: an integer"),
                  (with_value("input_ids", 1.0), "input_ids: a float"),
                  (with_value("advantages", True), "advantages: a boolean"),
                  (with_value("env_names", b"math"), "env_names: bytes"),
                  (with_value("env_names", None), "env_names: nil"),
                  (with_value("env_names", "x" * 5000), "env_names: a string of 5000 bytes"),
                  (encode([with_value("env_names", "maXX")]).replace(b"maXX", b"ma\xed\xa0"), "env_names: a string at byte"),
                  (self.batch(loss_mask={"a": 1}), "loss_mask: a map"),
                  (self.batch(loss_mask=None), "loss_mask: nil"),
                  (self.batch(input_ids="ids"), "input_ids: a string")]
        self.check_refused(cases)

    def test_the_message_as_a_whole(self):
        fields = msgspec.msgpack.decode(encode(self.batch()))
        whole = encode([self.batch()])
        cases = [(b"", "ends at byte 0"), (whole[:-1], "ends at byte"), (whole + b"\0", "bytes after the last"),
                 (encode(self.batch()), "micro-batch 0: 8 fields"), (encode({}), "a map"), (encode([[]]), "0 fields"),
                 (encode([fields[:8]]), "8 fields, expected 9 to 20"),
                 (encode([fields + [None]]), "21 fields, expected 9 to 20"),
                 (encode([1]), "micro-batch 0: an integer"), (b"\x91" * 100_000, "1 fields"),
                 (b"\xdd" + struct.pack(">I", 2**32 - 1), "an array of 4294967295 values"),
                 (b"\x91\x99\xdd" + struct.pack(">I", 2**31) + b"\0" * 16, "micro-batch 0, input_ids: an array of 2147483648")]
        self.check_refused(cases)
        for fewer in (9, 16):  # what was not there yet in earlier versions
            (got,) = self.answers([encode([fields[:fewer]])])
            self.assertEqual(len(got["rollouts"]), 2)

    def test_more_than_the_limit_never_arrives(self):
        publisher, peer = self.start(1)
        publisher.send(b"\0" * (1 << 21))  # the peer takes one MiB
        self.assertEqual(publisher.wait_for_ready(), "0")  # it hung up and came back
        publisher.send(encode([self.batch()]))
        got = self.answer(peer)
        self.assertIn("rollouts", got)  # shows the whole answer
        self.assertEqual((len(got["rollouts"]), got["counters"]), (2, [2, 1, 1, 0]))

    def test_damaged_bytes_neither_crash_nor_pass_as_something_else(self):
        rng = random.Random(6)
        whole = encode([self.batch(trace_ids=["a", "b"], rl_weights=[1.0] * 8)])
        payloads = []
        for _ in range(400):
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            payloads.append(bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.2 else damaged))
        publisher, peer = self.start(len(payloads))
        accepted = 0
        for payload in payloads:  # one at a time: what is not read in time, a publisher drops
            publisher.send(payload)
            got = self.answer(peer)
            accepted += "error" not in got
            if "error" not in got:  # then prime-rl's own decoder takes it too
                msgspec.msgpack.decode(payload, type=list[batches.MicroBatch])
        self.assertGreater(accepted, 0)
        self.assertLess(accepted, len(payloads) // 2)


if __name__ == "__main__":
    unittest.main()
