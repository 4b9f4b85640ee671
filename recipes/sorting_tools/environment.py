"""A multi-turn environment: the model sorts digits with a tool that finds the smallest one. The dialogue: make_data.py."""
import re

EOS, MAX_TURNS, TURN_TOKENS = ";", 8, 12


def answer_of(digits: str) -> str:
    return "".join(sorted(digits))


def smallest(digits: str) -> str:  # the tool
    return f"{min(digits)}:{digits.replace(min(digits), '', 1)}>" if re.fullmatch(r"\d{1,8}", digits) else "?>"


def play(session) -> dict[str, float]:
    """Plays one conversation and returns its reward."""
    prompt = text = session.record["prompt"]
    for _ in range(MAX_TURNS):
        choice = session.complete(text, max_tokens=TURN_TOKENS)["choices"][0]
        said, ended = choice["text"], choice["finish_reason"] == "stop"
        if said.startswith("=") or not ended:
            return {"sorted": float(ended and said == f"={answer_of(prompt[:-1])}")}
        text += said + EOS + smallest(said)
    return {"sorted": 0.0}
