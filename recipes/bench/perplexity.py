"""Time and memory of our perplexity, as ratios to the usual way, which asks the model for its loss with `labels`.

Times: the two ways in turn, again and again, so that whatever else the machine does meets both alike; the median of the
ratios and their quartiles. Memory: each way once, in a process of its own, above what that process held before.

    python recipes/bench/perplexity.py                       # all ratios
    python recipes/bench/perplexity.py --only long           # one pass over 128k tokens: needs minutes on a CPU
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from hf_posswap.evaluation import perplexity, token_nll
from hf_posswap.evaluation.memory import peak_memory

SHAPE = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4, "num_hidden_layers": 4}
VOCABULARY = 32_000
LONG = 131_072
STRIDE = 256
LENGTHS = (1024, 2048, 3072, 4096)


def build(device: str, dtype: str) -> LlamaForCausalLM:
    """LLaMA of width 256 and 4 layers, random weights, a vocabulary of 32,000."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPE, vocab_size=VOCABULARY, max_position_embeddings=LONG)
    return LlamaForCausalLM(config).to(device=device, dtype=getattr(torch, dtype)).eval()


def text(length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(0))


# The two ways of each comparison, as functions of a model


@torch.no_grad()
def whole_loss(model: LlamaForCausalLM, length: int) -> float:
    ids = text(length)[None].to(model.device)
    return model(input_ids=ids, labels=ids, use_cache=False).loss.item()


def by_chunks(model: LlamaForCausalLM, length: int) -> float:
    return token_nll(model, text(length)[None]).mean().item()


@torch.no_grad()
def usual_windows(model: LlamaForCausalLM, length: int) -> float:
    """The recipe of transformers' documentation, its windows weighted by their tokens."""
    ids, total, scored, end = text(3 * length)[None].to(model.device), 0.0, 0, 0
    for begin in range(0, ids.shape[1], STRIDE):
        before, end = end, min(begin + length, ids.shape[1])
        window = ids[:, begin:end]
        labels = window.clone()
        labels[:, : before - end] = -100
        tokens = int((labels[:, 1:] != -100).sum())
        total += model(input_ids=window, labels=labels, use_cache=False).loss.item() * tokens
        scored += tokens
        if end == ids.shape[1]:
            break
    return total / scored


def new_tokens_only(model: LlamaForCausalLM, length: int) -> float:
    return perplexity(model, [text(3 * length)], [length], stride=STRIDE, tokens_per_batch=1).lengths[0].nll


def one_by_one(model: LlamaForCausalLM, length: int) -> float:
    return [perplexity(model, [text(length)], [n], protocol="prefix").lengths[0].nll for n in LENGTHS][-1]


def one_forward(model: LlamaForCausalLM, length: int) -> float:
    return perplexity(model, [text(length)], LENGTHS, protocol="prefix").lengths[-1].nll


COMPARISONS: dict[str, tuple[int, Callable, Callable, str]] = {
    "nll-8k": (8192, whole_loss, by_chunks, "token_nll of 8k tokens, to the loss with labels"),
    "nll-16k": (16384, whole_loss, by_chunks, "token_nll of 16k tokens, to the loss with labels"),
    "nll-32k": (32768, whole_loss, by_chunks, "token_nll of 32k tokens, to the loss with labels"),
    "sliding": (1024, usual_windows, new_tokens_only, "sliding windows of 1024, stride 256, to the usual recipe"),
    "prefix": (4096, one_by_one, one_forward, "prefixes of 1024 to 4096, 4 lengths, to one after the other"),
}


def synchronized(way: Callable, model: LlamaForCausalLM, length: int) -> tuple[float, float]:
    """Seconds, and what came out."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    value = way(model, length)
    return time.perf_counter() - start, value


def time_ratios(model: LlamaForCausalLM, length: int, usual: Callable, ours: Callable, repeats: int) -> dict:
    seconds: dict[str, list[float]] = {"usual": [], "ours": []}
    for repeat in range(repeats + 1):
        theirs, expected = synchronized(usual, model, length)
        mine, found = synchronized(ours, model, length)
        assert abs(found - expected) < 1e-3 * abs(expected), (found, expected)
        if repeat:  # the first round warms up
            seconds["usual"].append(theirs)
            seconds["ours"].append(mine)
    ratios = [mine / theirs for mine, theirs in zip(seconds["ours"], seconds["usual"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {"ratio": middle, "ratio_25": low, "ratio_75": high, **{f"{k} s": v for k, v in medians.items()}}


def needed(device: str, dtype: str, way: Callable, length: int) -> tuple[int, float]:
    """Bytes and seconds of one pass; run in a process of its own."""
    model = build(device, dtype)
    token_nll(model, text(64)[None])  # what is made once is not counted
    with peak_memory(model.device) as peak:
        seconds, _ = synchronized(way, model, length)
    assert peak.bytes is not None, "this system does not tell the peak memory of a process"
    return peak.bytes, seconds


def in_own_process(*arguments: object) -> tuple[int, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(needed, arguments)


def compare(name: str, args: argparse.Namespace) -> dict:
    length, usual, ours, _ = COMPARISONS[name]
    row = time_ratios(build(args.device, args.dtype), length, usual, ours, args.repeats)
    theirs, mine = (in_own_process(args.device, args.dtype, way, length)[0] for way in (usual, ours))
    return {**row, "usual MiB": theirs / 2**20, "ours MiB": mine / 2**20, "memory": mine / theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*COMPARISONS, "long"], help="one row; default: all but long")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error("--repeats needs at least 2")
    machine = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": machine}
    print(f"{args.dtype}, {args.device}, {torch.get_num_threads()} threads; {versions}")
    table: dict[str, dict] = {}
    if args.only == "long":
        bytes_, seconds = in_own_process(args.device, args.dtype, by_chunks, LONG)
        table["long"] = {"MiB": bytes_ / 2**20, "seconds": seconds}
        print(f"token_nll of {LONG} tokens, 4 layers: {bytes_ / 2**30:.2f} GiB, {seconds:.0f} s")
    else:
        print("| ours to the usual way | time | quartiles | memory | MiB |\n|---|---|---|---|---|")
        for name in [args.only] if args.only else COMPARISONS:
            row = table[name] = compare(name, args)
            spread, sizes = f"{row['ratio_25']:.2f} to {row['ratio_75']:.2f}", f"{row['ours MiB']:.0f}"
            sizes += f" to {row['usual MiB']:.0f}"
            print(f"| {COMPARISONS[name][3]} | {row['ratio']:.2f} | {spread} | {row['memory']:.3f} | {sizes} |")
    if args.output is not None:
        args.output.write_text(json.dumps({**versions, **vars(args), "output": None, "table": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
