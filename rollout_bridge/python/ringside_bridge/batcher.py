"""Joins what many callers ask for at once into batches: whatever comes while one batch is computed makes the next."""

from __future__ import annotations

import threading
from collections.abc import Callable


class _Entry:
    def __init__(self, items: list):
        self.items, self.results, self.error, self.done = items, [], None, False


class Batcher:
    """`run` maps a list to a list of as many results, in order; one call of it runs at a time, of at most `most` items unless
    one caller alone brings more. What it raises reaches every caller of that batch."""

    def __init__(self, run: Callable[[list], list], most: int):
        self._run, self._most = run, most
        self._waiting: list[_Entry] = []
        self._lock = threading.Lock()  # guards _waiting
        self._turn = threading.Lock()  # held by the caller that runs a batch

    def __call__(self, items: list) -> list:
        """Results of `items`. Blocks. Thread-safe."""
        own = _Entry(items)
        with self._lock:
            self._waiting.append(own)
        while not own.done:
            with self._turn:
                if not own.done:
                    self._run_next()
        if own.error is not None:
            raise own.error
        return own.results

    def _run_next(self) -> None:
        with self._lock:
            batch = [self._waiting.pop(0)]
            while self._waiting and sum(len(e.items) for e in batch) + len(self._waiting[0].items) <= self._most:
                batch.append(self._waiting.pop(0))
        try:
            results = iter(self._run([item for entry in batch for item in entry.items]))
            for entry in batch:
                entry.results = [next(results) for _ in entry.items]
        except Exception as error:  # noqa: BLE001 - each caller raises it
            for entry in batch:
                entry.error = error
        for entry in batch:
            entry.done = True
