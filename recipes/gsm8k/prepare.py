"""Turns GSM8K's own files into Ringside's: a chat message that asks for \\boxed{}, and the number after "####".

    {"question": "...", "answer": "... #### 72"}   ->   {"prompt": [{"role": "user", ...}], "answer": "72"}

Usage: prepare.py IN.jsonl OUT.jsonl. Standard library only.
"""
import json
import pathlib
import sys

INSTRUCTION = "Think step by step and put the final answer in \\boxed{}."


def main() -> None:
    source, target = (pathlib.Path(word) for word in sys.argv[1:3])
    lines = []
    for number, text in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(text)
        _, mark, answer = row.get("answer", "").rpartition("####")
        if "question" not in row or not mark:
            raise SystemExit(f'{source}:{number}: expected a line of GSM8K\'s own files, with "question" and "answer" that '
                             "has ####; has it been prepared already?")
        prompt = [{"role": "user", "content": f"{row['question']}\n{INSTRUCTION}"}]
        lines.append(json.dumps({"prompt": prompt, "answer": answer.strip().replace(",", "")}) + "\n")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(lines), encoding="utf-8")
    print(f"{target}: {len(lines)} prompts")


if __name__ == "__main__":
    main()
