"""A multi-turn environment: the model sorts digits with a tool that finds the smallest one. The dialogue: make_data.py."""
import json
import pathlib
import random
import re
import sys

EOS, MAX_TURNS, TURN_TOKENS = ";", 8, 12


def answer_of(digits: str) -> str:
    return "".join(sorted(digits))


def smallest(digits: str) -> str:  # the tool
    return f"{min(digits)}:{digits.replace(min(digits), '', 1)}>" if re.fullmatch(r"\d{1,8}", digits) else "?>"


def play(rollout, prompt: str, ids: dict[str, int], temperature: float):
    """Plays one conversation: yields what the model is to continue, takes what it said, and fills the rollout."""
    text_of, turn = {number: token for token, number in ids.items()}, 0
    for turn in range(MAX_TURNS):
        seed = random.Random(f"{rollout.group_id} {rollout.sample_index} {rollout.attempt} {turn}").getrandbits(63)
        said = yield [*rollout.prompt_ids, *rollout.completion_ids], TURN_TOKENS, temperature, seed
        rollout.turn_offsets.append(len(rollout.completion_ids))
        rollout.completion_ids += said["completion_ids"]
        rollout.logprobs += said["logprobs"]
        rollout.loss_mask += [1] * len(said["completion_ids"])  # what the model said is learned
        words, rollout.finish_reason = "".join(text_of[i] for i in said["completion_ids"]), said["finish_reason"]
        if words.startswith("=") or not words.endswith(EOS):
            rollout.rewards["sorted"] = float(words == f"={answer_of(prompt[:-1])}{EOS}")
            return
        reply = [ids[c] for c in smallest(words[:-1])] if turn + 1 < MAX_TURNS else []
        rollout.completion_ids += reply
        rollout.logprobs += [0.0] * len(reply)
        rollout.loss_mask += [0] * len(reply)  # what the tool said is not


def main(address: str, worker_id: str, data: str) -> None:
    from ringside_bridge import Client, Ended, Failed, Granted, Rollout, WeightsReady, hf_model, pull
    model, prompts = hf_model.HfModel(f"{data}/model"), pathlib.Path(f"{data}/train.jsonl").read_text().splitlines()
    ids = json.loads(pathlib.Path(f"{data}/model/tokenizer.json").read_text())["model"]["vocab"]
    with Client(address, worker_id, capacity_samples=128, settings={"reward_names": ["sorted"]}) as client:
        while not isinstance(event := client.poll(timeout=600), (Ended, Failed, type(None))):
            if isinstance(event, WeightsReady):
                model.install(pull.Pulled(event.manifest, dict(event.tensors), event.manifest["root_hash"], 0.0))
                client.commit(event, event.tensors)
            asked = [(group, i) for group in event.groups for i in group.sample_indices] if isinstance(event, Granted) else []
            playing, temperature = [], client.settings.get("temperature", 1.0)
            for group, i in asked:
                prompt = json.loads(random.Random(group.group_id).choice(prompts))["prompt"]  # the same in a group
                rollout = Rollout(f"{worker_id}-{group.group_id}-{i}-{group.attempt}", group.group_id, group.group_size, i,
                                  [ids[c] for c in prompt], [], [], [], temperature, rewards={"sorted": 0.0}, loss_mask=[],
                                  turn_offsets=[], attempt=group.attempt)
                game = play(rollout, prompt, ids, temperature)
                playing.append((rollout, game, next(game)))
            while playing:  # all conversations take a turn in one batch
                said, going = model.generate([hf_model.Request(*wish[:3], seed=wish[3]) for _, _, wish in playing]), []
                for (rollout, game, _), words in zip(playing, said):
                    try:
                        going.append((rollout, game, game.send(words)))
                    except StopIteration:
                        rollout.versions = [(model.version, 0, len(rollout.completion_ids))]
                        client.send(rollout)
                playing = going


if __name__ == "__main__":
    main(*sys.argv[1:])
