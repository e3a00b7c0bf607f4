"""A request as the scheduler sees it: a prompt, how far to go on from it, and what has come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from deploy.engine.byte_pairs import END
from deploy.engine.cache import PLAIN, KVSequence, Namespace
from deploy.engine.text_output import TextOutput

FinishReason = Literal["stop", "length", "abort"]


class Sampling(NamedTuple):
    """When generation ends: after `max_tokens`, at the end token (not before `min_tokens`) or at a stop token."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_tokens: frozenset[int] = frozenset()


class Output(NamedTuple):
    """What a step has brought a request. `text` may be held back; `token` is None when an abort is all there is."""

    token: int | None
    text: str
    finish: FinishReason | None


@dataclass(eq=False)
class Request:
    """One prompt under way.

    `cached_tokens` is what its first scheduling found cached, None before that. `prefill_end` is how many tokens its
    last start had to bring in: the prompt, after a preemption its output too.
    """

    prompt: list[int]
    sampling: Sampling
    text: TextOutput
    namespace: Namespace = PLAIN
    arrived_s: float = 0.0
    output: list[int] = field(default_factory=list)
    sequence: KVSequence | None = None
    prefill_end: int = 0
    cached_tokens: int | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far, a new list."""
        return [*self.prompt, *self.output]

    @property
    def tokens_left(self) -> int:
        """How many more tokens it may sample."""
        return self.sampling.max_tokens - len(self.output)

    def sampled(self, token: int) -> Output:
        """Take a sampled token in; decides whether it was the last one (`vllm/v1/core/sched/utils.py:check_stop`)."""
        self.output.append(token)
        rules, text = self.sampling, ""
        if token == END and not rules.ignore_eos:
            self.finish = "stop"
        elif token in rules.stop_tokens and len(self.output) >= rules.min_tokens:
            self.finish, self.stop_reason = "stop", token
        else:
            text = self.text.push(token)
            if self.text.stopped_by is not None:
                self.finish, self.stop_reason = "stop", self.text.stopped_by
            elif not self.tokens_left:
                self.finish = "length"
        if self.finish is not None:
            text += self.text.rest()
        return Output(token, text, self.finish)
