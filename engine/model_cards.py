"""`/v1/models` of either engine: which cards are base models and which are LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from engine.loose_json import items, mapping, text


class ModelCards(NamedTuple):
    """Names of the base models served, adapter names with their paths, and the paths of the base models."""

    models: tuple[str, ...]
    adapters: dict[str, str]
    roots: tuple[str, ...] = ()


def model_cards(answer: Mapping[str, object]) -> ModelCards:
    """Sort the cards of a model list.

    An adapter's card has a parent (vLLM `openai/models/serving.py`, SGLang `http_server.available_models`) and its path
    as root; a base model's root may differ from its name as well (`--served-model-name`), so root alone says nothing
    unless max_model_len is missing too.
    """
    models: list[str] = []
    adapters: dict[str, str] = {}
    roots: list[str] = []
    for card in map(mapping, items(answer.get("data"))):
        name, root = text(card.get("id")), text(card.get("root"))
        if name is None:
            continue
        unbased = card.get("max_model_len") is None and root is not None and root != name
        if text(card.get("parent")) or unbased:
            if root is not None:
                adapters[name] = root
        else:
            models.append(name)
            roots += [root] if root is not None and root not in roots else []
    return ModelCards(tuple(models), adapters, tuple(roots))
