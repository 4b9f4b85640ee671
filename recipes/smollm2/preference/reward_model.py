"""A Bradley-Terry reward model of words and pairs of words: trained on preferred pairs, then served over HTTP.

P(a is preferred to b) = sigmoid(r(a) - r(b)), r linear in which words and word pairs a reply has, whether it repeats
words of the prompt, how long it is and whether it ends as a sentence; fitted by gradient descent with weight decay.

Usage: reward_model.py train PAIRS.jsonl MODEL.npz     the last fifth of the pairs measures it
       reward_model.py serve MODEL.npz [PORT]          POST {"prompt", "completion"} -> {"reward": 0 to 1}
Needs numpy.
"""
import json
import pathlib
import re
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

BUCKETS = 4096
COMMON = set("a customer writes my write reply of one sentence is in the to it on and".split())


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+|[.,!?]", text.lower())


def question_in(prompt: str) -> str:
    """The last message of the user, if the prompt is a rendered conversation."""
    return prompt.rpartition("<|im_start|>user")[2].partition("<|im_end|>")[0]


def features(prompt: str, reply: str) -> np.ndarray:
    x = np.zeros(BUCKETS + 4, np.float32)
    words = words_of(reply)
    asked = {word for word in words_of(question_in(prompt)) if word.isalpha()} - COMMON
    # Words of the prompt are one word: which thing it is does not matter.
    words = ["<asked>" if word in asked else word for word in words]
    for term in {*words, *(f"{a} {b}" for a, b in zip(words, words[1:]))}:
        x[zlib.crc32(term.encode()) % BUCKETS] = 1.0
    x[BUCKETS:] = ["<asked>" in words, len(words) / 20, max(0, len(words) - 25) / 20, reply.strip().endswith(".")]
    return x


def fit(chosen: np.ndarray, rejected: np.ndarray, steps: int = 400, rate: float = 0.5, decay: float = 1e-3) -> np.ndarray:
    difference, weights = chosen - rejected, np.zeros(chosen.shape[1], np.float32)
    for _ in range(steps):
        missed = 1 / (1 + np.exp(difference @ weights))
        weights += rate * (difference.T @ missed / len(difference) - decay * weights)
    return weights


def train(pairs: pathlib.Path, model: pathlib.Path) -> None:
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    sides = [np.stack([features("<|im_start|>user" + line["prompt"], line[side]) for line in lines])
             for side in ("chosen", "rejected")]
    cut = len(lines) * 4 // 5
    weights = fit(sides[0][:cut], sides[1][:cut])
    right = ((sides[0] - sides[1])[cut:] @ weights > 0).mean()
    centre = float(np.median(np.concatenate([side[:cut] @ weights for side in sides])))
    np.savez(model, weights=weights, centre=centre)
    print(f"{model}: {cut} pairs; {100 * right:.1f} % of {len(lines) - cut} others in the labelled order")


def serve(model: pathlib.Path, port: int) -> None:
    loaded = np.load(model)
    weights, centre = loaded["weights"], float(loaded["centre"])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            score = float(features(asked["prompt"], asked["completion"]) @ weights) - centre
            body = json.dumps({"reward": float(1 / (1 + np.exp(-score)))}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    elif sys.argv[1:2] == ["serve"]:
        serve(pathlib.Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 8766)
    else:
        sys.exit(__doc__)
