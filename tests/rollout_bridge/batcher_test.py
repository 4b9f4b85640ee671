"""ringside_bridge.batcher alone: who shares a batch, who gets which results, who sees which error.

Guards: two batches at once, a batch above the limit, a caller that waits for a batch of its own though there was room, results
or an error that reach another caller.
"""

import pathlib
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rollout_bridge" / "python"))
from ringside_bridge.batcher import Batcher  # noqa: E402

MOST = 4


class Caller(threading.Thread):
    def __init__(self, batcher: Batcher, items: list):
        super().__init__(daemon=True)
        self.batcher, self.items, self.results, self.error = batcher, items, None, None
        self.start()

    def run(self):
        try:
            self.results = self.batcher(self.items)
        except ValueError as error:
            self.error = error


class Batches(unittest.TestCase):
    def setUp(self):
        self.batches, self.at_once, self.most_at_once = [], 0, 0
        self.lock, self.gate = threading.Lock(), threading.Event()
        self.batcher = Batcher(self.compute, MOST)

    def compute(self, items: list) -> list:
        with self.lock:
            self.batches.append(items)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.assertTrue(self.gate.wait(30))
        with self.lock:
            self.at_once -= 1
        if "bad" in items:
            raise ValueError("a bad item")
        return [f"<{item}>" for item in items]

    def until(self, holds):
        deadline = time.monotonic() + 30
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"batches {self.batches}, waiting {len(self.batcher._waiting)}")
            time.sleep(0.001)

    def call_in_order(self, *lists: list) -> list[Caller]:
        """The first is computed while the others come, one after the other; then all of them end."""
        callers = [Caller(self.batcher, lists[0])]
        self.until(lambda: self.batches)
        for waiting, items in enumerate(lists[1:], 1):
            callers.append(Caller(self.batcher, items))
            self.until(lambda: len(self.batcher._waiting) == waiting)
        self.gate.set()
        for caller in callers:
            caller.join(30)
            self.assertFalse(caller.is_alive(), f"{caller.items} never came back")
        return callers

    def test_who_comes_meanwhile_makes_the_next_batch_up_to_the_limit(self):
        callers = self.call_in_order(["a"], ["b"], ["c", "d"], ["e"], ["f"], ["g"] * (MOST + 1), ["h"])
        self.assertEqual(self.batches, [["a"], ["b", "c", "d", "e"], ["f"], ["g"] * (MOST + 1), ["h"]])
        self.assertEqual(self.most_at_once, 1)
        for caller in callers:
            self.assertEqual(caller.results, [f"<{item}>" for item in caller.items])

    def test_an_error_is_that_of_its_batch(self):
        callers = self.call_in_order(["a"], ["b"], ["bad"], ["c", "d"], ["e"])
        self.assertEqual(self.batches, [["a"], ["b", "bad", "c", "d"], ["e"]])
        self.assertEqual([caller.error is not None for caller in callers], [False, True, True, True, False])
        self.assertEqual(callers[4].results, ["<e>"])

    def test_nothing_to_do_comes_back_empty(self):
        self.gate.set()
        self.assertEqual(self.batcher([]), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
