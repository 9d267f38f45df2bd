#!/usr/bin/env python3
"""Writes a tiny Qwen3 model with seeded random weights and a real tokenizer beside it.

usage: make_model.py TOKENIZER_DIR OUT_DIR

41 M parameters, 82 MB, the same bytes on every run with the same torch. What it says is gibberish; what matters is that
greedy output is the same in every engine and that tokenizer, chat template and block cache are the real ones.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

SEED = 20260101
CONTEXT_TOKENS = 8192


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    highest = max(tokenizer.get_vocab().values())
    config = Qwen3Config(
        vocab_size=(highest + 64) // 64 * 64,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=512,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        rope_theta=10000.0,
        initializer_range=0.08,
    )
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(out, safe_serialization=True)
    print(f"model: {sum(p.numel() for p in model.parameters())} parameters in {out}")


if __name__ == "__main__":
    main()
