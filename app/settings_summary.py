"""Settings as `kvroute config-check` shows them: what they come to, every key that was set, doubts. No secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from app.addresses import address_key
from app.rank_endpoints import Given
from app.settings import HashSettings, Settings
from app.shown import shown
from store.state_url import shown_url

_SHOWN_ALWAYS = frozenset({"state", "hash", "models", "auth", "instances"})
_MAX_SEED = (1 << 32) - 1


def summary(settings: Settings) -> Table:
    """The settings but the instances: the important ones always, the keys of other sections where they were set."""
    made = Table("setting", "value", title="settings")
    made.add_row("state", Text(shown_url(settings.state.get_secret_value())))
    made.add_row("hash", Text(_identity(settings.hash)))
    for model in settings.models:
        made.add_row(Text(f"hash of {model}"), Text(_identity(settings.hash_for(model))))
    made.add_row("auth", "a token is needed" if settings.auth.token else "open")
    made.add_row("body", f"up to {settings.limits.body_bytes} bytes, {settings.limits.prompt_tokens} tokens")
    made.add_row("log", f"{settings.log.level}, {settings.log.format}")
    for name in Settings.model_fields:
        if name in settings.model_fields_set - _SHOWN_ALWAYS and (keys := _keys_set(getattr(settings, name))):
            made.add_row(name, Text(keys))
    return made


def instances_table(settings: Settings) -> Table:
    """The instances, one per row."""
    made = Table("id", "engine", "model", "url", "events", "ranks", "weight", title="instances")
    for one in settings.instances:
        ranks = str(one.rank_count or "learnt")
        events = "learnt" if one.events is None else _endpoints(one.events)
        cells = (one.id, one.engine.value, one.model, one.url, events, ranks, f"{one.weight:g}")
        made.add_row(*(Text(cell) for cell in cells))
    return made


def doubts(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """What is allowed and yet hardly meant, in sentences.

    KVROUTE_TOKEN is the token's name for gateways and docker-compose.yml. vLLM takes any text as its seed, but CPython
    starts with few: a process that has another one has set it itself.
    """
    if environ.get("KVROUTE_TOKEN") and settings.auth.token is None:
        yield "KVROUTE_TOKEN is set, but the router asks for no token: it reads auth.token, or KVROUTE_AUTH__TOKEN"
    yield from _same_urls(settings)
    seeds = {"hash.seed": settings.hash.seed}
    seeds |= {f"models.{shown(model)}.hash.seed": settings.hash_for(model).seed for model in settings.models}
    for key, seed in seeds.items():
        if not _starts_python(seed):
            yield (
                f'{key} = "{shown(seed)}": Python does not start with such a PYTHONHASHSEED;'
                f' it takes 0..{_MAX_SEED}, "random" or nothing'
            )


def _same_urls(settings: Settings) -> Iterator[str]:
    by_url: dict[str | None, list[str]] = {}
    for one in settings.instances:
        by_url.setdefault(address_key(one.url), []).append(shown(one.id))
    for ids in by_url.values():
        if len(ids) > 1:
            yield f"instances {' and '.join(ids)} have one url: one engine counts as {len(ids)}"


def _endpoints(given: Given) -> str:
    if isinstance(given, str):
        return given
    return ", ".join(given if isinstance(given, list) else (f"{rank}: {place}" for rank, place in given.items()))


def _identity(identity: HashSettings) -> str:
    return f"{identity.algorithm}, seed {identity.seed}, {identity.policy}, verify {identity.verify}"


def _keys_set(section: object) -> str:
    if not isinstance(section, BaseModel):
        return _word(section)
    keys = [key for key in type(section).model_fields if key in section.model_fields_set]
    return ", ".join(f"{key} {_word(getattr(section, key))}" for key in keys)


def _word(value: object) -> str:
    """As YAML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _starts_python(seed: str) -> bool:
    """By the rule of CPython's config_init_hash_seed: strtoul over the whole text."""
    if seed in {"auto", "none", "random", ""}:
        return True
    return re.fullmatch(r"[ \t\n\v\f\r]*\+?[0-9]+", seed) is not None and int(seed) <= _MAX_SEED
