"""A complete worker: random completions under the newest weights. Shows the whole client.

For a trainer whose recipe says `rollout.reward: worker`, since the reward is this worker's own, and leaves `data.train`
empty, since so are the prompts. Any other trainer refuses it.
"""

import math
import random
import sys

from ringside_bridge import Client, Disconnected, Ended, Failed, Granted, Rollout, RolloutRejected, WeightsReady

address, worker_id = sys.argv[1:3]
weights, version = {}, -1
with Client(address, worker_id, capacity_samples=8, settings={"reward_names": ["even"]}) as client:
    while True:
        event = client.poll(timeout=60)
        if isinstance(event, WeightsReady):
            weights, version = event.tensors, event.version  # install; BF16 comes as uint16
            client.commit(event, weights)
        elif isinstance(event, Granted):
            vocab = client.settings.get("vocab_size", 1000)  # token ids are below it
            for group in event.groups:
                for sample in group.sample_indices:
                    tokens = [random.randrange(vocab) for _ in range(8)]
                    client.send(Rollout(
                        rollout_id=f"{worker_id}-{group.group_id}-{sample}-{group.attempt}",
                        group_id=group.group_id, group_size=group.group_size, sample_index=sample,
                        attempt=group.attempt, prompt_ids=[group.group_id % vocab], completion_ids=tokens,
                        logprobs=[-math.log(vocab)] * len(tokens), versions=[(version, 0, len(tokens))],
                        temperature=client.settings.get("temperature", 1.0),
                        rewards={"even": float(tokens[0] % 2 == 0)}))
        elif isinstance(event, (Disconnected, RolloutRejected)):
            print(event, file=sys.stderr)
        elif isinstance(event, (Ended, Failed)) or event is None:
            print(event)
            break
