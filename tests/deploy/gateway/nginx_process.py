"""The real nginx with the gateway's own files, its host names replaced by loopback addresses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.ports import free_port
from tests.support.service import wait_until

GATEWAY = Path(__file__).parents[3] / "deploy" / "gateway"
NGINX = os.environ.get("TEST_NGINX") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
"""The program; another one, to try another version, with TEST_NGINX and TEST_NGINX_MODULE."""
DEBIAN_MODULE = "/usr/lib/nginx/modules/ngx_http_js_module.so"
MODULE = os.environ.get("TEST_NGINX_MODULE", DEBIAN_MODULE)
IS_INSTALLED = NGINX is not None and Path(MODULE).exists()
INSTALL = "needs nginx with njs: apt-get install nginx libnginx-mod-http-js"
PATIENT = {
    "proxy_connect_timeout 60ms": "proxy_connect_timeout 5s",
    "proxy_read_timeout 150ms": "proxy_read_timeout 5s",
    "proxy_read_timeout 100ms": "proxy_read_timeout 5s",
    "proxy_next_upstream_timeout 250ms": "proxy_next_upstream_timeout 10s",
}
"""Where the router's time limits are not what is tested: a loaded machine must not decide."""
START_S = 10.0


class NginxProcess:
    """`with NginxProcess({"router-0:8900": "127.0.0.1:1234", ...}) as gateway`; `http` is a client for it.

    `changes` are further replacements in nginx.conf; `source` is the folder of the gateway's files, `alive` a path that
    answers 200 once it is up.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        changes: Mapping[str, str] = PATIENT,
        environment: Mapping[str, str] | None = None,
        source: Path = GATEWAY,
        alive: str = "/healthz",
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = tempfile.TemporaryDirectory(prefix="kvroute-nginx-")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o755)  # the workers are another user
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.url, timeout=20.0, trust_env=False)
        self._alive = alive
        self._write(source, {**addresses, **changes})

    def __enter__(self) -> Self:
        command = [*self._command(), "-g", "daemon off;"]
        own = {name: text for name, text in os.environ.items() if not name.startswith("KVROUTE_")}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=own | self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._answers, START_S, self.log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                for worker in self.workers():
                    os.kill(worker, signal.SIGKILL)
                self._process.kill()
                self._process.wait(10)
        self._folder.cleanup()

    def check(self) -> subprocess.CompletedProcess[str]:
        """`nginx -t` of the files as this process runs them."""
        return subprocess.run([*self._command(), "-t"], capture_output=True, text=True, timeout=20, check=False)

    def workers(self) -> list[int]:
        """The process ids of the worker processes."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]

    def log(self) -> str:
        """Everything it wrote: the access log and the errors."""
        return (self.folder / "log").read_text(errors="replace")

    def requests(self) -> list[dict[str, Any]]:
        """The access log's entries."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def _command(self) -> list[str]:
        assert NGINX is not None
        return [NGINX, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    def _write(self, source: Path, changes: Mapping[str, str]) -> None:
        text = (source / "nginx.conf").read_text()
        for before, after in {DEBIAN_MODULE: MODULE, **changes}.items():
            assert before in text, before
            text = text.replace(before, after)
        text = text.replace("listen 8080", f"listen 127.0.0.1:{self.port}").replace("/tmp/", f"{self.folder}/")
        (self.folder / "nginx.conf").write_text(text)
        for script in source.glob("*.js"):
            shutil.copy(script, self.folder)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            return self.http.get(self._alive).status_code == 200
        except httpx.TransportError:
            return False
