"""The bodies of requests. Fields that change nothing here (temperature, penalties, ...) are taken and ignored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Token = Annotated[int, Field(ge=0, lt=1 << 32)]
Tokens = Annotated[list[Token], Field(min_length=1)]
Prompts = str | Tokens | list[str] | list[Tokens]
Texts = str | list[str] | None


class Body(BaseModel):
    """What all have in common. A model's name is needed where several are served."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None


class StreamOptions(BaseModel):
    """When a stream tells usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(Body):
    """What completions and chats have in common."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop: Texts = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    return_token_ids: bool = False
    cache_salt: str | None = None
    extra_key: str | None = None
    lora_path: str | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Prompts
    echo: bool = False
    logprobs: int | None = None


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    add_generation_prompt: bool = True
    logprobs: bool | None = None


class TokenizeBody(Body):
    """`POST /tokenize`: of a prompt or a chat."""

    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    tokens: list[Token]
    skip_special_tokens: bool | None = None


class SamplingParams(BaseModel):
    """`sampling_params` of SGLang's `POST /generate`."""

    max_new_tokens: Annotated[int, Field(ge=0)] | None = 128
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop: Texts = None
    stop_token_ids: list[int] | None = None
    no_stop_trim: bool = False
    n: int = 1


class GenerateBody(Body):
    """SGLang's `POST /generate`."""

    text: str | list[str] | None = None
    input_ids: Tokens | list[Tokens] | None = None
    sampling_params: SamplingParams | None = None
    rid: str | None = None
    stream: bool = False
    cache_salt: str | list[str | None] | None = None
    extra_key: str | list[str | None] | None = None
    lora_path: str | list[str | None] | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
