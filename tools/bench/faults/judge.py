"""Log-probs by transformers, as a process that stays: it loads a version's weights and scores sequences, job by job.

Reads lines {"model": DIR, "ids": [[...], ...]} and answers each with {"logprobs": [[...], ...]}, one value fewer a sequence.
All models have one shape. Judge starts it and is its client; ask() may be called from several threads.
"""

import json
import pathlib
import subprocess
import sys
import threading

ANSWER = "judge:"  # what a library prints between answers is none


class Judge:
    def __init__(self):
        self._lock = threading.Lock()
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)

    def ask(self, model: pathlib.Path, ids: list[list[int]]) -> list[list[float]]:
        with self._lock:
            self._process.stdin.write(json.dumps({"model": str(model), "ids": ids}) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    return json.loads(line[len(ANSWER):])["logprobs"]
        raise RuntimeError(f"the judge died over {model}")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


def serve() -> None:
    import safetensors.torch
    import torch
    import transformers

    torch.set_num_threads(1)
    model = None
    for line in sys.stdin:
        job = json.loads(line)
        if model is None:
            model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).eval()
        state = safetensors.torch.load_file(pathlib.Path(job["model"]) / "model.safetensors")
        lacking, unknown = model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
        if unknown or set(lacking) - {"lm_head.weight"}:
            raise SystemExit(f"judge: {job['model']} lacks {lacking}, unknown {unknown}")
        model.tie_weights()
        longest = max(map(len, job["ids"]))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in job["ids"]])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in job["ids"]])
        with torch.no_grad():
            scores = torch.log_softmax(model(input_ids=ids, attention_mask=mask).logits[:, :-1].float(), -1)
        picked = scores.gather(-1, ids[:, 1:, None])[..., 0].tolist()
        answer = [values[:len(row) - 1] for values, row in zip(picked, job["ids"])]
        print(ANSWER + json.dumps({"logprobs": answer}), flush=True)


if __name__ == "__main__":
    serve()
