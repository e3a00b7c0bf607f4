"""Starting the real servers for `compare_live`, by the scripts of a folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from deploy.engine.settings import Face
from tests.support.ports import free_ports

CACHE_TOKENS = 4096
"""Few, so that the requests evict."""

START_S = 300.0
STOP_S = 60.0


class Start(NamedTuple):
    """A server to start: its script takes NAME PORT EVENTS_PORT REPLAY_PORT and then these arguments."""

    name: str
    face: Face
    arguments: tuple[str, ...]
    settings: dict[str, str]


_VLLM = {
    "PYTHONHASHSEED": "0",
    "HASH_ALGO": "sha256_cbor",
    "BLOCK_SIZE": "16",
    "NUM_BLOCKS": str(CACHE_TOKENS // 16 + 1),
    "MAX_MODEL_LEN": "2048",
    "VLLM_SERVER_DEV_MODE": "1",  # lets the cache be emptied
}
_SGLANG = {"SGL_SIM_MODEL": "fake", "SGL_WAIT": str(int(START_S))}


def _sglang(page: int) -> Start:
    arguments = ("--max-total-tokens", str(CACHE_TOKENS), "--chunked-prefill-size", "256", "--page-size", str(page))
    return Start(f"SGLang, page {page}", "sglang", arguments, _SGLANG)


SERVERS = [
    Start("vLLM", "vllm", ("--api-server-count", "1"), {**_VLLM, "WAIT": str(int(START_S))}),
    _sglang(1),
    _sglang(16),
]


@contextmanager
def started(folder: Path, start: Start) -> Iterator[str]:
    """The URL of a server that answers; it is ended afterwards. CalledProcessError when it does not start."""
    name, script = f"compare-{os.getpid()}", folder / start.face / "run.sh"
    port, events, replay = free_ports(1), free_ports(1), free_ports(1)
    with tempfile.TemporaryDirectory(prefix="kvroute-compare-") as logs:
        environment = {**os.environ, **start.settings, "RUN_DIR": logs, "SGL_RUN": logs}
        end: list[str | Path] = [folder / "vllm" / "stop.sh", name] if start.face == "vllm" else [script, "stop", name]
        print(f"starting {start.name} ...", flush=True)
        command: list[str | Path] = [script, name, str(port), str(events), str(replay), *start.arguments]
        try:
            subprocess.run(command, env=environment, timeout=START_S, check=True, stdout=subprocess.DEVNULL)
            yield f"http://127.0.0.1:{port}"
        finally:
            subprocess.run(end, env=environment, timeout=STOP_S, check=False, stdout=subprocess.DEVNULL)
