"""What happens to a model beyond its trained length, and what positional schemes do about it: one table, in minutes.

Without arguments, network or GPU: a small byte-level LLaMA is trained on the source of Python's standard library (once;
after that it comes from the cache), extended with YaRN, and swapped to ALiBi and to NoPE. Every row starts from the
same trained weights and is measured as it stands and again after the same fine-tuning steps at the longest length; the
untouched scheme is the control. With `--model NAME_OR_FOLDER` the same is done to a model of yours, as it is:

    python recipes/quickstart.py --model gpt2 --text my_texts/ --longest 4 --batch_tokens 8192
"""

import hashlib
import json
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from tqdm.auto import tqdm

import hf_posswap as hp
from hf_posswap.evaluation import perplexity

TINY = {"hidden_size": 64, "intermediate_size": 170, "num_hidden_layers": 4, "num_attention_heads": 2}
TINY |= {"max_position_embeddings": 64, "vocab_size": 384, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
TINY_LR = 5e-3


@dataclass
class Arguments:
    text: str | None = field(default=None, metadata={"help": "file or folder; default: Python's standard library"})
    model: str | None = field(default=None, metadata={"help": "name or folder; default: train a tiny LLaMA"})
    output: str = field(default="runs/quickstart", metadata={"help": "folder for table, picture and model"})
    cache: str = field(default="~/.cache/hf_posswap", metadata={"help": "folder that keeps the tiny model"})
    longest: int = field(default=8, metadata={"help": "measure at 1, 2, 4 ... up to this many trained lengths"})
    eval_tokens: int = field(default=65536, metadata={"help": "about how many held-out tokens every row reads"})
    steps: int = field(default=50, metadata={"help": "fine-tuning steps, at the longest length"})
    lr: float | None = field(default=None, metadata={"help": "of fine-tuning; default: 2e-3, with --model 5e-5"})
    batch_tokens: int = field(default=2048, metadata={"help": "tokens in a training step"})
    tiny_steps: int = field(default=1200, metadata={"help": "training steps of the tiny model"})
    seed: int = 0


def read_tokens(path: str | None, tokenizer) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Tokens to train on, and held-out documents: every eighth file, or the last eighth of a single one."""
    root = Path(path or sysconfig.get_path("stdlib")).expanduser()
    files = sorted(root.glob("*.py") if path is None else root.rglob("*")) if root.is_dir() else [root]
    texts = []
    for file in files:
        with suppress(UnicodeDecodeError, IsADirectoryError):
            texts.append(file.read_text(encoding="utf-8"))
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise hp.EvaluationError(f"there is no UTF-8 text in {root}; --text takes a file or a folder of it")
    if len(texts) == 1:
        cut = len(texts[0]) * 7 // 8
        texts = [texts[0][cut:], texts[0][:cut]]
    tokens = [torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]
    return torch.cat([document for i, document in enumerate(tokens) if i % 8]), tokens[::8]


def held_out_blocks(documents: list[torch.Tensor], length: int, tokens: int) -> list[torch.Tensor]:
    """Blocks of `length` tokens, spread evenly over the documents: what every scheme and every length reads."""
    blocks = [block for text in documents if len(text) >= length for block in text.unfold(0, length, length)]
    return blocks[:: max(1, round(len(blocks) * length / max(1, tokens)))]


def train(accelerator, model, stream: torch.Tensor, length: int, steps: int, lr: float, args: Arguments, name: str):
    """Trains in place on random windows of `stream`: the same ones whenever length, steps and seed are the same."""
    transformers.set_seed(args.seed)
    batch = max(1, args.batch_tokens // length)
    windows = [stream[i : i + length] for i in torch.randint(len(stream) - length, (steps * batch,))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    loader = torch.utils.data.DataLoader(windows, batch_size=batch)
    prepared, optimizer, loader, schedule = accelerator.prepare(model.train(), optimizer, loader, schedule)
    for tokens in tqdm(loader, desc=name, disable=not accelerator.is_main_process):
        accelerator.backward(prepared(input_ids=tokens, labels=tokens, use_cache=False).loss)
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.free_memory()


def tiny_model(accelerator, config, tokenizer, stream: torch.Tensor, args: Arguments) -> Path:
    """The folder of a small LLaMA trained on `stream`; from the cache if it was trained with these settings before."""
    settings = [TINY, args.seed, args.batch_tokens, args.tiny_steps, TINY_LR, hp.__version__]
    key = hashlib.sha256(json.dumps(settings).encode() + stream.numpy().tobytes()).hexdigest()
    folder = Path(args.cache).expanduser() / f"tiny-llama-{key[:16]}"
    if folder.exists():
        try:
            hp.load(folder)
            return folder
        except Exception as error:  # whatever is wrong with it, it can be trained again
            accelerator.print(f"training the tiny model again, because the one in {folder} is broken: {error}")
    transformers.set_seed(args.seed)
    model = transformers.LlamaForCausalLM(config)
    train(accelerator, model, stream, config.max_position_embeddings, args.tiny_steps, TINY_LR, args, "tiny model")
    accelerator.on_main_process(hp.save)(model, folder, tokenizer=tokenizer)
    accelerator.wait_for_everyone()
    return folder


def compare(accelerator, source, tokenizer, stream, blocks: list[torch.Tensor], lengths: list[int], args) -> list[dict]:
    """One row for every scheme, as it stands and fine-tuned, each from the weights in `source`; saves the extended."""
    changes = [
        ("{} as trained", lambda model: model),
        ("{} extended", lambda model: hp.extend(model, lengths[-1])),  # a model with RoPE: by YaRN
        ("swapped to {}", lambda model: hp.patch(model, hp.ALiBi())),
        ("swapped to {}", lambda model: hp.patch(model, hp.NoPE())),
    ]
    rows = []
    for label, change in changes:
        model = change(hp.load(source, dtype=torch.float32)).to(accelerator.device)
        scheme = hp.scheme_of(model)
        possible = [n for n in lengths if scheme.limit() is None or n <= scheme.limit()]
        for steps in (0, args.steps) if possible == lengths else (0,):
            row, started = {"name": label.format(scheme.name), "steps": steps}, time.perf_counter()
            if steps:
                train(accelerator, model, stream, lengths[-1], steps, args.lr, args, f"fine-tuning {row['name']}")
            found = perplexity(model, blocks, possible, protocol="disjoint", progress=accelerator.is_main_process)
            row |= found.to_dict()
            rows.append({**row, "scheme": scheme.to_dict(), "seconds": time.perf_counter() - started})
        if "extended" in label:
            accelerator.on_main_process(hp.save)(model, Path(args.output) / "model", tokenizer=tokenizer)
    return rows


def table(rows: list[dict], lengths: list[int]) -> str:
    """Perplexity, and in brackets its ratio to that at the trained length."""
    lines = [["scheme", "steps", *(f"{n // lengths[0]}x = {n}" for n in lengths), "seconds"]]
    for row in rows:
        at = dict.fromkeys(lengths, "too long")
        at |= {result["length"]: f"{result['perplexity']:.2f} ({result['ratio']:.2f})" for result in row["lengths"]}
        lines.append([row["name"], str(row["steps"]), *at.values(), f"{row['seconds']:.1f}"])
    lines.append(["tokens scored", "", *(str(result["tokens"]) for result in rows[-1]["lengths"]), ""])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def picture(rows: list[dict], lengths: list[int], path: Path) -> None:
    from matplotlib.figure import Figure  # of the plot extra

    figure, names = Figure(figsize=(9, 4.5), layout="constrained"), list(dict.fromkeys(row["name"] for row in rows))
    axes = figure.subplots()
    for row in rows:
        points = [(result["length"], result["perplexity"]) for result in row["lengths"]]
        i, label = names.index(row["name"]), f"{row['name']}, {row['steps']} steps"
        style = {"color": f"C{i}", "marker": "osD^"[i], "linestyle": "-" if row["steps"] else ":"}
        axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.axvline(lengths[0], color="grey", linewidth=0.8, label="trained length")
    axes.set(xscale="log", yscale="log", xlabel="window (tokens)", ylabel="perplexity per token")
    axes.set_xticks(lengths, lengths)
    axes.set_xticks([], minor=True)
    axes.yaxis.set(major_formatter="{x:g}", minor_formatter="{x:g}")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)


def main(args: Arguments) -> None:
    if args.longest < 2 or min(args.steps, args.tiny_steps, args.batch_tokens) < 1:
        raise hp.EvaluationError("--longest is at least 2; --steps, --tiny_steps and --batch_tokens are at least 1")
    args.lr = args.lr or (5e-5 if args.model else 2e-3)
    transformers.logging.disable_progress_bar()
    accelerator, output = Accelerator(), Path(args.output)
    config = transformers.AutoConfig.from_pretrained(args.model) if args.model else transformers.LlamaConfig(**TINY)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model) if args.model else transformers.ByT5Tokenizer()
    accelerator.print(f"{args.model or 'the tiny LLaMA'} has {hp.scheme_of(config)}")
    lengths = [config.max_position_embeddings * 2**i for i in range(args.longest.bit_length())]
    stream, held_out = read_tokens(args.text, tokenizer)
    blocks = held_out_blocks(held_out, lengths[-1], args.eval_tokens)
    if not blocks or len(stream) <= lengths[-1]:
        raise hp.EvaluationError(f"the text is too short: training and held-out part need {lengths[-1]} tokens")
    source = args.model or tiny_model(accelerator, config, tokenizer, stream, args)
    rows = compare(accelerator, source, tokenizer, stream, blocks, lengths, args)
    if not accelerator.is_main_process:
        return
    (output / "table.json").write_text(json.dumps({"arguments": asdict(args), "rows": rows}, indent=2))
    print(f"\nPerplexity of {len(blocks)} held-out blocks, in disjoint windows\n\n{table(rows, lengths)}\n")
    try:
        picture(rows, lengths, output / "table.png")
    except ImportError:
        print("no picture: it needs pip install 'hf-posswap[plot]'")
    print(f"{output} has table, picture and the extended model, which goes on after {lengths[1]} held-out tokens:\n")
    prompt, options = blocks[0][None, : lengths[1]], {"max_new_tokens": 120, "do_sample": True, "top_k": 20}
    written = hp.load(output / "model").generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    print(tokenizer.decode(written[0, lengths[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    try:
        main(*transformers.HfArgumentParser(Arguments).parse_args_into_dataclasses())
    except (OSError, ValueError, KeyboardInterrupt) as error:  # a PosswapError is a ValueError
        print("quickstart:", " ".join(str(error).split()) or "interrupted", file=sys.stderr)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)
