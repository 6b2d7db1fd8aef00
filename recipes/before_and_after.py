"""A small model of each family, before and after its context is extended: one table, to 8 times the trained length.

Byte-level GPT-2, BERT and LLaMA are trained on the first seven eighths of every text (once; after that they come from
the cache), extended with the method that `extend` takes by default for their scheme, and fine-tuned for a few steps at
the longest length. BERT is swapped to RoPE before it is trained, because with its own table it learns next to nothing
in so few steps. Perplexity (of BERT pseudo-perplexity) is measured on the last eighths:

    python recipes/before_and_after.py --text books/ --output runs/before_and_after
    hf-posswap report runs/before_and_after/results.json --output report.html

Without --text the texts are the source files of the package email of Python's standard library. `--smoke` shows only
that everything runs.
"""

import hashlib
import json
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from tqdm.auto import tqdm

import hf_posswap as hp
from hf_posswap.evaluation import perplexity, pseudo_perplexity, read_documents, save_results

MASK = "<extra_id_0>"  # a token of ByT5's that no text has
IDS = {"vocab_size": 384, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
SHAPE = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 344}
GPT2_SHAPE = {"n_embd": 128, "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT_SHAPE = {**SHAPE, "intermediate_size": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass
class Arguments:
    text: str | None = field(default=None, metadata={"help": "file or folder; default: the standard library's email"})
    output: str = field(default="runs/before_and_after", metadata={"help": "folder for results and models"})
    cache: str = field(default="~/.cache/hf_posswap", metadata={"help": "folder that keeps the trained models"})
    families: str = field(default="gpt2,llama,bert", metadata={"help": "which ones, with commas"})
    length: int = field(default=128, metadata={"help": "the trained length"})
    longest: int = field(default=8, metadata={"help": "measure at 1, 2, 4 ... up to this many trained lengths"})
    train_steps: int = field(default=3000, metadata={"help": "training steps"})
    steps: int = field(default=200, metadata={"help": "fine-tuning steps, at the longest length"})
    batch_tokens: int = field(default=2048, metadata={"help": "tokens in a step"})
    lr: float = field(default=2e-3, metadata={"help": "of training; fine-tuning takes half of it"})
    eval_tokens: int = field(default=131072, metadata={"help": "about how many held-out tokens are read"})
    positions: int = field(default=8, metadata={"help": "tokens of every window that BERT's pseudo-perplexity hides"})
    seed: int = 0
    smoke: bool = field(default=False, metadata={"help": "everything tiny: shows only that it runs"})


def split(documents, longest: int, tokens: int):
    """A stream to train on, and held-out documents: the last eighth of every text, cut to equal shares of `tokens`."""
    stream = torch.cat([document.input_ids[: len(document) * 7 // 8] for document in documents])
    ends = [document.input_ids[len(document) * 7 // 8 :] for document in documents]
    pieces = [piece for end in ends for piece in end.split(4 * longest) if len(piece) == 4 * longest]
    return stream, pieces[:: max(1, len(pieces) * 4 * longest // tokens)]


def new_model(family: str, length: int):
    if family == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**IDS, **GPT2_SHAPE, n_positions=length))
    if family == "bert":
        config = transformers.BertConfig(**IDS, **BERT_SHAPE, max_position_embeddings=length)
        return hp.patch(transformers.BertForMaskedLM(config), "rope")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**IDS, **SHAPE, max_position_embeddings=length))


def train(accelerator, model, stream: torch.Tensor, tokenizer, length: int, steps: int, lr: float, args, name: str):
    """Trains in place on random windows: next tokens for decoders, 15 % masked tokens for BERT."""
    transformers.set_seed(args.seed)
    masked, batch = model.config.model_type == "bert", max(1, args.batch_tokens // length)
    lr = lr / 2 if masked else lr  # BERT normalises after its sums, and bears less
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=masked, seed=args.seed)
    windows = [{"input_ids": stream[i : i + length]} for i in torch.randint(len(stream) - length, (steps * batch,))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    loader = torch.utils.data.DataLoader(windows, batch_size=batch, collate_fn=collate)
    prepared, optimizer, loader, schedule = accelerator.prepare(model.train(), optimizer, loader, schedule)
    bar = tqdm(loader, desc=name, disable=not accelerator.is_main_process)
    for inputs in bar:
        loss = prepared(**inputs).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    accelerator.free_memory()


def trained(accelerator, family: str, stream: torch.Tensor, tokenizer, args: Arguments) -> Path:
    """The folder of the trained model; from the cache if it was trained with these settings before."""
    settings = [SHAPE, GPT2_SHAPE, BERT_SHAPE, args.seed, args.batch_tokens, args.train_steps, args.lr, args.length]
    key = hashlib.sha256(json.dumps(settings).encode() + stream.numpy().tobytes()).hexdigest()
    folder = Path(args.cache).expanduser() / f"small-{family}-{key[:16]}"
    if not folder.exists():
        transformers.set_seed(args.seed)
        model = new_model(family, args.length)
        steps = args.train_steps // 2 if family == "bert" else args.train_steps
        train(accelerator, model, stream, tokenizer, args.length, steps, args.lr, args, f"training {family}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        accelerator.on_main_process(hp.save)(model, folder, tokenizer=tokenizer)
        accelerator.wait_for_everyone()
    return folder


def measured(accelerator, model, documents, lengths: list[int], tokenizer, label: str, args: Arguments):
    """One result, at the lengths that the model has positions for."""
    limit = hp.scheme_of(model).limit()
    run = {"accelerator": accelerator, "progress": accelerator.is_main_process}
    possible = [length for length in lengths if limit is None or length <= limit]
    if model.config.model_type == "bert":
        chosen = {"positions": args.positions, "seed": args.seed}
        return pseudo_perplexity(model, documents, possible, tokenizer=tokenizer, **chosen, **run).labelled(label)
    return perplexity(model, documents, possible, **run).labelled(label)


def rows_of(accelerator, family: str, stream, documents, tokenizer, args: Arguments) -> list:
    """The model as it was trained, extended without training, and fine-tuned; decoders also without positions."""
    folder = trained(accelerator, family, stream, tokenizer, args)
    lengths = [args.length * 2**i for i in range(args.longest.bit_length())]
    changes = {"as trained": lambda model: model, "extended": lambda model: hp.extend(model, lengths[-1])}
    if family != "bert":
        changes["no positions (control)"] = lambda model: hp.patch(model, hp.NoPE())
    rows = []
    for words, change in changes.items():
        model = change(hp.load(folder, auto_class(family), dtype=torch.float32)).to(accelerator.device)
        label = f"{family}, {hp.scheme_of(model).name}, {words}"
        rows.append(measured(accelerator, model, documents, lengths, tokenizer, label, args))
        if words != "as trained":
            train(accelerator, model, stream, tokenizer, lengths[-1], args.steps, args.lr / 2, args, label)
            label = f"{label}, {args.steps} steps"
            rows.append(measured(accelerator, model, documents, lengths, tokenizer, label, args))
        if words == "extended":
            output = Path(args.output) / f"{family}-extended"
            accelerator.on_main_process(hp.save)(model, output, tokenizer=tokenizer, overwrite=True)
    return rows


def auto_class(family: str):
    return transformers.AutoModelForMaskedLM if family == "bert" else transformers.AutoModelForCausalLM


def main(args: Arguments) -> None:
    if args.smoke:
        args.train_steps, args.steps, args.batch_tokens, args.eval_tokens, args.positions = 4, 2, 1024, 4096, 2
        args.length = min(args.length, 32)
    transformers.logging.disable_progress_bar()
    accelerator, tokenizer = Accelerator(), transformers.ByT5Tokenizer()
    tokenizer.mask_token = MASK
    documents = read_documents(args.text or sysconfig.get_path("stdlib") + "/email", tokenizer)
    stream, held_out = split(documents, args.longest * args.length, args.eval_tokens)
    if not held_out:
        raise hp.EvaluationError(f"no text has {32 * args.longest * args.length} bytes: take longer texts")
    Path(args.output).mkdir(parents=True, exist_ok=True)
    results = []
    for family in args.families.split(","):
        results += rows_of(accelerator, family, stream, held_out, tokenizer, args)
        if accelerator.is_main_process:
            save_results(results, Path(args.output) / "results.json")


if __name__ == "__main__":
    try:
        main(*transformers.HfArgumentParser(Arguments).parse_args_into_dataclasses())
    except (OSError, ValueError, KeyboardInterrupt) as error:  # a PosswapError is a ValueError
        print("before_and_after:", " ".join(str(error).split()) or "interrupted", file=sys.stderr)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)
