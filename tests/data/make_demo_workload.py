#!/usr/bin/env python3
"""Writes demo_workload.jsonl: one chat session a line. The file is committed; run this only to change its shape.

Sizes are words of filler text (about 1.1 tokens each); times are seconds at the pace of four mock engines at full speed, and
the replay stretches them to the load it wants. Sessions arrive as a Poisson process; first messages are long (a document to
talk about), later ones short; every session opens with one of a few shared system prompts.
"""

import json
import math
import random
from pathlib import Path

SEED = 20261130
SESSIONS = 480
SYSTEM_PROMPTS = 8
SPAN_S = 60.0
TURNS = (3, 4, 4, 5, 5, 6, 7)
THINK_MEAN_S = 3.0


def lognormal_words(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return max(low, min(high, round(rng.lognormvariate(math.log(median), sigma))))


def main() -> None:
    rng = random.Random(SEED)
    # A few prompts serve most sessions, as a few applications make most of a fleet's traffic.
    weights = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]
    arrival_s = 0.0
    lines = []
    for session in range(SESSIONS):
        arrival_s += rng.expovariate(SESSIONS / SPAN_S)
        turns = []
        for turn in range(rng.choice(TURNS)):
            words = lognormal_words(rng, 1700, 0.6, 400, 5000) if turn == 0 else lognormal_words(rng, 220, 0.7, 40, 900)
            think_s = 0.0 if turn == 0 else 0.5 + rng.expovariate(1 / (THINK_MEAN_S - 0.5))
            answer = lognormal_words(rng, 56, 0.5, 16, 160)
            turns.append({"words": words, "answer_tokens": answer, "think_s": round(think_s, 3)})
        system = rng.choices(range(SYSTEM_PROMPTS), weights)[0]
        lines.append(json.dumps({"session": session, "system": system, "arrival_s": round(arrival_s, 4), "turns": turns}))
    Path(__file__).with_name("demo_workload.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
