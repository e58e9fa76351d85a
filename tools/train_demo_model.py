#!/usr/bin/env python3
"""Trains the two byte-level models bundled with ringfold on the King James Bible.

    python3 tools/train_demo_model.py --prepare kjv.txt            # text from Debian's bible-kjv
    python3 tools/train_demo_model.py --text kjv.txt --out models  # needs one CUDA GPU

Both models are plain `Qwen3_5ForCausalLM` checkpoints (bf16). `hybrid-byte` is trained on the
text; `hybrid-byte-draft` is distilled from it. A token is a byte; byte 0 ends a chapter (EOS).
The book of Ezekiel is held out: its first half picks the checkpoint, its second half is the test.
"""
from __future__ import annotations

import argparse
import copy
import json
import math
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

EOS = 0
HELD_OUT_BOOK = "Ezekiel"
CHUNK = 64

BASE: dict[str, Any] = dict(
    vocab_size=256, num_hidden_layers=4, head_dim=64, linear_key_head_dim=64, linear_value_head_dim=64,
    linear_conv_kernel_dim=4, max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=True,
    bos_token_id=None, eos_token_id=EOS, pad_token_id=None,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
)
MAIN = BASE | dict(
    num_hidden_layers=8, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
    linear_num_key_heads=2, linear_num_value_heads=4,
)
DRAFT = BASE | dict(
    hidden_size=96, intermediate_size=224, num_attention_heads=2, num_key_value_heads=1,
    linear_num_key_heads=1, linear_num_value_heads=2,
)


# ---------------------------------------------------------------- text


def prepare(out: Path, bible: str, lib: str) -> None:
    """Writes the text: per chapter 'Genesis 1', a blank line, one verse a line, then byte 0."""

    def ask(*args: str) -> str:
        done = subprocess.run([bible, "-p", lib, *args], check=True, capture_output=True, text=True)
        return done.stdout

    names: dict[str, str] = {}
    chapters: list[str] = []
    previous = ""
    for line in ask("-f", "Gen1:1-Rev22:21").splitlines():
        match = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line)
        if not match:
            raise SystemExit(f"unexpected line: {line!r}")
        book, chapter, _, verse = match.groups()
        if book not in names:  # the pretty-printed form starts with 'Genesis 1'
            names[book] = ask(f"{book}1:1").split("\n\n")[0].strip().removesuffix(" 1")
        if f"{book} {chapter}" != previous:
            previous = f"{book} {chapter}"
            chapters.append(f"{names[book]} {chapter}\n\n")
        chapters[-1] += " ".join(verse.split()) + "\n"
    data = "".join(c + "\0" for c in chapters).encode("ascii")
    out.write_bytes(data)
    print(f"{out}: {len(names)} books, {len(chapters)} chapters, {len(data)} bytes")


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Returns (training, validation, test) bytes."""
    chapters = [c + b"\0" for c in data.split(b"\0") if c]
    held = [i for i, c in enumerate(chapters) if c.startswith(HELD_OUT_BOOK.encode())]
    first, last, middle = held[0], held[-1] + 1, held[len(held) // 2]
    train = chapters[:first] + chapters[last:]
    return b"".join(train), b"".join(chapters[first:middle]), b"".join(chapters[middle:last])


# ---------------------------------------------------------------- model


def chunk_delta_rule(query, key, value, g, beta, use_qk_l2norm_in_kernel=True, **_):
    """The gated delta rule in chunks, in fp32: transformers' formula with one solve per layer."""
    import torch
    import torch.nn.functional as F

    dtype, (batch, length, heads, dv), dk = query.dtype, value.shape, key.shape[-1]
    with torch.autocast(query.device.type, enabled=False):
        q, k, v, b, g = (x.float().transpose(1, 2) for x in (query, key, value, beta, g))
        q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * dk**-0.5
        k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
        if q.shape[1] != heads:
            q, k = (x.repeat_interleave(heads // q.shape[1], dim=1) for x in (q, k))
        pad = -length % CHUNK
        if pad:
            q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
            b, g = (F.pad(x, (0, pad)) for x in (b, g))
        n = (length + pad) // CHUNK
        q, k, v = (x.reshape(batch, heads, n, CHUNK, -1) for x in (q, k, v))
        b, g = (x.reshape(batch, heads, n, CHUNK) for x in (b, g))
        g = g.cumsum(-1)
        upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
        decay = (g[..., :, None] - g[..., None, :]).masked_fill(upper, float("-inf")).exp()
        kb = k * b[..., None]
        system = (kb @ k.transpose(-1, -2)) * decay
        rhs = torch.cat([v * b[..., None], kb * g.exp()[..., None]], -1)
        solved = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True)
        new_v, k_decayed = solved.split([dv, dk], -1)
        intra = (q @ k.transpose(-1, -2)) * decay
        q = q * g.exp()[..., None]
        k = k * (g[..., -1:] - g).exp()[..., None]
        last = g[..., -1].exp()[..., None, None]
        state = q.new_zeros(batch, heads, dk, dv)
        out = []
        for i in range(n):
            u = new_v[:, :, i] - k_decayed[:, :, i] @ state
            out.append(q[:, :, i] @ state + intra[:, :, i] @ u)
            state = state * last[:, :, i] + k[:, :, i].transpose(-1, -2) @ u
        o = torch.stack(out, 2).reshape(batch, heads, -1, dv)[:, :, :length]
    return o.transpose(1, 2).to(dtype), None


def causal_conv(hidden_states, weight, bias=None, activation=None, **_):
    """The depthwise causal convolution as shifted sums, which compile into one pass."""
    import torch.nn.functional as F

    length, taps = hidden_states.shape[-1], weight.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    out = sum(padded[..., j : j + length] * weight[:, j, None] for j in range(taps))
    return F.silu(out).to(hidden_states.dtype)


def build(spec: dict[str, Any], dropout: float, seed: int):
    """A freshly initialised fp32 model on the GPU; dropout acts in training only, through hooks."""
    import torch
    import torch.nn.functional as F
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(**spec)
    config._attn_implementation = "sdpa"
    model = Qwen3_5ForCausalLM(config)
    depth = 2 * config.num_hidden_layers
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                module.weight.normal_(std=0.8 * module.in_features**-0.5)
                if name.endswith(("out_proj", "o_proj", "down_proj")):
                    module.weight.mul_(depth**-0.5)
                if name.endswith("in_proj_a"):
                    module.weight.mul_(0.1)
            if name.endswith("linear_attn"):
                # decay rates as in Mamba and GatedDeltaNet: time steps log-uniform in [0.001, 0.1]
                dt = torch.exp(torch.rand_like(module.dt_bias) * math.log(100) + math.log(1e-3))
                module.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
                module.A_log.copy_(torch.empty_like(module.A_log).uniform_(1, 16).log())
                module.conv1d.weight.uniform_(-0.5, 0.5)
        model.model.embed_tokens.weight.normal_(std=0.05)

    def drop(module, _, output):
        return F.dropout(output, dropout, module.training)

    if dropout:
        for name, module in model.named_modules():
            if name.endswith(("out_proj", "o_proj", "down_proj", "embed_tokens")):
                module.register_forward_hook(drop)
    return model.cuda()


def logits_of(model, ids):
    """Logits for whole sequences, straight through the layers (no cache, no masks but causal)."""
    import torch

    core = model.model
    x = core.embed_tokens(ids)
    position = torch.arange(ids.shape[1], device=ids.device).view(1, 1, -1).expand(3, ids.shape[0], -1)
    rotary = core.rotary_emb(x, position)
    for layer in core.layers:
        x = layer(x, position_embeddings=rotary, attention_mask=None, position_ids=None)
    return model.lm_head(core.norm(x))


@contextmanager
def evaluating(model) -> Iterator[None]:
    """Evaluation mode, uncompiled, without gradients, matrix products in full fp32."""
    import torch

    compiled = [layer._compiled_call_impl for layer in model.model.layers]
    for layer in model.model.layers:
        layer._compiled_call_impl = None
    training = model.training
    model.eval()
    torch.set_float32_matmul_precision("highest")
    with torch.no_grad():
        yield
    torch.set_float32_matmul_precision("high")
    model.train(training)
    for layer, call in zip(model.model.layers, compiled):
        layer._compiled_call_impl = call


# ---------------------------------------------------------------- measuring


def windows(data, length: int, overlap: int):
    """Windows [n, length+1] over data, each beginning `overlap` bytes before the last one ends."""
    import torch

    starts = range(0, data.numel() - length - 1, length - overlap)
    return torch.stack([data[s : s + length + 1] for s in starts]).long()


def bits_per_byte(model, data, length: int = 1024, overlap: int = 512) -> float:
    """Mean bits per byte over data, every scored byte with at least `overlap` bytes of context."""
    import torch.nn.functional as F

    total, count = 0.0, 0
    with evaluating(model):
        for part in windows(data, length, overlap).split(32):
            logits = logits_of(model, part[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none")
            loss = loss.view(part.shape[0], -1)[:, overlap:]
            total, count = total + loss.sum().item(), count + loss.numel()
    return total / count / math.log(2)


def generate(model, ids, new: int, sample: bool, seed: int = 0):
    """Continuations by transformers' own generate; EOS does not stop it."""
    import torch

    torch.manual_seed(seed)
    options = dict(do_sample=True, temperature=0.8, top_k=0) if sample else dict(do_sample=False)
    with evaluating(model):
        model.generation_config.eos_token_id = None
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **options)


def agreement(main, draft, data, drafts: int = 4, new: int = 256) -> dict[str, float]:
    """How well the draft predicts the main model, on held-out text and on the main model's output."""
    import torch

    same = overlap = count = 0.0
    with evaluating(main), evaluating(draft):
        for part in windows(data, 1024, 512).split(32):
            p, q = (logits_of(m, part[:, :-1])[:, 512:].float() for m in (main, draft))
            same += (p.argmax(-1) == q.argmax(-1)).sum().item()
            overlap += torch.minimum(p.softmax(-1), q.softmax(-1)).sum().item()
            count += p.shape[0] * p.shape[1]
    out = {"greedy_agreement_heldout": same / count, "sampling_acceptance_heldout": overlap / count}
    prompts = windows(data, 127, 0)
    prompts = prompts[:: max(1, len(prompts) // 64)][:64]
    for name, sample in (("greedy", False), ("temperature_0.8", True)):
        text = generate(main, prompts, new, sample)
        with evaluating(draft):
            # drafting one token from a matching prefix equals teacher forcing, so one pass is enough
            guess = logits_of(draft, text[:, :-1]).argmax(-1)
        match = (guess == text[:, 1:])[:, prompts.shape[1] - 1 :].tolist()
        accepted = steps = 0
        for row in match:
            t = 0
            while t + drafts < len(row):
                run = next((i for i in range(drafts) if not row[t + i]), drafts)
                accepted, steps, t = accepted + run, steps + 1, t + run + 1
        out[f"greedy_agreement_on_{name}_output"] = sum(map(sum, match)) / sum(map(len, match))
        out[f"mean_accepted_of_{drafts}_on_{name}_output"] = accepted / steps
    return out


# ---------------------------------------------------------------- training


def train(model, text, valid, args, minutes: float, teacher=None, lr: float = 2e-3) -> dict[str, Any]:
    """Cosine-by-time AdamW; keeps the weights with the best validation bits per byte.

    With a teacher the loss is the KL divergence from the teacher's distribution, and the
    validation measure is the same divergence (the draft is to agree, not to predict).
    """
    import torch
    import torch.nn.functional as F

    for layer in [*model.model.layers, *(teacher.model.layers if teacher else [])]:
        layer.compile()
    skip = ("conv1d.weight", "embed_tokens.weight")
    decay = [p for n, p in model.named_parameters() if p.ndim > 1 and not n.endswith(skip)]
    plain = [p for n, p in model.named_parameters() if p.ndim <= 1 or n.endswith(skip)]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=lr, betas=(0.9, 0.98), fused=True)
    offsets = torch.arange(args.length + 1, device="cuda")

    def measure() -> float:
        if teacher is None:
            return bits_per_byte(model, valid)
        total = count = 0.0
        with evaluating(model), evaluating(teacher):
            for part in windows(valid, 1024, 512).split(32):
                p, q = (logits_of(m, part[:, :-1])[:, 512:].float().log_softmax(-1) for m in (teacher, model))
                total += F.kl_div(q, p, reduction="sum", log_target=True).item()
                count += p.shape[0] * p.shape[1]
        return total / count / math.log(2)

    def step(rate: float) -> torch.Tensor:
        starts = torch.randint(text.numel() - args.length, (args.batch, 1), device="cuda")
        ids = text[starts + offsets].long()
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cuda", torch.bfloat16):
            logits = logits_of(model, ids[:, :-1])
        if teacher is None:
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        else:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                target = logits_of(teacher, ids[:, :-1]).float().log_softmax(-1)
            loss = F.kl_div(logits.float().log_softmax(-1).flatten(0, 1), target.flatten(0, 1),
                            reduction="batchmean", log_target=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    torch.set_float32_matmul_precision("high")
    model.train()
    began = time.time()
    step(0.0), step(0.0)
    torch.cuda.synchronize()
    print(f"compiled in {time.time() - began:.1f} s", flush=True)
    start, steps, best, best_state, last_eval = time.time(), 0, float("inf"), {}, 0.0
    budget, warm = minutes * 60, 100
    while True:
        if steps % 20 == 0:
            torch.cuda.synchronize()
        spent = min((time.time() - start) / budget, 1.0)
        loss = step(lr * min(1, (steps + 1) / warm) * (0.5 + 0.5 * math.cos(math.pi * spent)))
        steps += 1
        if spent >= 1.0 or spent - last_eval >= (0.1 if teacher else 0.05):
            last_eval = spent
            score = measure()
            rate = steps * args.batch * args.length / (time.time() - start)
            print(f"{spent:5.2f} step {steps} train {loss.item() / math.log(2):.4f} valid {score:.4f} bits "
                  f"({rate / 1e6:.2f} MB/s)", flush=True)
            if score < best:
                best, best_state = score, {k: v.detach().clone() for k, v in model.state_dict().items()}
        if spent >= 1.0:
            break
    model.load_state_dict(best_state)
    for layer in [*model.model.layers, *(teacher.model.layers if teacher else [])]:
        layer._compiled_call_impl = None
    trained = steps * args.batch * args.length
    return {"steps": steps, "minutes": round((time.time() - start) / 60, 2), "bytes": trained,
            "epochs": round(trained / text.numel(), 1), "validation_bits": round(best, 4),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}


def save(model, where: Path):
    """Saves in bf16 and returns the saved model, weights rounded to bf16 but computing in fp32."""
    import torch
    from transformers import Qwen3_5ForCausalLM

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(where)
    (where / "generation_config.json").unlink(missing_ok=True)
    return Qwen3_5ForCausalLM.from_pretrained(where, dtype=torch.float32).cuda().eval()


def run(args: argparse.Namespace) -> None:
    import torch
    import transformers
    from transformers.models.qwen3_5 import modeling_qwen3_5

    original = modeling_qwen3_5.torch_chunk_gated_delta_rule, modeling_qwen3_5.causal_conv1d_fn
    modeling_qwen3_5.torch_chunk_gated_delta_rule = chunk_delta_rule
    modeling_qwen3_5.causal_conv1d_fn = causal_conv
    torch._dynamo.config.recompile_limit = 64
    train_text, valid_text, test_text = split(args.text.read_bytes())
    on_gpu = lambda b: torch.frombuffer(bytearray(b), dtype=torch.uint8).cuda()  # noqa: E731
    text, valid, test = on_gpu(train_text), on_gpu(valid_text), on_gpu(test_text)
    report: dict[str, Any] = {
        "torch": torch.__version__, "transformers": transformers.__version__, "device": torch.cuda.get_device_name(),
        "train_bytes": len(train_text), "valid_bytes": len(valid_text), "test_bytes": len(test_text)}

    def note(key: str, value: Any) -> None:
        report[key] = value
        print(key, json.dumps(value), flush=True)
        (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")

    main = build(MAIN, args.dropout, seed=1)
    note("main_parameters", sum(p.numel() for p in main.parameters()))
    note("main_training", train(main, text, valid, args, args.minutes))
    main = save(main, args.out / "hybrid-byte")
    note("main_test_bits_per_byte", {
        n: round(bits_per_byte(main, test, n, n // 2), 4) for n in (512, 1024, 2048, 4096)})
    note("main_train_bits_per_byte", round(bits_per_byte(main, text[:200000]), 4))

    draft = build(DRAFT, 0.0, seed=2)
    note("draft_parameters", sum(p.numel() for p in draft.parameters()))
    note("draft_training", train(draft, text, valid, args, args.draft_minutes, teacher=main, lr=4e-3))
    draft = save(draft, args.out / "hybrid-byte-draft")
    note("draft_test_bits_per_byte", round(bits_per_byte(draft, test), 4))
    # from here on transformers' own functions
    modeling_qwen3_5.torch_chunk_gated_delta_rule, modeling_qwen3_5.causal_conv1d_fn = original
    note("agreement", {k: round(v, 4) for k, v in agreement(main, draft, test).items()})
    for prompt in json.loads(args.prompts.read_text()) if args.prompts else []:
        ids = torch.tensor([list(prompt.encode())], device="cuda")
        for sample in (False, True):
            print("--- temperature 0.8" if sample else "--- greedy")
            print(repr(bytes(generate(main, ids, 400, sample)[0].tolist()).decode("latin-1")), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, metavar="OUT", help="only write the text file")
    parser.add_argument("--bible", default="bible", help="the program of Debian's bible-kjv")
    parser.add_argument("--bible-lib", default="/usr/lib", help="folder of bible.data")
    parser.add_argument("--text", type=Path, help="the prepared text")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--prompts", type=Path, help="JSON list of prompts for the printed samples")
    parser.add_argument("--minutes", type=float, default=4.6, help="training time of the main model")
    parser.add_argument("--draft-minutes", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    args = parser.parse_args()
    if args.prepare:
        prepare(args.prepare, args.bible, args.bible_lib)
        return
    if not args.text:
        parser.error("--text or --prepare is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    run(args)


if __name__ == "__main__":
    main()
