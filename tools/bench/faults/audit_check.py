"""Can the audit fail? Damages what a good run left behind, one thing at a time, and demands the finding that names it.

Usage: .env/oracle/bin/python tools/bench/faults/audit_check.py [--binary build/ringside]
"""

import argparse
import json
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import time

import xxhash

import audit
import campaign
import journal_file
import judge
from scene import ROOT, Scene


def change_lines(path: pathlib.Path, change) -> None:
    lines = audit.read_lines(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def without_record(path: pathlib.Path, number: int) -> None:
    """Takes a whole rollout record out of a journal."""
    records = [record for record in journal_file.read_journal(path)]
    at = [place for place, record in enumerate(records) if record.kind == journal_file.ROLLOUT][number]
    data = path.read_bytes()
    path.write_bytes(data[:records[at - 1].end] + data[records[at].end:])


def other_sample(lines: list[dict]) -> list[dict]:
    lines[5] = {**lines[5], "completion_ids": lines[5]["completion_ids"][::-1] + [7], "logprobs": lines[5]["logprobs"] + [-1.0]}
    return lines


def other_logprob(lines: list[dict]) -> list[dict]:
    lines[40]["logprobs"][0] -= 3e-4
    return lines


def other_version(lines: list[dict]) -> list[dict]:
    line = next(line for line in lines if line["versions"][0]["version"] == 6)
    line["versions"][0]["version"] = 5
    return lines


def damages(scene) -> dict:
    """What is done -> the word its finding begins with, and the deed."""
    history, journal = scene.run_dir / "rollouts.jsonl", scene.run_dir / "bridge/journal/journal.bin"
    copy = scene.folder / "journal-000.bin"
    return {
        "a sample left out of the history": ("doubled", lambda: change_lines(history, lambda lines: lines[1:])),
        "a sample twice": ("doubled", lambda: change_lines(history, lambda lines: [lines[0], *lines])),
        "a step's metrics twice": ("doubled", lambda: change_lines(scene.run_dir / "metrics.jsonl", lambda l: [l[0], *l])),
        "another completion in the place of an accepted one": ("lost", lambda: change_lines(history, other_sample)),
        "a record gone from the journal": ("lost", lambda: (shutil.copy(journal, copy), without_record(journal, 8),
                                                            scene.journal_copies.append(copy))),
        "an acknowledgement without a record": ("lost", None),
        "a log-prob of no weights": ("unverified", lambda: change_lines(history, other_logprob)),
        "a version misnamed": ("unverified", lambda: change_lines(history, other_version)),
        "weights that were never published": ("unverified", lambda: shutil.rmtree(scene.weights_dir / "e0001-v000004")),
        "a group dropped without a cause": ("lost", lambda: forget_without_cause(scene)),
    }


def forget_without_cause(scene) -> None:
    """As if the trainer had dropped group 3 and had it sampled again, though all of it was fresh."""
    journal = scene.run_dir / "bridge/journal/journal.bin"
    data = journal.read_bytes()
    for kind in (journal_file.CONSUMED, journal_file.REOPENED):
        payload = struct.pack("<2q", 3, 4)
        data += struct.pack("<IIQ", len(payload), kind, xxhash.xxh3_64_intdigest(payload, seed=kind)) + payload
    journal.write_bytes(data)
    change_lines(scene.run_dir / "rollouts.jsonl", lambda lines: [
        {**line, "rollout_id": line["rollout_id"] + "'"} if line["group_id"] == 3 else line for line in lines])


def undisturbed(folder: pathlib.Path, binary: pathlib.Path) -> Scene:
    data = campaign.prepare(folder, binary)
    scene = Scene(folder / "scene", binary, data, random.Random(1), steps=9, ranks=1, workers=1, staleness=0, encoding="auto")
    scene.start()
    deadline = time.monotonic() + 120
    while not scene.finished and time.monotonic() < deadline:
        scene.tick()
        time.sleep(0.05)
    problems = scene.end()
    if problems or not scene.finished:
        raise SystemExit(f"audit_check: the run did not end well: {problems}")
    return scene


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/ringside")
    binary = parser.parse_args().binary
    failures = 0
    with tempfile.TemporaryDirectory(prefix="ringside-audit-") as name:
        folder = pathlib.Path(name)
        scene = undisturbed(folder, binary)
        referee = judge.Judge()
        findings, facts = audit.audit(scene, [], referee)
        print(f"as it was: {findings or 'no finding'} {dict(facts)}")
        failures += bool(findings)
        kept = folder / "kept"
        shutil.copytree(scene.folder, kept)
        for what, (word, deed) in damages(scene).items():
            acks = [("nobody/0", "ACCEPTED", 1)] if deed is None else []
            if deed:
                deed()
            findings, _ = audit.audit(scene, acks, referee)
            seen = [finding for finding in findings if finding.startswith(word)]
            print(f"{'found ' if seen else 'MISSED'} {what}: {(seen or findings or ['nothing'])[0]}")
            failures += not seen
            scene.journal_copies.clear()
            shutil.rmtree(scene.folder)
            shutil.copytree(kept, scene.folder)
        referee.close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
