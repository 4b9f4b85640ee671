#!/usr/bin/env python3
"""Converts a GGUF file to a Hugging Face directory: from_gguf.py FILE.gguf DIRECTORY. Needs transformers, torch and gguf from PyPI.
Weights that the file holds in few bits come out as those values in bfloat16; the chat template comes along."""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf, directory = map(pathlib.Path, sys.argv[1:])
AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16).save_pretrained(directory)
AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)
