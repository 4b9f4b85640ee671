"""Agents of harness_clients.py: they know OpenAI's and Anthropic's clients, and nothing of the engine."""

import json
import os
import pathlib

TOOL = {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}}


def note(**what):
    path = pathlib.Path(os.environ["AGENT_NOTES"]) / f"{what['session']}.json"
    path.write_text(json.dumps(what))


def reward_of(texts):
    """The share of the letter a, which a few steps of training raise."""
    said = "".join(texts)
    return said.count("a") / max(1, len(said))


def with_openai(session):
    import openai

    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": session.record["prompt"]}]
    texts, prompt, said = [], [], []
    for turn in range(3):
        answer = client.chat.completions.create(
            model="any", messages=messages, max_tokens=6, temperature=0.1, stream=False,
            tools=[{"type": "function", "function": TOOL}], extra_body={"return_token_ids": True})
        prompt, said = answer.prompt_token_ids, answer.choices[0].token_ids
        texts.append(answer.choices[0].message.content or "")
        messages += [answer.choices[0].message, {"role": "user", "content": f"more {turn}"}]
    note(session=session.id, group=session.group, sample=session.sample, ids=prompt + said)
    return reward_of(texts)


async def with_openai_streams(session):
    import openai

    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)
    stream = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": session.record["prompt"]}], max_tokens=6, stream=True,
        stream_options={"include_usage": True}, logprobs=True)
    text, usage, logprobs, pieces = "", None, [], 0
    async for event in stream:
        for choice in event.choices:
            text += choice.delta.content or ""
            pieces += bool(choice.delta.content)
            logprobs += [token.logprob for token in choice.logprobs.content] if choice.logprobs else []
        usage = event.usage or usage
    assert len(logprobs) == usage.completion_tokens
    note(session=session.id, group=session.group, sample=session.sample, logprobs=logprobs, pieces=pieces)
    return {"share": reward_of([text]), "length": 0.0}


def with_anthropic(session):
    import anthropic

    client = anthropic.Anthropic(base_url=session.anthropic_url, api_key=session.api_key, max_retries=0)
    messages = [{"role": "user", "content": session.record["prompt"]}]
    texts = []
    for turn in range(3):
        tools = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}]
        if turn == 1:
            with client.messages.stream(model="any", max_tokens=6, system="be brief", messages=messages, tools=tools) as stream:
                pieces = [event.text for event in stream if event.type == "text"]
                answer = stream.get_final_message()
            assert "".join(pieces) == "".join(block.text for block in answer.content if block.type == "text")
        else:
            answer = client.messages.create(model="any", max_tokens=6, system="be brief", messages=messages, tools=tools)
        texts.append("".join(block.text for block in answer.content if block.type == "text"))
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": f"more {turn}"}]
    assert answer.usage.output_tokens >= 1
    note(session=session.id, group=session.group, sample=session.sample, turns=len(texts), pieces=len(pieces))
    return reward_of(texts)
