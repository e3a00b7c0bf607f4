"""Whether an instance may be asked under a name: from what its engine lists (`/v1/models`), for each by itself.

vLLM answers 404 for a model name that it does not list (`entrypoints/serve/engine/serving.py`, `_check_model`). SGLang
takes any, reads the adapter behind the first colon of it (`entrypoints/openai/serving_base.py`,
`_parse_model_parameter`), else in `lora_path`, which vLLM does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from app.instance import Instance
from app.shown import shown
from engine.facts import EngineFacts
from index.worker import EngineKind

SHOWN_NAMES = 3
"""Names that are told of what an engine lists."""


class Asked(NamedTuple):
    """How a request names what it wants. `base` is None for an adapter's own name.

    `form`: `colon` is `base:adapter`, `lora_path` a base model with the adapter in that field; `plain` any other name.
    """

    name: str
    base: str | None
    lora: str | None
    form: Literal["plain", "colon", "lora_path"] = "plain"


def split_name(name: str) -> tuple[str, str | None] | None:
    """Base model and adapter of `base:adapter`, as SGLang splits it; None for a name without a colon."""
    base, colon, adapter = name.partition(":")
    return (base.strip(), adapter.strip() or None) if colon else None


def serves_other(model: str, facts: EngineFacts) -> str | None:
    """What an engine serves instead of `model`, in words. None when it serves that, or does not list anything."""
    if not facts.models or model in facts.models or model in facts.roots.values():
        return None
    return f"serves {_names(facts.models)}, not {shown(model)}"


def lists_adapter(instance: Instance, lora: str) -> bool:
    """Whether its engine lists the adapter."""
    return lora in instance.facts.adapters or lora in instance.facts.models


def lora_on(instance: Instance, asked: Asked, lora: str | None) -> str | None:
    """The adapter that a request means to one instance; `lora` is what it names besides its model."""
    if asked.form == "colon" and instance.settings.engine is EngineKind.VLLM:
        return asked.name
    return lora or asked.lora


def name_for(instance: Instance, asked: Asked, lora: str | None) -> str:
    """The model's name as the instance's engine is to be asked for it."""
    adapter, listed = lora_on(instance, asked, lora), instance.facts.models
    if adapter is not None:
        return adapter
    own = instance.settings.model
    return next((name for name in (asked.base, own) if name and name in listed), listed[0] if listed else own)


def why_not_served(instance: Instance, asked: Asked, lora: str | None, peers: Iterable[Instance]) -> str | None:
    """Why an instance does not serve what is asked for, in words; None when it does, or when its engine does not tell.

    `lora` is what the request names besides its model, `peers` are the instances that it could go to.
    """
    facts, own, vllm = instance.facts, instance.settings, instance.settings.engine is EngineKind.VLLM
    if other := serves_other(own.model, facts) or _borrowed(instance, peers):
        return other
    if asked.form == "lora_path" and vllm:
        return "vLLM does not take lora_path"
    adapter = lora_on(instance, asked, lora)
    if asked.form == "colon" and vllm:
        return None if asked.name in facts.adapters else "does not serve the adapter: vLLM takes its own name as model"
    if adapter is not None and facts.models and not lists_adapter(instance, adapter):
        return "does not serve the adapter"
    return None if asked.base is None else _why_not_named(instance, asked.base)


def _why_not_named(instance: Instance, base: str) -> str | None:
    """vLLM must list the very name; SGLang takes any, but another name than the configured one must be its own."""
    models, own = instance.facts.models, instance.settings
    if base in models or (base == own.model and (not models or own.engine is EngineKind.SGLANG)):
        return None
    return f"lists {_names(models)}, not {shown(base)}" if models else f"does not list {shown(base)}"


def _borrowed(instance: Instance, peers: Iterable[Instance]) -> str | None:
    """The engine's model has another name, and the configured one is its alias, while that is another engine's own."""
    model, roots = instance.settings.model, instance.facts.roots
    root = roots.get(model, model)
    if root == model or root not in instance.facts.models:
        return None
    own = any(one.settings.model == model and one.facts.roots.get(model) == model for one in peers)
    return f"serves {shown(root)}, under the name {shown(model)} too" if own else None


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(map(shown, names[:SHOWN_NAMES])) + more
