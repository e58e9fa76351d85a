#!/usr/bin/env python3
"""Writes golden logits of the bundled models, computed by transformers on the CPU.

    python3 tools/make_golden_logits.py     # reads models/, writes tests/data/golden/

Weights are the bf16 checkpoint upcast to fp32; all arithmetic is fp32 (eager attention, transformers'
torch code for the gated delta rule). The same is computed in fp64, and the largest difference
is noted in the metadata, so that a test can choose its tolerance.

Per prompt i: `i.ids` int32 [n], `i.logits` fp32 [n, 256] of every position, `i.greedy_ids`
int32 [48] generated after the prompt, `i.greedy_margin` fp32 [48] (top logit minus second).
"""
from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import torch
import transformers
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5 import modeling_qwen3_5

PROMPTS = [
    "And it came to pass",
    "The LORD is my shepherd; I shall not want.",
    "Psalms 1\n\nBlessed is the man that walketh not in the counsel of",
]
NEW = 48


class Torch64:
    """Stands for `torch` inside the model's code, with fp64 where it says fp32."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def fp64(model: Qwen3_5ForCausalLM) -> Iterator[None]:
    """Makes the whole forward pass fp64, the places where transformers fixes fp32 included."""
    narrow = torch.Tensor.float
    modeling_qwen3_5.torch, torch.Tensor.float = Torch64(), torch.Tensor.double
    model.double()
    rotary = model.model.rotary_emb
    single = rotary.inv_freq
    rotary.inv_freq = rotary.compute_default_rope_parameters(model.config)[0]
    yield
    rotary.inv_freq = single.to(torch.float32)
    modeling_qwen3_5.torch, torch.Tensor.float = torch, narrow
    model.to(torch.float32)


def goldens(model: Qwen3_5ForCausalLM, prompt: bytes) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns the tensors to save and the logits of the whole greedy text."""
    ids = torch.tensor([list(prompt)])
    logits = first = model(ids, use_cache=False).logits[0]
    margins = []
    for _ in range(NEW):
        top = logits[-1].topk(2).values
        margins.append(top[0] - top[1])
        ids = torch.cat([ids, logits[-1].argmax().view(1, 1)], 1)
        logits = model(ids, use_cache=False).logits[0]
    tensors = {"ids": ids[0, : len(prompt)].int(), "logits": first, "greedy_ids": ids[0, len(prompt) :].int(),
               "greedy_margin": torch.stack(margins)}
    return {k: v.contiguous().clone() for k, v in tensors.items()}, logits


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--out", type=Path, default=Path("tests/data/golden"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for name in ("hybrid-byte", "hybrid-byte-draft"):
        model = Qwen3_5ForCausalLM.from_pretrained(args.models / name, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        tensors: dict[str, torch.Tensor] = {}
        worst = largest = 0.0
        same = True
        for i, prompt in enumerate(PROMPTS):
            single, whole = goldens(model, prompt.encode())
            with fp64(model):
                double, whole64 = goldens(model, prompt.encode())
            assert whole.dtype == torch.float32 and whole64.dtype == torch.float64
            assert double["logits"].dtype == torch.float64 and single["logits"].dtype == torch.float32
            same &= torch.equal(single["greedy_ids"], double["greedy_ids"])
            if torch.equal(single["greedy_ids"], double["greedy_ids"]):
                worst = max(worst, (whole.double() - whole64).abs().max().item())
            worst = max(worst, (single["logits"].double() - double["logits"]).abs().max().item())
            largest = max(largest, single["logits"].abs().max().item())
            tensors |= {f"{i}.{k}": v for k, v in single.items()}
            print(name, repr((prompt.encode() + bytes(single["greedy_ids"].tolist())).decode("latin-1")),
                  f"smallest margin {single['greedy_margin'].min().item():.4f}")
        metadata = {
            "format": "pt", "model": name, "prompts": str(len(PROMPTS)), "dtype": "float32 on bf16 weights",
            "torch": torch.__version__, "transformers": transformers.__version__,
            "max_abs_fp32_minus_fp64": f"{worst:.3e}", "max_abs_logit": f"{largest:.3f}",
            "fp64_greedy_ids_equal": str(same).lower(),
        } | {f"{i}.text": p for i, p in enumerate(PROMPTS)}
        save_file(tensors, args.out / f"{name}.safetensors", metadata)
        print(name, metadata)


if __name__ == "__main__":
    main()
