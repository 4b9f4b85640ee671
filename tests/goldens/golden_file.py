"""Writes goldens as JSON with one row a line, so that a change of a file can be read."""

import json
import pathlib


def write_rows(path: pathlib.Path, goldens: dict) -> None:
    """Each value of `goldens` on a line of its own; of a list of objects each object."""
    def text(value) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(json.dumps(row) for row in value) + "]"
        return json.dumps(value)
    path.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {text(value)}" for key, value in goldens.items()) + "}\n")
