#!/usr/bin/env python3
"""A client in the shape of `vllm bench serve`: its requests, its way of reading streams, its success and its counts.

usage: bench_serve.py BASE_URL MODEL [--requests N] [--concurrency N] [--tokens N]

Asks /v1/models first, then sends the same number of streams to the completions and to the chat route and prints one JSON
line for each. Exits 1 when a request fails or an answer does not have the tokens that were asked for.
"""

import argparse
import asyncio
import json
import os
import sys
import time

import httpx2 as httpx


def payload(route: str, model: str, prompt: str, tokens: int) -> dict:
    common = {
        "model": model,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    if route == "/v1/completions":
        return common | {"prompt": prompt, "repetition_penalty": 1.0, "max_tokens": tokens, "logprobs": None}
    content = [{"type": "text", "text": prompt}]
    return common | {"messages": [{"role": "user", "content": content}], "max_completion_tokens": tokens}


class Frames:
    """Splits at blank lines, whatever the transport's chunks are."""

    def __init__(self):
        self.rest = ""

    def feed(self, chunk: bytes) -> list[str]:
        self.rest += chunk.decode("utf-8")
        *whole, self.rest = self.rest.split("\n\n")
        return [frame.strip() for frame in whole if frame.strip()]


async def ask(client: httpx.AsyncClient, route: str, model: str, prompt: str, tokens: int, number: int) -> dict:
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}", "x-request-id": f"bench-{number}"}
    out = {"success": False, "text": "", "output_tokens": 0, "ttft": 0.0, "itl": [], "error": ""}
    start = last = time.perf_counter()
    first, frames = True, Frames()
    async with client.stream("POST", route, json=payload(route, model, prompt, tokens), headers=headers) as response:
        if response.status_code != 200:
            out["error"] = f"{response.status_code} {(await response.aread()).decode()}"
            return out
        async for chunk in response.aiter_bytes():
            for frame in frames.feed(chunk):
                # Comments keep connections alive.
                if frame.startswith(":"):
                    continue
                data = frame.removeprefix("data: ")
                if data == "[DONE]":
                    continue
                event = json.loads(data)
                if choices := event.get("choices"):
                    now = time.perf_counter()
                    text = choices[0].get("text") or (choices[0].get("delta") or {}).get("content")
                    if first:
                        first, out["ttft"] = False, now - start
                    else:
                        out["itl"].append(now - last)
                    last = now
                    out["text"] += text or ""
                elif usage := event.get("usage"):
                    out["output_tokens"] = usage["completion_tokens"]
    out["success"] = not first
    out["error"] = "" if out["success"] else "never received a valid chunk to calculate TTFT"
    return out


async def bench(args: argparse.Namespace) -> int:
    async with httpx.AsyncClient(base_url=args.base, timeout=120) as client:
        models = (await client.get("/v1/models")).json()["data"]
        if args.model not in [model["id"] for model in models]:
            print(f"{args.model} is not served: {models}", file=sys.stderr)
            return 1
        failed = 0
        for route in ["/v1/completions", "/v1/chat/completions"]:
            room = asyncio.Semaphore(args.concurrency)

            async def one(number: int) -> dict:
                async with room:
                    prompt = f"{number % 4} rivers meet. " * 40 + str(number)
                    return await ask(client, route, args.model, prompt, args.tokens, number)

            start = time.perf_counter()
            outcomes = await asyncio.gather(*(one(number) for number in range(args.requests)))
            whole = [out for out in outcomes if out["success"] and out["output_tokens"] == args.tokens and out["text"]]
            failed += len(outcomes) - len(whole)
            line = {
                "route": route,
                "completed": len(whole),
                "failed": len(outcomes) - len(whole),
                "total_output_tokens": sum(out["output_tokens"] for out in outcomes),
                "duration_s": round(time.perf_counter() - start, 3),
                "mean_ttft_ms": round(1e3 * sum(out["ttft"] for out in outcomes) / len(outcomes), 3),
                "errors": [out["error"] for out in outcomes if out["error"]][:3],
            }
            print(json.dumps(line))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    sys.exit(asyncio.run(bench(parser.parse_args())))
