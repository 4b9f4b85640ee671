#!/usr/bin/env python3
"""Converts a GGUF file to a Hugging Face directory: from_gguf.py FILE.gguf DIRECTORY. Needs transformers, torch and gguf from PyPI.
Weights that the file holds in few bits come out as those values rounded to bfloat16; the chat template comes along. Compare
token ids with the published tokenizer: transformers 5.9 loses rules of some, as of SmolLM2, which smollm2/prepare.sh keeps."""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf, directory = map(pathlib.Path, sys.argv[1:])
AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16).save_pretrained(directory)
AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)
