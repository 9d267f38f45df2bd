"""Starts real vLLM engines on the CPU, one process group each, and ends them again."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache/vllm"
RUN = HOME / "run"
MODEL = "tiny"
BLOCK_TOKENS = 32  # the CPU attention kernel takes multiples of 32 only
CONTEXT_TOKENS = 4096
CACHE_BYTES = 24 << 20  # 12,288 tokens of the tiny model: small enough that the suite's prompts evict each other
START_TIMEOUT_S = 900  # mostly Python imports; minutes on a busy machine


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def read(url: str, timeout_s: float = 10) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return answer.read()


def read_json(url: str):
    return json.loads(read(url))


class Child:
    """A process in a group of its own, so that what it starts ends with it."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]):
        RUN.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = RUN / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def require_running(self) -> None:
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{self.name} ended with {self.process.returncode}; its log says:\n{tail}")

    def wait_for(self, url: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self.require_running()
            try:
                read(url, timeout_s=2)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{self.name} did not answer {url} within {START_TIMEOUT_S} s; see {self.log}")
                time.sleep(0.5)

    def stop(self) -> None:
        for number, grace_s in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                continue
        # Workers of a group whose leader ended first.
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def start_engine(name: str) -> tuple[Child, str]:
    """Starts one engine; returns it and its base URL. It is not ready yet."""
    port = free_port()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        # With the wildcard port the engine picks a free one and tells it at /kv_event_sources.
        "endpoint": "tcp://*:0",
        "replay_endpoint": "tcp://*:0",
        "topic": "kv-events",
    }
    command = [
        # As a module: the script beside it names its interpreter by a path that a moved checkout breaks.
        str(HOME / "venv/bin/python"),
        *("-m", "vllm.entrypoints.cli.main", "serve"),
        str(HOME / "model"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", MODEL),
        *("--dtype", "bfloat16", "--enforce-eager"),
        *("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", "16"),
        *("--block-size", str(BLOCK_TOKENS), "--kv-cache-memory-bytes", str(CACHE_BYTES)),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--kv-events-config", json.dumps(events)),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    environment = os.environ | {
        "PATH": f"{HOME / 'venv/bin'}:{os.environ['PATH']}",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # One thread each: with the default, two engines spin on the same cores and starve each other.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Otherwise the first request of some kinds compiles C++ for half a minute.
        "TORCH_COMPILE_DISABLE": "1",
    }
    return Child(name, command, environment), f"http://127.0.0.1:{port}"
