# Run by tools/check_wheel.sh inside the minimal root, with /bin/sh -eu, as an ordinary user.
part() {
  begun=$(date +%s)
  name=$1
  shift
  "$@" >/tmp/log 2>&1 || {
    tail -n 40 /tmp/log >&2
    echo "FAILED: $name" >&2
    return 1
  }
  echo "passed: $name, $(($(date +%s) - begun)) s"
}

# A Qwen2.5 of one layer with random weights, and a tokenizer of one token a byte: what README downloads, but small.
tiny_model() {
  ringside run first.yaml --dry-run >/tmp/dry.log 2>&1 || { cat /tmp/dry.log; return 1; }
  python - <<'PYTHON'
import json, pathlib
folder = pathlib.Path("models/Qwen2.5-0.5B-Instruct")
folder.mkdir(parents=True)
symbols = [chr(n) for n in range(32, 127)] + ["Ġ", "Ċ"]
vocabulary = {symbol: n for n, symbol in enumerate(dict.fromkeys(symbols))}
special = ["<|im_start|>", "<|im_end|>"]
ids = {name: len(vocabulary) + n for n, name in enumerate(special)}
added = [dict(id=ids[name], content=name, special=True, single_word=False, lstrip=False, rstrip=False, normalized=False)
         for name in special]
(folder / "tokenizer.json").write_text(json.dumps(dict(
    version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, post_processor=None,
    pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
    decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
    model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
               fuse_unk=False, byte_fallback=False, vocab=vocabulary, merges=[]))))
(folder / "tokenizer_config.json").write_text(json.dumps(dict(
    eos_token="<|im_end|>",
    chat_template="{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")))
(folder / "config.json").write_text(json.dumps(dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=128, max_position_embeddings=2048, rope_theta=10000.0,
    rms_norm_eps=1e-6, hidden_act="silu", tie_word_embeddings=True, torch_dtype="float32", use_sliding_window=False,
    bos_token_id=None, eos_token_id=ids["<|im_end|>"], initializer_range=0.02, attention_dropout=0.0)))
PYTHON
}

# The three steps of the run are in its metrics.
three_steps() {
  ringside run first.yaml --run-dir runs/first model.init=random train.steps=3 rollout.prompts_per_step=2 rollout.group_size=4 \
    rollout.max_completion_tokens=16 eval.every=0
  [ "$(grep -c '"step":[123]' runs/first/metrics.jsonl)" -eq 3 ]
}

# The client beside it: what an environment of one's own imports.
client() {
  python -c 'import importlib.metadata, ringside, ringside_bridge
assert ringside.__version__ == importlib.metadata.version("ringside")
from ringside_bridge import Client'
}

cp -r /opt/wheel/first /tmp/first
cd /tmp/first
part "python3 -m venv" python3 -m venv --system-site-packages /tmp/env
PATH=/tmp/env/bin:$PATH
part "pip install of the requirements" pip install --quiet --no-index --find-links /opt/wheel pyzmq msgpack numpy xxhash jinja2
part "pip install ringside-*.whl" pip install --quiet --no-index --no-deps /opt/wheel/ringside-*.whl
part "ringside --version" ringside --version
cat /tmp/log
part "run --dry-run of README's first recipe, and a tiny model" tiny_model
part "check of README's first recipe" ringside check first.yaml model.init=random
tail -n 3 /tmp/log
part "run of three steps on two ranks" three_steps
part "a recipe of the wheel by its name" ringside run quickstart/grpo.yaml --dry-run
part "the Python client" client
part "uninstall" pip uninstall --quiet --yes ringside
[ ! -e /tmp/env/bin/ringside ]
