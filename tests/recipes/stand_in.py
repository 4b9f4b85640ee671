"""Model directories and data files for recipes whose real ones are not here.

A model directory is the config.json of configs/models and a tokenizer of bytes with the special tokens of the chat
templates; there are no weights. The data has one line of each form.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import quickstart_task  # noqa: E402

IMAGE_TOKENS = {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
                "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           *IMAGE_TOKENS.values()]
# What chat templates of models that take images write.
IMAGE_TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
                  "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}"
                  "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
                  "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# 32 x 32 red pixels.
IMAGE = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKklEQVR42mO4o6FBU8QwasGoBaMWjFowasGoBaMWjFow"
         "asGoBaMWDBULAIahsD0l4r5QAAAAAElFTkSuQmCC")
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
QUESTION = {"role": "user", "content": "What is 17 * 3?"}


def tokenizer_json() -> dict:
    vocabulary = quickstart_task.vocabulary_of(CHARACTERS)
    vocabulary.pop(";", None)
    vocabulary = {token: i for i, token in enumerate([*vocabulary, ";", *SPECIAL])}
    tokenizer = quickstart_task.tokenizer_json(vocabulary)
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": vocabulary[token], "content": token}
                                  for token in SPECIAL]
    return tokenizer


def model(folder: pathlib.Path, shape: str) -> pathlib.Path:
    """`folder`/`shape`, with the config.json of configs/models/`shape`, and what else is there for images."""
    source, target = ROOT / "configs/models" / shape, folder / shape
    target.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_json()
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((source / "config.json").read_text())
    if "image_token_id" in config:
        config |= {key: tokenizer["model"]["vocab"][token] for key, token in IMAGE_TOKENS.items()}
        (target / "preprocessor_config.json").write_bytes((source / "preprocessor_config.json").read_bytes())
        (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": IMAGE_TEMPLATE}))
    (target / "config.json").write_text(json.dumps(config))
    return target


def data(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Files for data.train and data.eval, and for data.sft, by these keys; prompts with images by "images"."""
    prompts, chats, images = (folder / f"{name}.jsonl" for name in ("prompts", "chats", "images"))
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many sides has it?"}]}
    images.write_text(json.dumps({"prompt": [asked], "images": [IMAGE], "answer": "4"}) + "\n")
    prompts.write_text(json.dumps({"prompt": [QUESTION], "answer": "51"}) + "\n")
    chats.write_text(json.dumps({"messages": [QUESTION, {"role": "assistant", "content": "51"}]}) + "\n")
    return {"data.train": prompts, "data.eval": prompts, "data.sft": chats, "images": images}
