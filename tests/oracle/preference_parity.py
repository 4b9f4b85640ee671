"""Three steps on the same pairs: `ringside train` against TRL's DPOTrainer and RewardTrainer.

Guards the chain from pairs of texts over log-probs, reference, losses, clipping and AdamW to the weights: a mask, a mean
or a factor that differs anywhere shows in the loss, the figures, the gradient norm or the change of the weights. A saved
reward model is read by transformers, whose scores must be those of our evaluation and of `ringside reward`.
"""

import contextlib
import json
import pathlib
import random
import re
import string
import subprocess
import sys
import tempfile
import urllib.request
import warnings

import datasets
import torch
import transformers
import trl

import ringside_cli
import tiny_models
from trl_parity import weight_change_error

datasets.disable_progress_bars()
transformers.utils.logging.set_verbosity_error()

STEPS, PAIRS, HELD_OUT, LEARNING_RATE = 3, 6, 7, 1e-3
ABSOLUTE, RELATIVE, WEIGHTS = 1e-5, 1e-3, 1e-3
# family, tied
MODELS = [("qwen3", True), ("llama", False)]
# words of ours, options of TRL's DPOConfig
DPO_CASES = [
    (["beta=0.1"], {"beta": 0.1}),
    (["beta=0.5"], {"beta": 0.5}),
    (["beta=0.3", "loss=ipo"], {"beta": 0.3, "loss_type": ["ipo"]}),
    (["beta=0.2", "loss=hinge"], {"beta": 0.2, "loss_type": ["hinge"]}),
    (["beta=0.1", "sft_coef=0.7"], {"beta": 0.1, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7]}),
]
REWARD_CASES = [([], {}), (["center_coef=0.05"], {"center_rewards_coefficient": 0.05})]
DPO_FIGURES = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected",
               "entropy"]
REWARD_FIGURES = ["accuracy", "margin", "min_reward", "mean_reward", "max_reward"]


def make_pairs(seed: int, count: int) -> list[dict]:
    rng = random.Random(seed)

    def text(longest: int) -> str:
        return "".join(rng.choice(string.ascii_letters) for _ in range(rng.randint(1, longest)))

    return [{"prompt": text(8), "chosen": text(12), "rejected": text(12)} for _ in range(count)]


def recording(trainer_class):
    """The trainer with its steps in order, without shuffling, and with what it logs."""

    class Recording(trainer_class):
        def __init__(self, *args, **kwargs):
            self.steps = []
            super().__init__(*args, **kwargs)

        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def log(self, logs, start_time=None):
            super().log(logs, start_time)
            if "grad_norm" in logs:
                self.steps.append(dict(logs))

    return Recording


def train_with_trl(trainer_class, config_class, model, folder: pathlib.Path, pairs: list[dict], options: dict, **kwargs):
    """What each step logged, and the trained weights."""
    with tempfile.TemporaryDirectory() as output, warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        config = config_class(
            output_dir=output, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
            per_device_train_batch_size=PAIRS, gradient_accumulation_steps=1, max_steps=STEPS, learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=1.0, weight_decay=0.0, optim="adamw_torch",
            max_length=None, disable_dropout=True, logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
            dataloader_num_workers=0, seed=1, **options,
        )
        trainer = recording(trainer_class)(
            model=model, args=config, train_dataset=datasets.Dataset.from_list(pairs),
            processing_class=tiny_models.make_tokenizer(), **kwargs,
        )
        trainer.train()
    return trainer.steps, {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def train_with_ringside(folder: pathlib.Path, task: str, model: pathlib.Path, words: list[str]):
    """The metrics of each step, of the last evaluation with its names, and the final directory."""
    run_dir = folder / "-".join([task, *words])
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({
        "model": {"path": str(model), "dtype": "float32"},
        "data": {"preferences": str(folder / "train.jsonl"), "preferences_eval": str(folder / "held_out.jsonl"), "shuffle": False},
        "algorithm": {"task": task},
        "train": {"steps": STEPS, "batch_size": PAIRS, "tokens_per_micro_batch": 40},
        "optimizer": {"learning_rate": LEARNING_RATE, "lr_schedule": "constant", "warmup_steps": 0, "max_grad_norm": 1.0,
                      "weight_decay": 0.0},
        "eval": {"every": STEPS, "before_training": False},
    }))
    ringside_cli.run_in_memory(
        "train", recipe, "--run-dir", run_dir, *(f"algorithm.preference.{word}" for word in words)
    )
    return ringside_cli.read_steps(run_dir), run_dir / "checkpoint-final"


def compare(ours: list[dict], theirs: list[dict], figures: list[str]) -> int:
    """Prints a line per step; returns how many values lie outside ABSOLUTE + RELATIVE |TRL's|."""
    if len(ours) != len(theirs):
        print(f"  {len(ours)} steps, expected TRL's {len(theirs)}  FAIL")
        return 1
    failures = 0
    for index, (mine, expected) in enumerate(zip(ours, theirs, strict=True)):
        wrong = []
        for name in ["loss", "grad_norm", *figures]:
            got, wanted = mine[name], float(expected[name])
            # TRL rounds what it logs of the loss to four decimals; its own figures are not rounded.
            absolute = 6e-5 if name == "loss" else ABSOLUTE
            if abs(got - wanted) > absolute + RELATIVE * abs(wanted):
                wrong.append(f"{name} {got:.8f} TRL {wanted:.8f}")
        failures += len(wrong)
        print(f"  step {index + 1}: loss {mine['loss']:.6f} TRL {float(expected['loss']):.6f}" + "".join(f"  {w} FAIL" for w in wrong))
    return failures


def check_change(start: dict, ours: dict, theirs: dict) -> int:
    error = weight_change_error(start, ours, theirs)
    print(f"  weight change differs by {error:.2e} of its norm{'' if error <= WEIGHTS else ' FAIL'}")
    return int(not error <= WEIGHTS)


def check_dpo(folder: pathlib.Path, pairs: list[dict]) -> int:
    failures = 0
    start = ringside_cli.load_weights(folder / "model")
    for words, options in DPO_CASES:
        load = transformers.AutoModelForCausalLM.from_pretrained
        theirs, their_weights = train_with_trl(
            trl.DPOTrainer, trl.DPOConfig, load(folder / "model", dtype=torch.float32), folder, pairs, options,
            ref_model=load(folder / "model", dtype=torch.float32),
        )
        ours, final = train_with_ringside(folder, "dpo", folder / "model", words)
        print(f"dpo {' '.join(words)}")
        failures += compare(ours, theirs, DPO_FIGURES)
        failures += check_change(start, ringside_cli.load_weights(final), their_weights)
    return failures


def make_reward_model(folder: pathlib.Path) -> pathlib.Path:
    """The language model's trunk with a head away from zero."""
    torch.manual_seed(3)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "model", num_labels=1, dtype=torch.float32
    )
    torch.nn.init.normal_(model.score.weight, std=0.3)
    model.save_pretrained(folder / "rewards")
    tiny_models.make_tokenizer().save_pretrained(folder / "rewards")
    return folder / "rewards"


def check_saved(final: pathlib.Path, last: dict, held_out: list[dict]) -> int:
    """Scores of the saved model in transformers, alone and padded, against our evaluation."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(final, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(final)
    texts = [pair["prompt"] + pair[side] + tokenizer.eos_token for pair in held_out for side in ("chosen", "rejected")]
    tokenizer.padding_side = "right"
    with torch.no_grad():
        padded = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits.squeeze(-1)
        alone = torch.stack([model(**tokenizer([text], return_tensors="pt")).logits.squeeze() for text in texts])
    failures = 0
    for name, scores in (("padded", padded), ("alone", alone)):
        for figure, wanted in (("min_reward", scores.min()), ("mean_reward", scores.mean()), ("max_reward", scores.max())):
            passed = abs(last[f"eval/{figure}"] - wanted.item()) <= ABSOLUTE
            failures += not passed
            print(f"  {name} {figure}: {last[f'eval/{figure}']:.6f} transformers {wanted.item():.6f}{'' if passed else ' FAIL'}")
    return failures


def check_served(final: pathlib.Path, held_out: list[dict]) -> int:
    """What `ringside reward` answers about the saved model, beside transformers."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(final, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(final)
    server = subprocess.Popen([ringside_cli.executable(), "reward", "--model", final, "--address", "127.0.0.1:0"],
                              stdout=subprocess.PIPE, text=True)
    worst = 0.0
    try:
        url = re.search(r" at (http://[0-9.:]+): ", server.stdout.readline()).group(1)
        for pair in held_out:
            body = json.dumps({"prompt": pair["prompt"], "completion": pair["chosen"], "answer": ""}).encode()
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
                reward = json.load(answer)["reward"]
            ids = tokenizer([pair["prompt"] + pair["chosen"] + tokenizer.eos_token], return_tensors="pt")
            with torch.no_grad():
                worst = max(worst, abs(reward - model(**ids).logits.item()))
    finally:
        server.terminate()
        status = server.wait(30)
    passed = worst <= ABSOLUTE and status == 0
    print(f"  served: {worst:.1e} from transformers, exit status {status}{'' if passed else ' FAIL'}")
    return not passed


def check_rewards(folder: pathlib.Path, pairs: list[dict], held_out: list[dict]) -> int:
    failures = 0
    start_dir = make_reward_model(folder)
    start = ringside_cli.load_weights(start_dir)
    for words, options in REWARD_CASES:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(start_dir, num_labels=1, dtype=torch.float32)
        theirs, their_weights = train_with_trl(trl.RewardTrainer, trl.RewardConfig, model, folder, pairs, options)
        ours, final = train_with_ringside(folder, "reward_model", start_dir, words)
        print(f"reward_model {' '.join(words)}")
        failures += compare(ours, theirs, REWARD_FIGURES)
        failures += check_change(start, ringside_cli.load_weights(final), their_weights)
        failures += check_saved(final, ours[-1], held_out)
    failures += check_served(final, held_out)
    return failures


def main() -> int:
    torch.set_num_threads(1)
    failures = 0
    for seed, (family, tied) in enumerate(MODELS):
        with tempfile.TemporaryDirectory() as folder_name:
            folder = pathlib.Path(folder_name)
            model = tiny_models.make_model(tiny_models.make_config(family, heads=4, kv_heads=2, tied=tied), seed)
            tiny_models.save(model, folder / "model")
            pairs, held_out = make_pairs(seed, STEPS * PAIRS), make_pairs(seed + 100, HELD_OUT)
            for name, lines in (("train", pairs), ("held_out", held_out)):
                (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            print(f"{family} {'tied' if tied else 'untied'}")
            failures += check_dpo(folder, pairs)
            failures += check_rewards(folder, pairs, held_out)
    print(f"{failures} values outside their bounds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
