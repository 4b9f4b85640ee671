"""The runs that the recipes' documents name: commands in fenced blocks, and rows of the tables in full_size/README.md.

Each is a list of words for `ringside check`: files, relative to the checkout, and key=value settings.
"""
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
FULL_SIZE = "recipes/full_size"
COLUMNS = ["task", "model", "context", "layout", "more"]


def fenced_blocks(text: str) -> list[str]:
    return re.findall(r"^```[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_commands(block: str) -> list[str]:
    """Lines of a block, continued lines joined, without comments at their ends."""
    joined = block.replace("\\\n", " ")
    return [re.sub(r"\s+#\s.*$", "", line).strip() for line in joined.splitlines() if line.strip()]


def inputs_of(command: str) -> list[str]:
    """Recipes and settings of a `ringside run` or `train` command; [] for any other command."""
    words = shlex.split(command)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if len(words) < 3 or not words[0].endswith(("/ringside", "/ringside_cuda")) or words[1] not in ("run", "train"):
        return []
    found, skip = [], False
    for word in words[2:]:
        if skip or word.startswith("--"):
            skip = not skip and word in ("--run-dir", "--steps", "--nproc")
        else:
            found.append(word)
    return found


def rows_of(text: str) -> list[list[str]]:
    """Inputs of each row of a table whose head has the columns task, model, context, layout, more."""
    found, columns = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            columns = []
        elif set(COLUMNS) <= set(cells):
            columns = [cells.index(name) for name in COLUMNS]
        elif columns and cells[columns[1]].strip("-"):
            found.append(files_of_row([cells[i] for i in columns]))
    return found


def files_of_row(cells: list[str]) -> list[str]:
    task, model, context, layout, more = cells
    files = [f"{FULL_SIZE}/{task}.yaml", f"configs/models/{model}.yaml", f"configs/context/{context}.yaml"]
    files += [f"configs/parallel/{layout}.yaml"] if layout != "-" else []
    for word in more.replace("-", " ").split():
        files.append(f"configs/parallel/{word}.yaml" if word == "offload" else f"{FULL_SIZE}/{word}.yaml")
    return files


def documented_runs() -> list[tuple[str, list[str]]]:
    """(where it stands, inputs) of all of them, each once."""
    runs = {}
    for page in sorted(ROOT.glob("recipes/**/*.md")):
        text, place = page.read_text(), str(page.relative_to(ROOT))
        for block in fenced_blocks(text):
            for command in shell_commands(block):
                inputs = inputs_of(command) if "ringside" in command else []
                if any(word.startswith(("recipes/", "configs/")) for word in inputs):
                    runs.setdefault(tuple(inputs), place)
        for number, row in enumerate(rows_of(text)):
            server = ("vllm", "sglang")[number % 2]  # every row works with both; one is enough here
            samples = row[0].endswith("grpo.yaml")
            runs.setdefault(tuple(row + [f"configs/servers/{server}.yaml"] * samples), place)
    return [(place, list(inputs)) for inputs, place in runs.items()]


def without_pretrained(runs: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """Those that need no pretrained model; smollm2_tasks_test.py checks the others, on a stand-in."""
    return [run for run in runs if not any(word.startswith("recipes/smollm2/") for word in run[1])]
