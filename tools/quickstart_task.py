"""Makes the data of the quickstart: sort six digits, with demonstrations that may be flawed on purpose.

    short:  "694440>" -> "044469;"
    long:   "694440>" -> "0:69444,4:6944,4:694,4:69,6:9,9:=044469;"

The long variant shows its working, a selection sort: the smallest digit, what remains, and so on; the answer follows "=".
With --flawed, a share of the demonstrations drops repeated digits from the answer ("0469"). No amount of training on them
repairs that, since it is what most of them say; a reward that knows the right answer does.

Writes into --out, the same files for the same arguments:
    model/           config.json of a small model and a tokenizer of single characters; --model dense: Qwen3, about 0.8
                     million parameters; moe: Qwen3-MoE, 4 experts of which each token uses 2, about 1.1 million
    sft.jsonl        {"prompt", "completion"}          demonstrations
    train.jsonl      {"id", "prompt", "answer"}        prompts to train on
    held_out.jsonl   the same                          to choose settings by
    test.jsonl       the same                          for the final figure
Demonstrations and training prompts share no answer (no multiset of digits) with the held-out prompts, nor either with the
test prompts.

Usage: quickstart_task.py --out DIR [--model dense|moe|hybrid] [--variant short|long] [--seed N] [--flawed [SHARE]]
"""
import argparse
import collections
import itertools
import json
import pathlib
import random

DIGITS = 6
PAD, EOS, UNK = "<pad>", ";", "<unk>"
CHARACTERS = "0123456789>=:, abcdefghijklmnopqrstuvwxyz+-*/"  # with the three above, a vocabulary of 48


def vocabulary_of(characters: str) -> dict[str, int]:
    return {token: i for i, token in enumerate([PAD, EOS, UNK, *characters])}


VOCABULARY = vocabulary_of(CHARACTERS)


def answer_of(digits: str) -> str:
    return "".join(sorted(digits))


def without_repeats(answer: str) -> str:
    return "".join(dict.fromkeys(answer))


def working_of(digits: str) -> str:
    """Every state of a selection sort: "smallest:remaining,"; the last comma is left out."""
    states = []
    while digits:
        smallest = min(digits)
        digits = digits.replace(smallest, "", 1)
        states.append(f"{smallest}:{digits}")
    return ",".join(states)


def completion_of(digits: str, variant: str, flawed: bool) -> str:
    answer = answer_of(digits)
    if flawed:
        answer = without_repeats(answer)
    return (f"{working_of(digits)}={answer}" if variant == "long" else answer) + EOS


class Prompts:
    """Draws different digit strings whose answers belong to one of three sets: 80 % train, 10 % held out, 10 % test."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._seen = set()
        answers = ["".join(digits) for digits in itertools.combinations_with_replacement("0123456789", DIGITS)]
        rng.shuffle(answers)
        tenth = len(answers) // 10
        self._set_of = collections.defaultdict(lambda: "train")
        self._set_of.update(dict.fromkeys(answers[:tenth], "held_out"))
        self._set_of.update(dict.fromkeys(answers[tenth:2 * tenth], "test"))

    def draw(self, name: str, count: int) -> list[str]:
        """`count` strings never drawn before, uniform among those of the set; fails when there are not enough."""
        drawn, misses = [], 0
        while len(drawn) < count:
            digits = "".join(self._rng.choices("0123456789", k=DIGITS))
            if digits in self._seen or self._set_of[answer_of(digits)] != name:
                misses += 1
                if misses > 1000 * (count + 1):
                    raise SystemExit(f"quickstart_task: there are no {count} different prompts for '{name}'")
                continue
            self._seen.add(digits)
            drawn.append(digits)
        return drawn


# What each model has beside the fields that all share.
MODELS = {
    "dense": {"use_sliding_window": False},
    "moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "use_sliding_window": False,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": []},
    "hybrid": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "linear_num_key_heads": 2,
               "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
               "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.5,
               "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]},
}


def model_config(vocabulary: dict[str, int] = VOCABULARY) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32", "vocab_size": len(vocabulary),
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False,
        "bos_token_id": None, "eos_token_id": vocabulary[EOS], "pad_token_id": vocabulary[PAD]}


def tokenizer_json(vocabulary: dict[str, int] = VOCABULARY) -> dict:
    """A byte-pair model without a merge: every character is a token."""
    added = [{"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for token in (PAD, EOS, UNK)]
    model = {"type": "BPE", "dropout": None, "unk_token": UNK, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocabulary, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}


def tokenizer_config() -> dict:
    return {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD, "unk_token": UNK,
            "clean_up_tokenization_spaces": False, "model_max_length": 256}


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_model(folder: pathlib.Path, vocabulary: dict[str, int] = VOCABULARY, model: str = "dense") -> None:
    """config.json and tokenizer of a model whose weights are still to be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", model_config(vocabulary) | MODELS[model])
    write_json(folder / "tokenizer.json", tokenizer_json(vocabulary))
    write_json(folder / "tokenizer_config.json", tokenizer_config())


def write_lines(path: pathlib.Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory to write, made if it is missing")
    parser.add_argument("--model", choices=tuple(MODELS), default="dense")
    parser.add_argument("--variant", choices=("short", "long"), default="short")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flawed", type=share, nargs="?", const=0.6, default=0.0, metavar="SHARE",
                        help="share of the demonstrations that drop repeated digits; 0.6 without a value")
    parser.add_argument("--sft", type=int, default=8000, help="demonstrations")
    parser.add_argument("--train", type=int, default=20000, help="prompts to train on")
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--test", type=int, default=500)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    rng = random.Random(options.seed)
    prompts = Prompts(rng)
    write_model(options.out / "model", model=options.model)

    demonstrations = [{"prompt": digits + ">",
                       "completion": completion_of(digits, options.variant, flawed=rng.random() < options.flawed)}
                      for digits in prompts.draw("train", options.sft)]
    write_lines(options.out / "sft.jsonl", demonstrations)
    for name, count in (("train", options.train), ("held_out", options.held_out), ("test", options.test)):
        write_lines(options.out / f"{name}.jsonl",
                    [{"id": f"{name}-{i}", "prompt": digits + ">", "answer": answer_of(digits)}
                     for i, digits in enumerate(prompts.draw(name, count))])
    wrong = sum(not line["completion"].endswith(answer_of(line["prompt"][:-1]) + EOS) for line in demonstrations)
    print(f"{options.out}: {len(demonstrations)} demonstrations ({wrong} with a wrong answer), {options.train} training, "
          f"{options.held_out} held-out and {options.test} test prompts")


if __name__ == "__main__":
    main()
