#!/usr/bin/env python3
"""Two real vLLM engines behind the gateway: does it predict what they will find in their caches?

One request at a time, own placements switched off, so that nothing but the engines' own KV events can be the source of a
prediction. After each request the suite waits until the gateway has seen the last event that the engine published. Then, for
every request, the gateway's predicted hit must equal the engine's `cached_tokens` and its prompt length the engine's
`prompt_tokens`. Conversations have several turns, system prompts, tools and tool results, and thinking text.

usage: suite.py GATEWAY_BINARY
"""

import json
import random
import struct
import sys
import time
import urllib.request

import zmq
from engines import BLOCK_TOKENS, MODEL, ROOT, RUN, Child, free_port, read_json, start_engine

SEED = 7
CATCH_UP_TIMEOUT_S = 30

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "gate_level",
            "description": "Level of a gate in metres above its sill.",
            "parameters": {
                "type": "object",
                "properties": {
                    "gate": {"type": "string", "description": "Name of the gate, e.g. \"north\""},
                    "unit": {"type": "string", "enum": ["m", "ft"]},
                },
                "required": ["gate"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "open_gate",
            "description": "Opens a gate by some percent <slowly> & reports back.",
            "parameters": {
                "type": "object",
                "properties": {"gate": {"type": "string"}, "percent": {"type": "number"}},
                "required": ["gate", "percent"],
            },
        },
    },
]

SENTENCES = [
    "The river brings more water in spring than the basin can hold.",
    "Die Schleuse öffnet um 06:30 Uhr; bitte „leise“ sprechen.",
    "水位は昨日より三十センチ高い。",
    "Numbers: 3.14159, 1e-9, 0x7f, 1,234,567.",
    "def flow(area, speed):\n    return area * speed  # m³/s",
    "Is that so?  Two spaces,\ttab, and a trailing space. ",
    "Emoji 🐟🐟 and a family 👩‍👩‍👧‍👦 swim by.",
    "Why would anyone close every gate at once, and who would open them again?",
]


class Feed:
    """Asks an engine which event it published last."""

    def __init__(self, context: zmq.Context, engine_url: str):
        source = read_json(f"{engine_url}/kv_event_sources")["0"]
        self.socket = context.socket(zmq.DEALER)
        self.socket.connect(source["replay_endpoint"])
        self.published = -1

    def last(self) -> int:
        """Sequence number of the newest event, -1 before the first."""
        self.socket.send_multipart([b"", struct.pack(">Q", self.published + 1)])
        while True:
            if not self.socket.poll(10_000):
                raise SystemExit("the engine's replay socket does not answer")
            frames = self.socket.recv_multipart()
            sequence = struct.unpack(">q", frames[-2])[0]
            if sequence < 0:
                return self.published
            self.published = max(self.published, sequence)


class Gateway:
    """The gateway's process and what it says of itself."""

    def __init__(self, binary: str, engines: list[str]):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.admin = f"http://127.0.0.1:{free_port()}"
        self.access_log = RUN / "access.jsonl"
        self.access_log.unlink(missing_ok=True)
        workers = "".join(f'[[workers]]\nurl = "{url}"\n' for url in engines)
        configuration = RUN / "forebay.toml"
        configuration.write_text(
            f'[listen]\naddress = "{self.url[7:]}"\n[admin]\naddress = "{self.admin[7:]}"\n'
            "[routing]\nown_placements = false\nseed = 1\n"
            f'[observe]\naccess_log = "{self.access_log}"\n'
            f'[[models]]\nname = "{MODEL}"\ntokenizer = "{ROOT / ".cache/tokenizers/qwen3"}"\n{workers}'
        )
        self.child = Child("gateway", [binary, "serve", "--config", str(configuration)], {})
        self.child.wait_for(f"{self.admin}/healthz")
        self.wait_ready(len(engines))
        self.read_lines = 0

    def workers(self) -> list[dict]:
        return read_json(f"{self.admin}/workers")["workers"]

    def wait_ready(self, count: int) -> None:
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while sum(worker["state"] == "ready" for worker in self.workers()) < count:
            self.child.require_running()
            if time.monotonic() > deadline:
                raise SystemExit(f"workers are not ready: {self.workers()}")
            time.sleep(0.1)

    def wait_caught_up(self, feeds: dict[str, Feed]) -> None:
        """Until every event that the engines have published is in the index."""
        wanted = {url: feed.last() for url, feed in feeds.items()}
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while True:
            seen = {feed["worker"]: feed["last_seq"] for feed in read_json(f"{self.admin}/status")["feeds"]}
            if all(sequence < 0 or (seen.get(url) is not None and seen[url] >= sequence) for url, sequence in wanted.items()):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"the gateway has not caught up: published {wanted}, seen {seen}")
            time.sleep(0.005)

    def count_tokens(self, body: dict) -> int:
        """Prompt length by the gateway's own tokenizer and template."""
        with urllib.request.urlopen(post(f"{self.admin}/explain", body), timeout=60) as answer:
            explanation = json.load(answer)
        return explanation["prompt_tokens"] if explanation["exact"] else -1

    def record(self, request_id: str) -> dict:
        """The access-log line of a request; it is written just after the answer's last byte."""
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in self.access_log.read_text().splitlines()[self.read_lines :] if self.access_log.exists() else []:
                self.read_lines += 1
                if (record := json.loads(line))["id"] == request_id:
                    return record
            time.sleep(0.005)
        raise SystemExit(f"no access-log line for request {request_id}")


def post(url: str, body: dict) -> urllib.request.Request:
    # Escaped and plain JSON in turn: both are what clients send.
    data = json.dumps(body, ensure_ascii=len(body["messages"]) % 2 == 0).encode()
    return urllib.request.Request(url, data, {"content-type": "application/json"})


def ask(url: str, body: dict) -> tuple[str, dict, str]:
    """Sends one chat request; returns request id, usage and the answer's text."""
    with urllib.request.urlopen(post(f"{url}/v1/chat/completions", body), timeout=120) as answer:
        request_id, raw = answer.headers["x-request-id"], answer.read().decode()
    if not body.get("stream"):
        whole = json.loads(raw)
        return request_id, whole["usage"], whole["choices"][0]["message"]["content"] or ""
    usage, text = {}, ""
    for line in raw.split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return request_id, usage, text


def conversations(rng: random.Random) -> list[dict]:
    """Twelve conversations of four to seven turns, in three kinds that share their system prompts."""
    made = []
    for number in range(12):
        kind = ("plain", "tools", "thinking")[number % 3]
        system = f"You watch the gates of basin {number % 2}. " + " ".join(SENTENCES * (4 + number % 3))
        made.append({"kind": kind, "turns": rng.randint(4, 7), "messages": [{"role": "system", "content": system}]})
    return made


def extend(conversation: dict, rng: random.Random) -> dict:
    """Adds the next question (and what came before it) and returns the request body."""
    messages, kind = conversation["messages"], conversation["kind"]
    if kind == "tools" and messages[-1]["role"] == "assistant" and rng.random() < 0.7:
        arguments = json.dumps({"gate": rng.choice(["north", "süd"]), "unit": "m"}, ensure_ascii=False)
        call = {"id": f"call-{len(messages)}", "type": "function", "function": {"name": "gate_level", "arguments": arguments}}
        messages[-1]["tool_calls"] = [call]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"level": round(rng.random() * 9, 2)})})
    question = " ".join(rng.choices(SENTENCES, k=rng.randint(2, 12)))
    if rng.random() < 0.3:
        messages.append({"role": "user", "content": [{"type": "text", "text": question}, {"type": "text", "text": "And then?"}]})
    else:
        messages.append({"role": "user", "content": question})
    body = {"model": MODEL, "messages": messages, "max_tokens": rng.randint(8, 48), "temperature": 0}
    if kind == "tools":
        body |= {"tools": TOOLS} | ({"tool_choice": "auto"} if rng.random() < 0.5 else {})
    if kind == "thinking":
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    if rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def hear(conversation: dict, text: str, rng: random.Random) -> None:
    """Keeps the answer; a thinking conversation also keeps thoughts, in both forms that clients send them."""
    message = {"role": "assistant", "content": text}
    if conversation["kind"] == "thinking":
        thought = rng.choice(SENTENCES)
        if rng.random() < 0.5:
            message["content"] = f"<think>\n{thought}\n</think>\n\n{text}"
        else:
            message["reasoning_content"] = thought
    conversation["messages"].append(message)


def run(gateway: Gateway, feeds: dict[str, Feed]) -> int:
    rng = random.Random(SEED)
    waiting = conversations(rng)
    exact = lengths = hits = count = 0
    print("  #  kind      turn  stream  prompt  gateway  cached  predicted")
    while waiting:
        conversation = rng.choice(waiting)
        body = extend(conversation, rng)
        gateway.wait_caught_up(feeds)
        length = gateway.count_tokens(body)
        request_id, usage, text = ask(gateway.url, body)
        hear(conversation, text, rng)
        record = gateway.record(request_id)
        cached = usage["prompt_tokens_details"]["cached_tokens"] if usage.get("prompt_tokens_details") else 0
        predicted = record["predicted_cached_tokens"]
        turn = sum(message["role"] == "user" for message in conversation["messages"])
        same = predicted == cached and length == usage["prompt_tokens"]
        print(
            f"{count:3}  {conversation['kind']:8}  {turn:4}  {str(bool(body.get('stream'))):6}  {usage['prompt_tokens']:6}  {length:7}"
            f"  {cached:6}  {predicted:9}{'' if same else '  <-- differs'}",
            flush=True,
        )
        count += 1
        exact += predicted == cached
        lengths += length == usage["prompt_tokens"]
        hits += cached > 0
        conversation["turns"] -= 1
        if conversation["turns"] == 0:
            waiting.remove(conversation)
    print(f"RESULT vllm_exact={exact} vllm_lengths_equal={lengths} vllm_with_hit={hits} of={count} block={BLOCK_TOKENS}")
    return 0 if exact == lengths == count and count >= 50 and hits >= count // 2 else 1


def main() -> int:
    started = time.monotonic()
    children = []
    try:
        engines = [start_engine(name) for name in ("engine-a", "engine-b")]
        children += [child for child, _ in engines]
        print("starting two engines (one to three minutes)", flush=True)
        for child, url in engines:
            child.wait_for(f"{url}/health")
        print(f"engines answer after {time.monotonic() - started:.0f} s", flush=True)
        context = zmq.Context()
        urls = [url for _, url in engines]
        feeds = {url: Feed(context, url) for url in urls}
        gateway = Gateway(sys.argv[1], urls)
        children.append(gateway.child)
        return run(gateway, feeds)
    finally:
        for child in reversed(children):
            child.stop()


if __name__ == "__main__":
    sys.exit(main())
