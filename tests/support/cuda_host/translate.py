#!/usr/bin/env python3
"""Turns a .cu or .cuh file into C++ that the execution model of this folder runs on the host.

Usage: translate.py SOURCE OUTPUT [--root DIR] [--replacements FILE]

Three things of CUDA are not C++, and are rewritten in place, so that every line keeps its number:

- `kernel<types><<<grid, block, shared, stream>>>(arguments)`, a launch;
- `__shared__ T name[sizes];`, memory of a block;
- `extern __shared__ T name[];`, the memory that the launch asked for.

All else (qualifiers, built-in variables and functions) is in device.h and in include/.

--replacements: a JSON file {source: [[old, new], ...]} for a copy with planted faults. Each old
text must occur exactly once. planted.h has what the new texts call.
"""
import argparse
import json
import pathlib
import re
import sys

SHARED = re.compile(r'(?P<extern>\bextern\s+)?\b__shared__\s+(?P<declaration>[^;]*);')
DECLARATION = re.compile(r'(?P<type>[\w:<>,\s*]*?[\w>*])\s*\b(?P<name>\w+)\s*(?P<sizes>(\[[^\]]*\]\s*)*)$')


class Untranslatable(Exception):
    """Something that this script does not know; the text says where."""


def line_of(text: str, at: int) -> int:
    return text.count('\n', 0, at) + 1


def shared_memory(match: re.Match) -> str:
    declared = DECLARATION.match(match['declaration'].strip())
    if declared is None:
        raise Untranslatable(f'line {line_of(match.string, match.start())}: `{match[0]}`: expected one array or value')
    kind, name, sizes = declared['type'].strip(), declared['name'], declared['sizes'].strip()
    if match['extern']:
        return f'{kind}* const {name} = ::ringside::cuda_host::dynamic_shared<{kind}>();'
    return f'auto& {name} = ::ringside::cuda_host::shared<{kind}{sizes}>([] {{}}, "{name}");'


def start_of_kernel(text: str, end: int) -> int:
    """Where the name, with its template arguments, begins that ends before `end`."""
    at = end
    while text[at - 1].isspace():
        at -= 1
    if text[at - 1] == '>':
        depth = 0
        while True:
            at -= 1
            depth += (text[at] == '>') - (text[at] == '<')
            if depth == 0:
                break
    return re.search(r'[\w:]+\s*$', text[:at]).start()


def launches(text: str) -> str:
    done, at = '', 0
    while (begin := text.find('<<<', at)) >= 0:
        end = text.find('>>>', begin)
        opening = re.compile(r'\s*\(').match(text, end + 3)
        if end < 0 or opening is None:
            raise Untranslatable(f'line {line_of(text, begin)}: a launch without `>>>(`')
        kernel_at = start_of_kernel(text, begin)
        kernel = text[kernel_at:begin]
        name = re.match(r'[\w:]+', kernel)[0]
        lines = '\n' * text[begin:opening.end()].count('\n')
        closes = re.compile(r'\s*\)').match(text, opening.end())
        done += text[at:kernel_at] + f'::ringside::cuda_host::launch("{name}", {text[begin + 3:end].strip()})('
        done += f'[](auto... of_kernel) {{ {kernel.strip()}(of_kernel...); }}{"" if closes else ", "}{lines}'
        done += '\n' * (kernel.count('\n') - kernel.strip().count('\n'))
        at = opening.end()
    return done + text[at:]


def replaced(text: str, pairs: list[list[str]]) -> str:
    for old, new in pairs:
        if text.count(old) != 1:
            raise Untranslatable(f'`{old}`, to be replaced, occurs {text.count(old)} times, expected once')
        if old.count('\n') < new.count('\n'):
            raise Untranslatable(f'a replacement of more lines than the original: `{new}`')
        new = re.sub(r'\bplanted\(', '::ringside::cuda_host::planted(', new)
        text = text.replace(old, new + '\n' * (old.count('\n') - new.count('\n')))
    return text


def translated(text: str) -> str:
    return launches(SHARED.sub(shared_memory, text))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument('source', type=pathlib.Path)
    parser.add_argument('output', type=pathlib.Path)
    parser.add_argument('--root', type=pathlib.Path, default=pathlib.Path.cwd())
    parser.add_argument('--replacements', type=pathlib.Path)
    options = parser.parse_args()
    name = options.source.resolve().relative_to(options.root.resolve()).as_posix()
    text = options.source.read_text()
    try:
        if options.replacements:
            text = replaced(text, json.loads(options.replacements.read_text())[name])
        options.output.write_text(f'#line 1 "{name}"\n' + translated(text))
    except Untranslatable as error:
        print(f'{name}: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
