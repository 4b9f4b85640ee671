"""A training step of a Qwen3-MoE, ours beside transformers'.

Both get the same random model in fp32, the same documents packed into one sequence and two threads, and
take AdamW steps on the log-probs of all next tokens. transformers gets position ids that start anew in each
document, from which it makes its block-diagonal mask (sdpa). Ours runs on one rank, and on two ranks of one
thread whose experts are sharded like all parameters or divided between them.

Usage: beside_transformers.py BENCH_EXPERTS [--repetitions N] [--save]
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

LENGTHS = [256] * 16


def make_model(directory):
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=768, moe_intermediate_size=256, num_experts=16,
        num_experts_per_tok=4, norm_topk_prob=True, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, max_position_embeddings=8192,
        use_cache=False)
    model = transformers.Qwen3MoeForCausalLM._from_config(config, attn_implementation="sdpa")
    model.save_pretrained(directory)
    return model.train()


def documents_of(lengths, vocab):
    ids, positions, targets = [], [], []
    for d, length in enumerate(lengths):
        document = [(7 * i + 13 * d + 1) % vocab for i in range(length)]
        ids += document
        positions += range(length)
        targets += document[1:] + [-100]
    return torch.tensor([ids]), torch.tensor([positions]), torch.tensor(targets)


def seconds_of_step(model, optimizer):
    ids, positions, targets = documents_of(LENGTHS, model.config.vocab_size)
    begin = time.perf_counter()
    logits = model(input_ids=ids, position_ids=positions).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    (loss * 1e-4).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    tokens = sum(LENGTHS)
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(directory)
        command = [options.bench, directory, ",".join(map(str, LENGTHS)), str(options.repetitions)]
        out = subprocess.run(command, check=True, capture_output=True, text=True)
        results = [json.loads(line) for line in out.stdout.splitlines()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
        seconds_of_step(model, optimizer)  # warm-up
        theirs = statistics.median(seconds_of_step(model, optimizer) for _ in range(options.repetitions))
    results.append({"variant": "transformers", "tokens": tokens, "seconds": theirs, "tokens_per_s": tokens / theirs})
    for line in results:
        line["of_transformers"] = line["tokens_per_s"] / results[-1]["tokens_per_s"]
        print(json.dumps(line), flush=True)
    if options.save:
        head = {"date": datetime.date.today().isoformat(), "torch": torch.__version__,
                "transformers": transformers.__version__}
        path = pathlib.Path(__file__).parents[1] / "results" / f"experts-beside-transformers-{head['date']}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in [head, *results]))
        print(f"saved {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
