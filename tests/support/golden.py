"""The recorded streams and their oracles, in one form: payloads by sequence number, rows to ask after each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

GOLDEN = Path(__file__).parent.parent / "golden"
VLLM = GOLDEN / "vllm" / "streams"
SGLANG = GOLDEN / "sglang"


class Row(NamedTuple):
    """One question after a batch (-1: before any). `fields` are those of `POST /route` beside the tokens.

    `expected` has what must be equal in the answer; `adapter_path` is set when the asked adapter lies there.
    """

    after_seq: int
    name: str
    tokens: list[int]
    fields: dict[str, Any]
    expected: dict[str, int]
    adapter_path: str | None = None


class Stream(NamedTuple):
    """A recorded stream: payloads by sequence number, the oracle's rows, instance settings that it needs."""

    name: str
    engine: str
    payloads: dict[int, bytes]
    rows: list[Row]
    settings: dict[str, Any]
    topic: str


def vllm_streams() -> list[str]:
    """Names of the vLLM streams that can be followed exactly."""
    return sorted(path.name for path in VLLM.iterdir() if path.name != "report_full")


def vllm_stream(name: str) -> Stream:
    """A vLLM stream; expected are the engine's hits."""
    meta = json.loads((VLLM / name / "meta.json").read_text())
    settings = {"speculative": "eagle"} if meta["use_eagle"] else {}
    if meta.get("prefix_match_unit"):
        settings["prefix_match_unit"] = meta["prefix_match_unit"]
    rows = [_vllm_row(row, meta["probes"][row["probe"]]) for row in _lines(VLLM / name / "oracle.jsonl")]
    return Stream(name, "vllm", _payloads(VLLM / name / "event_frames.jsonl"), rows, settings, meta["topic"])


def sglang_stream(name: str) -> Stream:
    """An SGLang stream; expected are whole-prompt match and reuse, or the tokens per tier."""
    header, *answers = _lines(SGLANG / f"oracle_{name}.jsonl")
    asked = _fuzz_rows(header, answers) if "segments" in header else _probe_rows(header, answers)
    topic = header["kv_events_config"].get("topic", "")
    return Stream(name, "sglang", _payloads(SGLANG / f"event_frames_{name}.jsonl"), asked, {}, topic)


def _vllm_row(row: dict[str, Any], probe: dict[str, Any]) -> Row:
    extras, fields = probe["extras"], dict[str, Any]()
    if "lora" in extras:
        fields["lora"] = extras["lora"]["name"]
    if "cache_salt" in extras:
        fields["cache_salt"] = extras["cache_salt"]
    if "mm" in extras:
        fields["mm_items"] = [{"hash": name, "offset": at, "length": size} for name, at, size in extras["mm"]]
    path = extras["lora"]["path"] if "lora" in extras else None
    return Row(row["after_seq"], row["probe"], probe["tokens"], fields, {"reusable_tokens": row["hit_tokens"]}, path)


def _probe_rows(header: dict[str, Any], answers: list[dict[str, Any]]) -> list[Row]:
    probes = {probe["id"]: probe for probe in header["probes"]}
    tiers = "host" in header["answers"]
    rows = []
    for answer in answers:
        for name, (first, second) in answer["match"].items():
            probe = probes[name]
            expected = {"gpu": first, "cpu": second} if tiers else {"matched_tokens": first, "reusable_tokens": second}
            rows.append(Row(answer["after_seq"], name, probe["tokens"], _namespace(probe), expected))
    return rows


def _namespace(probe: dict[str, Any]) -> dict[str, Any]:
    """SGLang's extra_key on the wire is the request's with the adapter's id behind it."""
    fields = {key: probe[key] for key in ("cache_salt", "extra_key") if probe.get(key) is not None}
    if probe.get("lora_id"):
        fields["extra_key"] = fields.get("extra_key", "") + probe["lora_id"]
    return fields


def _fuzz_rows(header: dict[str, Any], answers: list[dict[str, Any]]) -> list[Row]:
    rows = []
    for answer in answers:
        for parts, salt, matched, reused in answer["match"]:
            tokens = [token for segment, length in parts for token in header["segments"][segment][:length]]
            fields = {} if salt is None else {"cache_salt": salt}
            expected = {"matched_tokens": matched, "reusable_tokens": reused}
            rows.append(Row(answer["after_seq"], str(parts), tokens, fields, expected))
    return rows


def _payloads(file: Path) -> dict[int, bytes]:
    return {frame["seq"]: bytes.fromhex(frame["frames"][2]) for frame in _lines(file)}


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]
