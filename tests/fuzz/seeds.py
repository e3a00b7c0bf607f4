"""Recorded payloads as a first corpus for the fuzz targets: `python -m tests.fuzz.seeds FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.golden import vllm_stream, vllm_streams

OF_EACH = 20
SGLANG = Path(__file__).parents[1] / "golden" / "sglang"


def vllm(folder: Path) -> None:
    """One file per payload, behind the byte that the fuzz target takes for itself."""
    for name in vllm_streams():
        for seq, payload in sorted(vllm_stream(name).payloads.items())[:OF_EACH]:
            (folder / f"{name}-{seq}").write_bytes(b"\xf7" + payload)


def sglang(folder: Path) -> None:
    """A few payloads per file, each after its length, behind the byte that says page size 1 and the unit."""
    for path in SGLANG.glob("event_frames_*page1*.jsonl"):
        frames = [json.loads(line)["frames"] for line in path.read_text().splitlines()]
        payloads = [payload for frame in frames if len(payload := bytes.fromhex(frame[2])) < 1000]
        for first in range(0, min(len(payloads), 3 * OF_EACH), 3):
            told = b"".join(len(payload).to_bytes(2, "big") + payload for payload in payloads[first : first + 3])
            (folder / f"{path.stem}-{first}").write_bytes(b"\x01" + told)


def main() -> None:
    for name, seeds in (("payload", vllm), ("sglang_payload", sglang)):
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        seeds(folder)


if __name__ == "__main__":
    main()
