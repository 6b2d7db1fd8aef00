"""Time per token while decoding with a cache, as a ratio to the same model with static YaRN.

Steps of all schemes are interleaved, so that whatever else the machine does meets all of them alike. A step at which a
length-dependent scheme enters a new segment rotates the whole cache anew and is reported by itself.

    python recipes/bench/decode.py --context 4096 --steps 100
"""

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import hf_posswap as hp

TRAINED = 1024


def schemes() -> dict[str, hp.Scheme | None]:
    """What is compared: None is the stock model. Static YaRN is the reference."""
    longrope = {"factor": 64.0, "long_factor": [1.0 + 0.5 * i for i in range(32)]}
    return {
        "yarn static": hp.YaRN(factor=64.0),
        "stock rope": None,
        "yarn segment": hp.YaRN(factor=64.0, mode="segment"),
        "dynamic segment": hp.DynamicNTKRoPE(factor=2.0),
        "longrope segment": hp.LongRoPE(**longrope),
        "alibi": hp.ALiBi(),
    }


def build(scheme: hp.Scheme | None, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """LLaMA of width 512, 8 heads of which 2 have keys, 4 layers."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        vocab_size=1000,
        max_position_embeddings=TRAINED,
        **heads,
    )
    model = LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()
    return model if scheme is None else hp.patch(model, scheme)


@torch.no_grad()
def measure(context: int, steps: int, device: str, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Median milliseconds per token, the median of the ratios to static YaRN and their quartiles, by scheme."""
    models = {name: build(scheme, device, dtype) for name, scheme in schemes().items()}
    prompt = torch.randint(0, 1000, (1, context), device=device)
    caches = {name: DynamicCache(config=model.config) for name, model in models.items()}
    for name, model in models.items():
        model(prompt, past_key_values=caches[name], logits_to_keep=1)
        step(model, caches[name], prompt)  # the first step makes what is kept from step to step
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(steps):
        for name, model in models.items():
            seconds[name].append(step(model, caches[name], prompt))
    return {name: summary(times, seconds["yarn static"]) for name, times in seconds.items()}


def step(model: LlamaForCausalLM, cache: DynamicCache, prompt: torch.Tensor) -> float:
    """Seconds for one token."""
    length = cache.get_seq_length()
    call = {
        "position_ids": torch.tensor([[length]], device=prompt.device),
        "attention_mask": torch.ones(1, length + 1, dtype=torch.long, device=prompt.device),
    }
    synchronize(prompt.device)
    start = time.perf_counter()
    model(prompt[:, :1], past_key_values=cache, **call)
    synchronize(prompt.device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Waits for what a GPU still computes."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def summary(times: list[float], reference: list[float]) -> dict[str, float]:
    """Milliseconds and ratios of one scheme."""
    ratios = [mine / theirs for mine, theirs in zip(times, reference, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"ms": statistics.median(times) * 1e3, "ratio": middle, "ratio_25": low, "ratio_75": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=4096, help="tokens in the cache at the first step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.context < 2 or args.steps < 2:
        sys.exit("--context and --steps need at least 2")
    table = measure(args.context, args.steps, args.device, getattr(torch, args.dtype))
    machine = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": machine}
    print(f"{args.context} tokens of context, {args.dtype}, {args.device}; {versions}")
    print("| scheme | ms per token | ratio to static YaRN | quartiles |\n|---|---|---|---|")
    for name, row in table.items():
        print(f"| {name} | {row['ms']:.2f} | {row['ratio']:.2f} | {row['ratio_25']:.2f} to {row['ratio_75']:.2f} |")
    if args.output is not None:
        args.output.write_text(json.dumps({**versions, **vars(args), "output": None, "table": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
