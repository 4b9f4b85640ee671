"""Our chat tokens against transformers: the ids of apply_chat_template and its assistant mask, with a byte-level BPE tokenizer
trained here and the templates written out below.

usage: chat_oracle.py CHAT_TOKENS_EXECUTABLE
"""

import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers import Regex
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MARKERS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# Qwen's split: line ends stick to the white space before them.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    text = [
        "assistant\n\nuser\n\nsystem\nhello there, the answer is 42.\n\n\nyes  no\n",
        "grün ist die Farbe\n\n- one\n- two\n```python\nx = 1\n```\n日本語",
    ] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in MARKERS])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# A prompt ends with a message of the user.
FOLLOW_UP = [{"role": "user", "content": "and then?"}]


def conversations():
    rng = random.Random(7)
    pieces = ["hello", " the answer", "\n", "\n\n", "  ", "42", ".", "grün", "日本", "- one", "assistant\n", "```", "\r\n", "'s", "!"]
    text = lambda low: "".join(rng.choice(pieces) for _ in range(rng.randint(low, 12)))
    result = [
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "\n\nhello"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}],
        [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": " second "}],
    ]
    for _ in range(200):
        turns = [{"role": "system", "content": text(0)}] if rng.random() < 0.3 else []
        for _ in range(rng.randint(1, 3)):
            turns.append({"role": "user", "content": text(0)})
            turns.append({"role": "assistant", "content": text(0)})
        result.append(turns)
    return result


def main():
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizer(folder)
        data = os.path.join(folder, "data.jsonl")
        chats = conversations()
        with open(data, "w") as file:
            for messages in chats:
                file.write(json.dumps({"messages": messages, "turns": messages + FOLLOW_UP}) + "\n")
        for name, template in (("chatml", CHATML), ("llama3", LLAMA3)):
            out = subprocess.run([sys.argv[1], folder, name, data], check=True, capture_output=True, text=True).stdout
            ours = [json.loads(line) for line in out.split("\n") if line]
            assert len(ours) == len(chats), (len(ours), len(chats))
            straddling = 0
            for messages, mine in zip(chats, ours):
                theirs = tokenizer.apply_chat_template(
                    messages, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
                )
                assert mine["ids"] == theirs["input_ids"], (name, messages, mine["ids"], theirs["input_ids"])
                mask = [bool(m) for m in theirs["assistant_masks"]]
                assert mine["learned"] == mask, (name, messages, mine["learned"], mask)
                prompt = tokenizer.apply_chat_template(
                    messages + FOLLOW_UP, chat_template=template, add_generation_prompt=True, tokenize=False
                )
                assert mine["prompt"] == prompt, (name, mine["prompt"], prompt)
                straddling += messages[-1]["content"].startswith("\n")
            assert straddling > 5, straddling
            print(f"{name}: {len(chats)} conversations, ids and masks equal")


if __name__ == "__main__":
    main()
