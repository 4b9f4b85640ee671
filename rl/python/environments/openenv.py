"""rollout.environment openenv(ADDRESS): an environment of an OpenEnv server (package openenv-core), over its WebSocket.

The observation of reset() begins the conversation. An action with one required text gets the model's message as that text. Any
other action is a tool, whose arguments are the action's fields: a message that calls no tool ends the sample. Rewards of the
steps are summed. A record's seed and its other fields are the arguments of reset(). A server must allow as many sessions as
rollout.harness_options.concurrency.

Options:
    system_prompt      a text, or "" for none
    observation_field  the field of an observation that the model reads; "" = the only text in it, or else all as JSON
    timeout_s          of a step
"""

import functools
import json
import urllib.request

from openenv.core.generic_client import GenericEnvClient

HIDDEN = ("done", "reward", "metadata")


@functools.cache
def schema_of(address):
    try:
        with urllib.request.urlopen(f"{address}/schema", timeout=30) as answer:
            return json.load(answer)["action"]
    except (OSError, ValueError, KeyError) as error:
        raise ConnectionError(f"{address}/schema gives no schema of actions, expected an OpenEnv server: {error}") from None


class Environment:
    def __init__(self, address, system_prompt="", observation_field="", timeout_s=60.0):
        self._address = address.rstrip("/")
        self._client = GenericEnvClient(base_url=self._address, message_timeout_s=timeout_s)
        self._system_prompt, self._observation_field = system_prompt, observation_field
        self._open_action(schema_of(self._address))

    def _open_action(self, schema):
        fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
        required = [name for name in schema.get("required", []) if name != "metadata"]
        only_text = len(required) == 1 and fields[required[0]].get("type") == "string"
        self._text_field = required[0] if only_text else None
        parameters = {"type": "object", "properties": fields, "required": required}
        if "$defs" in schema:
            parameters["$defs"] = schema["$defs"]
        self.tools = None if only_text else [{"type": "function", "function": {
            "name": "act", "description": schema.get("description", "Acts in the environment."), "parameters": parameters}}]

    def records(self, count, seed):
        for index in range(count):
            yield {"prompt": f"{self._address} {seed + index}", "seed": seed + index}

    def _text(self, observation):
        if self._observation_field:
            return str(observation[self._observation_field])
        shown = {name: value for name, value in observation.items() if name not in HIDDEN}
        texts = [value for value in shown.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 else json.dumps(shown)

    async def reset(self, record):
        arguments = {name: value for name, value in record.items() if name != "prompt"}
        begun = await self._client.reset(**arguments)
        system = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
        return [*system, {"role": "user", "content": self._text(begun.observation)}]

    async def step(self, message):
        if self._text_field:
            result = await self._client.step({self._text_field: message.get("content") or ""})
            return [{"role": "user", "content": self._text(result.observation)}], result.reward, result.done
        said, total, done = [], 0.0, not message.get("tool_calls")
        for call in message.get("tool_calls") or []:
            if done:
                break
            try:
                action = json.loads(call["function"]["arguments"])
            except ValueError as error:
                said.append({"role": "tool", "tool_call_id": call["id"], "content": f"the arguments are no JSON: {error}"})
                continue
            result = await self._client.step(action)
            said.append({"role": "tool", "tool_call_id": call["id"], "content": self._text(result.observation)})
            total, done = total + (result.reward or 0.0), result.done
        return said, total, done

    async def close(self):
        await self._client.disconnect()
