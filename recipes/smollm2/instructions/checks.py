"""The reward: the share of an instruction's checks that a completion passes. 1: it does all that was asked.

Each kind has checks of its form; besides, a completion must end by itself and be about its topic.
"""
import json
import re


def words_of(text: str) -> list[str]:
    return re.findall(r"[A-Za-z0-9'’-]+", text)


def is_sentence(text: str) -> bool:
    """One line of at least four different words."""
    return "\n" not in text and len({word.lower() for word in words_of(text)}) >= 4


def checks_of_json(text: str, topic: str) -> list[bool]:
    try:
        value = json.loads(text)
    except ValueError:
        return [text.startswith("{"), text.endswith("}"), False, False, False]
    has_keys = isinstance(value, dict) and set(value) == {"name", "use"}
    has_texts = has_keys and all(isinstance(part, str) and part.strip() for part in value.values())
    return [True, True, True, has_keys, has_texts]


def checks_of_list(text: str, topic: str) -> list[bool]:
    items = [item.strip().rstrip(".").lower() for item in text.split(",")]
    return [len(items) == 3, "\n" not in text, len(set(items)) == len(items) and all(items),
            all(len(words_of(item)) in (1, 2, 3) for item in items)]


def checks_of(kind: str, text: str, topic: str, count: int) -> list[bool]:
    about = topic in text.lower()
    if kind == "words":
        off = abs(len(words_of(text)) - count)
        return [off == 0, off <= 1, off <= 3, is_sentence(text), text.endswith("."), about]
    if kind == "capitals":
        return [text.upper() == text, is_sentence(text), len(words_of(text)) <= 15, about]
    if kind == "question":
        return [text.endswith("?"), text.count("?") == 1, is_sentence(text), len(words_of(text)) <= 12, about]
    if kind == "json":
        return [*checks_of_json(text, topic), about]
    if kind == "list":
        return checks_of_list(text, topic)
    raise ValueError(f"kind {kind!r}, expected words, capitals, question, json or list")


def checked(completions, kind, topic, count, truncated):
    scores = []
    for i, text in enumerate(completions):
        passed = [*checks_of(kind[i], text.strip(), topic[i], int(count[i])), not truncated[i]]
        scores.append(sum(passed) / len(passed))
    return scores
