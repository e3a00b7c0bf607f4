"""The hash identity of every model: made when first asked for, forgotten with the model's last instance."""

from __future__ import annotations

import os

from app.settings import Settings
from engine.hash_policy import HashPolicy
from engine.identity import ModelIdentity


class Identities:
    """One `ModelIdentity` per model, by the settings for that model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._identities: dict[str, ModelIdentity] = {}

    def of(self, model: str) -> ModelIdentity:
        """The identity that a model's vLLM instances share."""
        identity = self._identities.get(model)
        if identity is None:
            own = self._settings.hash_for(model)
            policy = HashPolicy(own.algorithm, own.seed, own.policy)
            identity = self._identities[model] = ModelIdentity(policy, os.environ.get("PYTHONHASHSEED"))
        return identity

    def enforced(self, model: str) -> bool:
        """Whether a deviating instance of this model is refused."""
        return self._settings.hash_for(model).policy == "enforce"

    def all_verified(self, model: str) -> bool:
        """Whether every stored block of this model is checked, not only roots."""
        return self._settings.hash_for(model).verify == "all"

    def forget(self, model: str) -> None:
        """The model has no instance left: the next one sets the identity anew."""
        self._identities.pop(model, None)
