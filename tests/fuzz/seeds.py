"""Recorded payloads as a first corpus for the fuzz targets: `python -m tests.fuzz.seeds FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.golden import vllm_stream, vllm_streams

OF_EACH = 20


def main() -> None:
    """One file per payload, behind the byte that the fuzz target takes for itself."""
    folder = Path(sys.argv[1])
    for name in vllm_streams():
        for seq, payload in sorted(vllm_stream(name).payloads.items())[:OF_EACH]:
            (folder / f"{name}-{seq}").write_bytes(b"\xf7" + payload)


if __name__ == "__main__":
    main()
