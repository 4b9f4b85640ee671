"""rollout.environment textarena(GAME): a game of the package textarena for one player, by its id (GuessTheNumber-v0).

A record names its game by a seed. The model is told what the game says since its last move. The reward is the game's, at its
end. A game that the recipe's max_turns cuts short has none.

Options:
    game           {...}: arguments of the game, as of textarena.make()
    system_prompt  a text, or "" for none
    brackets       true = a move without [ and ] gets them, as the package's own wrapper does
"""

import threading

import textarena

# textarena draws from the generator of the module random, which all threads share.
drawing = threading.Lock()


class Environment:
    def __init__(self, game_id, game=None, system_prompt="", brackets=True):
        # The game without wrappers: they repeat the conversation that the messages hold already.
        self._game = textarena.make(game_id if game_id.endswith("-raw") else f"{game_id}-raw", **(game or {}))
        self._game_id, self._system_prompt, self._brackets = game_id, system_prompt, brackets

    def records(self, count, seed):
        for index in range(count):
            yield {"prompt": f"{self._game_id} {seed + index}", "seed": seed + index}

    def _news(self):
        _, observation = self._game.get_observation()
        own = textarena.ObservationType.PLAYER_ACTION
        return "\n".join(text for _, text, kind in observation if kind != own)

    def reset(self, record):
        with drawing:
            self._game.reset(num_players=1, seed=record["seed"])
        system = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
        return [*system, {"role": "user", "content": self._news()}]

    def step(self, message):
        move = message.get("content") or ""
        if self._brackets and "[" not in move and "]" not in move:
            move = f"[{move.strip()}]"
        with drawing:
            done, _ = self._game.step(action=move)
        if not done:
            return [{"role": "user", "content": self._news()}], 0.0, False
        rewards, _ = self._game.close()
        return [], float(rewards[0]), True
