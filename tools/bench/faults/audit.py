"""What a finished run must show, whatever struck it. Every finding is a sentence; none is the only good answer.

lost        every rollout the trainer accepted is in the final history, or was dropped with a cause that the audit can check
doubled     the final history holds each sample of each step once
unverified  every consumed rollout's log-probs are those of the weights it names, computed again from disk: by transformers for
            every version, by `ringside logprobs` for a few
"""

import collections
import json
import pathlib
import subprocess

import numpy as np

import journal_file

ROUND_STRIDE = 1 << 40
LOGPROB_TOLERANCE = 2e-4
OWN_CHECKS = 3  # versions that `ringside logprobs` computes too: it takes a process each


def read_lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def final_history(lines: list[dict]) -> dict[int, list[dict]]:
    """For each step the lines of the last trainer start that trained it."""
    newest = {}
    for line in lines:
        newest[line["step"]] = max(newest.get(line["step"], -1), line["logged_in_term"])
    history = collections.defaultdict(list)
    for line in lines:
        if line["logged_in_term"] == newest[line["step"]]:
            history[line["step"]].append(line)
    return history


def audit_history(scene, history: dict[int, list[dict]]) -> list[str]:
    """(b) Every step whole, no sample and no rollout_id twice."""
    findings, seen_ids = [], collections.Counter()
    for step in range(1, scene.steps + 1):
        samples = collections.Counter((line["group_id"] % ROUND_STRIDE, line["sample_index"]) for line in history[step])
        slots = range((step - 1) * scene.prompts_per_step, step * scene.prompts_per_step)
        expected = {(slot, sample) for slot in slots for sample in range(scene.group_size)}
        if set(samples) != expected or max(samples.values(), default=0) > 1:
            findings.append(f"doubled: step {step} holds {len(history[step])} lines of {len(samples)} samples, "
                            f"expected {len(expected)} of as many")
        seen_ids.update((line["trainer_term"], line["rollout_id"]) for line in history[step])
    if set(history) != set(range(1, scene.steps + 1)):
        findings.append(f"doubled: history of steps {sorted(history)}, expected 1 to {scene.steps}")
    findings += [f"doubled: rollout {name} {count} times" for name, count in seen_ids.items() if count > 1]
    steps = [line["step"] for line in read_lines(scene.run_dir / "metrics.jsonl")]
    if steps != list(range(1, scene.steps + 1)):
        findings.append(f"doubled: metrics.jsonl holds steps {steps}")
    return findings


class Lineage:
    """Which weights each trainer start descends from, out of bridge/trainer_terms."""

    def __init__(self, path: pathlib.Path):
        self.starts = [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []

    def is_stale(self, rollout: dict, epoch: int, trained_at: int, max_staleness: int) -> bool:
        """For the trainer start `epoch`, about to train version `trained_at`."""
        made = rollout["trainer_term"]
        surviving = min((version for start, version in self.starts if made < start <= epoch), default=trained_at)
        versions = rollout["versions"][:, 0].tolist() or [surviving]
        return max(versions) > min(surviving, trained_at) or trained_at - min(versions) > max_staleness


def epochs_of(records: list, copies: list[pathlib.Path]) -> tuple[list[int], list[str]]:
    """The trainer start under which each record was written, and what a restart cut off though it was whole. One copy was
    made at each death, so start k wrote what lies behind copy k-1's whole records. A start that died before it had an
    epoch wrote nothing."""
    ends, findings = [], []
    for copy in copies:
        whole = journal_file.read_journal(copy)
        ends.append(whole[-1].end if whole else 0)
        if [r.end for r in whole] != [r.end for r in records[:len(whole)]]:
            findings.append(f"lost: {copy.name} holds {len(whole)} whole records that the final journal does not begin with")
    return [sum(end < record.end for end in ends) for record in records], findings


def audit_journal(scene, history: dict[int, list[dict]], acks: list) -> tuple[list[str], dict]:
    """(a) The journal holds what was accepted: a rollout is acknowledged only after its record is written, and nothing is
    removed from a file below 64 MiB."""
    records = journal_file.read_journal(scene.run_dir / "bridge/journal/journal.bin")
    starts, findings = epochs_of(records, scene.journal_copies)
    lineage = Lineage(scene.run_dir / "bridge/trainer_terms")
    consumed = {(line["group_id"], line["sample_index"]): line for lines in history.values() for line in lines}
    forgotten_at = collections.defaultdict(list)  # group -> places of records that forget it for good
    for place, record in enumerate(records):
        if record.kind == journal_file.REOPENED:
            for begin, end in record.ranges:
                for group in range(begin, end):
                    forgotten_at[group].append(place)
    counts = collections.Counter()
    by_group = collections.defaultdict(list)
    for place, record in enumerate(records):
        if record.kind == journal_file.ROLLOUT:
            by_group[record.rollout["group_id"]].append((place, record.rollout))
    for group, rollouts in by_group.items():
        for place, rollout in rollouts:
            counts["accepted"] += 1
            if same(consumed.get((group, rollout["sample_index"])), rollout):
                counts["consumed"] += 1
                continue
            if had_cause(scene, lineage, [rollout]):  # a start passes over such a rollout and leaves it in the file
                counts["dropped as stale or of lost weights"] += 1
                continue
            dropped = next((at for at in forgotten_at[group] if at > place), None)
            if dropped is None:
                findings.append(f"lost: {rollout['rollout_id']} of trainer_term {rollout['trainer_term']} was accepted, is not in the "
                                "final history, and its group was not dropped")
            elif not had_cause(scene, lineage, [r for p, r in rollouts if p < dropped]):
                findings.append(f"lost: {rollout['rollout_id']} of trainer_term {rollout['trainer_term']} was dropped though its group "
                                "holds nothing stale")
            else:
                counts["dropped as stale or of lost weights"] += 1
    journalled = {(r["rollout_id"], r["trainer_term"]) for rollouts in by_group.values() for _, r in rollouts}
    names = {name for name, _ in journalled}
    for rollout_id, status, _ in acks:
        counts[f"acknowledged {status}, seen on the wire"] += 1
        if status == "ACCEPTED" and rollout_id not in names:
            findings.append(f"lost: {rollout_id} was acknowledged ACCEPTED and is not in the journal")
    counts["trainer starts"] = len(lineage.starts)
    return findings, counts


def same(line: dict | None, rollout: dict) -> bool:
    return (line is not None and line["rollout_id"] == rollout["rollout_id"] and line["trainer_term"] == rollout["trainer_term"]
            and line["completion_ids"] == rollout["completion_ids"].tolist()
            and np.array_equal(np.array(line["logprobs"], np.float32), rollout["logprobs"]))


def had_cause(scene, lineage: Lineage, rollouts: list[dict]) -> bool:
    """Whether a group's rollouts held one that some later trainer start had to drop."""
    trained_at = rollouts[0]["group_id"] % ROUND_STRIDE // scene.prompts_per_step
    newest = max((start for start, _ in lineage.starts), default=0)
    return any(lineage.is_stale(rollout, epoch, trained_at, scene.staleness)
               for rollout in rollouts for epoch in range(rollout["trainer_term"], newest + 1))


def audit_logprobs(scene, lines: list[dict], judge) -> tuple[list[str], dict]:
    """(c) Also of steps that a later start trained again: nothing is ever sampled from weights that were not published."""
    spans = collections.defaultdict(list)  # version -> (line, begin, end)
    findings = []
    for line in lines:
        if line["temperature"] != 1.0:
            findings.append(f"unverified: {line['rollout_id']} at temperature {line['temperature']}")
        for span in line["versions"]:
            spans[line["trainer_term"], span["version"]].append((line, span["begin"], span["end"]))
    worst, worst_own, moved, checked = 0.0, 0.0, 0.0, 0
    own = set(scene.rng.sample(sorted(spans), min(OWN_CHECKS, len(spans))))
    previous = None
    for key, parts in sorted(spans.items()):
        weights = scene.weights_dir / f"e{key[0]:04d}-v{key[1]:06d}"
        if not (weights / "config.json").exists():
            findings.append(f"unverified: {len(parts)} rollouts name weights {weights.name}, never published")
            continue
        ids = [line["prompt_ids"] + line["completion_ids"] for line, _, _ in parts]
        difference = difference_of(parts, judge.ask(weights, ids))
        worst, checked = max(worst, difference), checked + len(parts)
        if key in own:
            worst_own = max(worst_own, difference_of(parts, by_ringside(scene, weights, ids)))
            difference = max(difference, worst_own)
        if not difference < LOGPROB_TOLERANCE:
            findings.append(f"unverified: rollouts of {weights.name} differ from its log-probs by up to {difference:.2e}")
        if previous is not None and moved == 0.0:  # what a wrong version would have looked like
            moved = difference_of(parts, judge.ask(previous, ids))
        previous = weights
    return findings, {"rollouts recomputed": checked, "versions recomputed": len(spans), "largest difference": worst,
                      "largest difference by ringside logprobs": worst_own, "difference from the version before": moved}


def by_ringside(scene, weights: pathlib.Path, ids: list[list[int]]) -> list[list[float]]:
    asked, answered = scene.folder / "ids.jsonl", scene.folder / "logprobs.jsonl"
    asked.write_text("".join(json.dumps({"ids": row}) + "\n" for row in ids))
    subprocess.run([scene.binary, "logprobs", "--model", weights, "--input", asked, "--output", answered], check=True,
                   stdout=subprocess.DEVNULL, timeout=300)
    return [json.loads(text)["logprobs"] for text in answered.read_text().splitlines()]


def difference_of(parts: list[tuple[dict, int, int]], logprobs: list[list[float]]) -> float:
    """Largest absolute difference of the stated log-probs from those computed; value i of a sequence is of token i+1."""
    worst = 0.0
    for (line, begin, end), values in zip(parts, logprobs, strict=True):
        computed = np.array(values, np.float64)[len(line["prompt_ids"]) - 1:]
        stated = np.array(line["logprobs"], np.float64)
        if end > begin:
            worst = max(worst, float(np.abs(computed[begin:end] - stated[begin:end]).max()))
    return worst


def audit(scene, acks: list, judge) -> tuple[list[str], dict]:
    lines = read_lines(scene.run_dir / "rollouts.jsonl")
    history = final_history(lines)
    findings = audit_history(scene, history)
    lost, counts = audit_journal(scene, history, acks)
    unverified, checked = audit_logprobs(scene, lines, judge)
    return findings + lost + unverified, {**counts, **checked}
