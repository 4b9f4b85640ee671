"""Forward and backward of a decoder over packed documents, ours beside transformers'.

Both get the same random Qwen3 model in fp32, the same documents packed into one sequence, two
threads, and compute the log-probs of all next tokens and their gradients. transformers gets position
ids that start anew in each document, from which it makes its block-diagonal mask (sdpa).

Each repetition is a process of its own, one of ours and one of theirs in turns: a pass to warm up, then the median of
three. A process becomes a few per cent faster with its age, so that equal ages are compared. Of the repetitions the
median is reported.

Usage: beside_transformers.py BENCH_ENGINE [--repetitions N] [--save]
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

CASES = {
    "short: 64 x 64": [64] * 64,
    "uniform: 8 x 512": [512] * 8,
    "long tail": [1536, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 32, 16, 16, 8, 8],
    "one of 4096": [4096],
    "one of 8192": [8192],
}


PASSES = 3


def make_model(directory):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=6, num_key_value_heads=2, head_dim=64, tie_word_embeddings=True,
        max_position_embeddings=8192, use_cache=False)
    model = transformers.Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa")
    model.save_pretrained(directory)


def documents_of(lengths, vocab):
    ids, positions, targets = [], [], []
    for d, length in enumerate(lengths):
        document = [(7 * i + 13 * d + 1) % vocab for i in range(length)]
        ids += document
        positions += range(length)
        targets += document[1:] + [-100]
    return torch.tensor([ids]), torch.tensor([positions]), torch.tensor(targets)


def pass_of_transformers(model, lengths):
    ids, positions, targets = documents_of(lengths, model.config.vocab_size)
    begin = time.perf_counter()
    logits = model(input_ids=ids, position_ids=positions).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    (loss * 1e-4).backward()
    seconds = time.perf_counter() - begin
    model.zero_grad(set_to_none=True)
    return seconds


def print_transformers(directory, lengths):
    """The work of transformers' process."""
    torch.set_num_threads(2)
    model = transformers.Qwen3ForCausalLM.from_pretrained(directory, attn_implementation="sdpa").train()
    pass_of_transformers(model, lengths)
    passes = [pass_of_transformers(model, lengths) for _ in range(PASSES)]
    print(json.dumps({"seconds": statistics.median(passes)}))


def seconds_of(command, lengths):
    words = [*command, ",".join(map(str, lengths)), str(PASSES)]
    out = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])["seconds"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        make_model(directory)
        for name, lengths in CASES.items():
            ours, theirs = [], []
            for _ in range(options.repetitions):
                ours.append(seconds_of([options.bench, "packed", directory], lengths))
                theirs.append(seconds_of([sys.executable, __file__, "packed", directory], lengths))
            results.append({"case": name, "tokens": sum(lengths), "ours_s": statistics.median(ours),
                            "transformers_s": statistics.median(theirs),
                            "speedup": statistics.median(theirs) / statistics.median(ours)})
            print(json.dumps(results[-1]), flush=True)
    if options.save:
        head = {"date": datetime.date.today().isoformat(), "torch": torch.__version__,
                "transformers": transformers.__version__}
        path = pathlib.Path(__file__).parents[1] / "results" / f"engine-beside-transformers-{head['date']}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in [head, *results]))
        print(f"saved {path}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["packed"]:
        print_transformers(sys.argv[2], [int(length) for length in sys.argv[3].split(",")])
    else:
        main()
