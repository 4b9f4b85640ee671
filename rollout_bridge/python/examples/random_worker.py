"""A complete worker: random completions under the newest weights. Shows the whole client."""

import random
import sys

from ringside_bridge import Client, Ended, Failed, Granted, Rollout, WeightsReady

address, worker_id = sys.argv[1:3]
weights, version = {}, -1
with Client(address, worker_id, capacity_samples=8) as client:
    while True:
        event = client.poll(timeout=60)
        if isinstance(event, WeightsReady):
            weights, version = event.tensors, event.version  # install; BF16 comes as uint16
            client.commit(event, weights)
        elif isinstance(event, Granted):
            for group in event.groups:
                for sample in group.sample_indices:
                    tokens = [random.randrange(1000) for _ in range(8)]
                    client.send(Rollout(
                        rollout_id=f"{worker_id}-{group.group_id}-{sample}-{group.attempt}",
                        group_id=group.group_id, group_size=group.group_size, sample_index=sample,
                        attempt=group.attempt, prompt_ids=[group.group_id], completion_ids=tokens,
                        logprobs=[-6.9] * len(tokens), versions=[(version, 0, len(tokens))],
                        rewards={"even": float(tokens[0] % 2 == 0)}))
        elif isinstance(event, (Ended, Failed)) or event is None:
            print(event)
            break
