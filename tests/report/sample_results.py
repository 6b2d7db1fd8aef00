"""Results as measurements give them, with made-up numbers: of each kind, of several models."""

import itertools
import math
from typing import Any

from hf_posswap.evaluation.advice import Advice, Candidate
from hf_posswap.evaluation.attention_profile import AttentionProfile, HeadProfile
from hf_posswap.evaluation.decay import Decay
from hf_posswap.evaluation.intervals import Interval
from hf_posswap.evaluation.long_ppl import LongPpl
from hf_posswap.evaluation.nll_by_position import NllByPosition, PositionBucket
from hf_posswap.evaluation.perplexity import LengthPerplexity, PerplexityResult
from hf_posswap.evaluation.position_probe import PositionProbe, ProbedLayer
from hf_posswap.evaluation.properties import Properties, Property
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult
from hf_posswap.evaluation.results import Cost, Result, Subject
from hf_posswap.evaluation.retrieval.results import Cell, RetrievalResult

LENGTHS = (512, 1024, 2048, 4096, 8192)
COST = Cost(seconds=81.4, peak_memory=412 * 2**20, processes=1, device="cpu")
SCHEMES: dict[str, dict[str, Any]] = {
    "rope": {"name": "rope", "rope_theta": 10000.0, "partial_rotary_factor": None},
    "yarn": {"name": "yarn", "factor": 4.0},
    "nope": {"name": "nope"},
    "alibi": {"name": "alibi"},
}
BREAKS = {"rope": 2.1, "yarn": 0.03, "nope": 0.7, "alibi": 0.08}
"""By how many nats a scheme gets worse with every doubling of the trained length."""


def subject(label: str = "rope", scheme: Any = "rope", **facts: Any) -> Subject:
    known: dict[str, Any] = {"label": label, "model": "a-small-llama", "architecture": "LlamaForCausalLM"}
    known |= {
        "scheme": SCHEMES.get(scheme) if isinstance(scheme, str) else scheme,
        "trained_length": 1024,
        "head_dim": 64,
        "heads": 12,
        "hidden_size": 768,
        "layers": 8,
        "parameters": 12_345_678,
    }
    return Subject(**{**known, "dtype": "float32", "attention": "sdpa", **facts})


def model(label: str, scheme: Any = None, **facts: Any) -> dict[str, Any]:
    """The fields that all results of models have."""
    return {"subject": subject(label, scheme or label, **facts), "cost": COST}


def _nll(scheme: str, length: float) -> float:
    beyond = max(0.0, math.log2(length / 1024))
    return 3.1 - 0.08 * math.log2(length / 512) + BREAKS.get(scheme, 0.2) * beyond


def at_length(scheme: str, length: int, *, single: bool = False) -> LengthPerplexity:
    nll, shortest = _nll(scheme, length), _nll(scheme, LENGTHS[0])
    interval = None if single else Interval(math.exp(nll - 0.06), math.exp(nll + 0.08))
    return LengthPerplexity(
        length=length,
        windows=12 * 8192 // length,
        tokens=98_292,
        nll=nll,
        perplexity=math.exp(nll),
        interval=interval,
        bits_per_byte=nll / math.log(2) / 4.2,
        ratio=math.exp(nll - shortest),
        seconds=11.5,
        document_nll=(nll * 98_292,),
        document_tokens=(98_292,),
    )


def perplexity(label: str, scheme: Any = None, **fields: Any) -> PerplexityResult:
    known: dict[str, Any] = {"protocol": "sliding", "reduction": "token", "stride": None, "bos": "none"}
    known |= {"control": None, "documents": 12, "skipped": ()}
    known["lengths"] = tuple(at_length(str(scheme or label), length) for length in LENGTHS)
    return PerplexityResult(**{**model(label, scheme), **known, **fields})


def pseudo_perplexity(label: str, scheme: str | None = None) -> PseudoPerplexityResult:
    lengths = tuple(at_length(str(scheme or label), length) for length in LENGTHS[:3])
    facts = {"form": "token", "positions": 64, "seed": 0, "special_tokens": 2, "documents": 12, "skipped": (3,)}
    return PseudoPerplexityResult(**model(label, scheme), **facts, lengths=lengths)


def nll_by_position(label: str) -> NllByPosition:
    edges = [8192 * i // 32 for i in range(33)]
    buckets = []
    for start, stop in itertools.pairwise(edges):
        nll = _nll(label, (start + stop) / 2)
        buckets.append(PositionBucket(start, stop, 24 * (stop - start), nll, Interval(nll - 0.12, nll + 0.15)))
    facts = {"length": 8192, "windows": 24, "documents": 12, "skipped": (), "bos": "none"}
    return NllByPosition(**model(label), **facts, buckets=tuple(buckets))


def _cell(task: str, scheme: str, length: int, depth: float | None, trials: int) -> Cell:
    beyond = max(0.0, math.log2(length / 1024))
    share = max(0.0, min(1.0, 0.99 - 0.3 * BREAKS.get(scheme, 0.2) * beyond * (1.5 - (depth or 0.5))))
    chance = 0.1
    right = chance + (1 - chance) * share
    correct = round(share * trials)
    return Cell.of(
        task, length, depth, correct=correct, trials=trials, token_accuracy=right, chance=chance, nll=0.2 + 2 * beyond
    )


def retrieval(task: str, label: str) -> RetrievalResult:
    depths = [i / 8 for i in range(9)] if task == "needle" else [None]
    tasks = ["multi_key", "variable_tracking", "common_words"] if task == "ruler_lite" else [task]
    places = itertools.product(tasks, LENGTHS, depths)
    cells = [_cell(each, label, n, depth, 40 if task == "needle" else 200) for each, n, depth in places]
    facts = {"task": task, "haystack": "text of the documents", "skipped": (), "alphabet": "digits", "answer_tokens": 5}
    return RetrievalResult(**model(label), **facts, bos=True, seed=0, cells=tuple(cells))


def long_ppl(label: str, *, none: bool = False) -> LongPpl:
    facts: dict[str, Any] = {"length": 8192, "short_length": 2048, "stride": 512, "evaluator": "a-larger-llama"}
    facts |= {"gain_threshold": 2.0, "likelihood_threshold": -2.0, "documents": 12, "skipped": (), "tokens": 73_728}
    key = 3.1 * math.exp(BREAKS[label])
    found = (
        {"key_tokens": 0, "perplexity": None, "interval": None}
        if none
        else {"key_tokens": 2_311, "perplexity": key, "interval": Interval(0.9 * key, 1.12 * key)}
    )
    everything = {"all_perplexity": 4 * key, "all_interval": Interval(3.9 * key, 4.1 * key)}
    return LongPpl(**model(label), **facts, **found, **everything)


def position_probe(label: str) -> PositionProbe:
    floor = {"rope": 60.0, "nope": 25.0}.get(label, 40.0)
    layers = []
    for i in range(9):
        error = floor + (256 - floor) * math.exp(-i / 1.5)
        layers.append(ProbedLayer(i, error, Interval(0.93 * error, 1.06 * error)))
    facts: dict[str, Any] = {"length": 1024, "skipped": (), "fitted_documents": 32, "fitted_tokens": 32_768}
    facts |= {"tested_documents": 16, "ridge": 1.0, "control": 259.8, "guess": 256.0}
    return PositionProbe(**model(label), **facts, layers=tuple(layers))


def _head(layer: int, head: int, distances: tuple[int, ...], pairs: int) -> HeadProfile:
    reach = 2.0 ** (1 + (layer + 3 * head) % 8)
    weight = tuple(math.exp(-d / reach) / reach for d in distances)
    score = tuple(None if layer == 1 and d > 1024 else 4.0 - d / reach / 8 - 0.2 * head for d in distances)
    used = [math.exp(-((i - (layer * 5 + head * 3) % pairs) ** 2) / 30) for i in range(pairs)]
    return HeadProfile(
        layer=layer,
        head=head,
        score=score,
        weight=weight,
        mean_distance=reach,
        diagonal=1 / reach,
        previous=0.9 if (layer, head) == (2, 3) else 0.3 / (1 + head),
        first=0.7 if layer > 4 else 0.1,
        frequencies=tuple(each / sum(used) for each in used),
    )


def attention_profile(label: str, *, rotary: bool = True) -> AttentionProfile:
    distances = (0, *(2**i for i in range(12)))
    pairs = 32 if rotary else 0
    inv_freq = tuple(10000.0 ** (-i / 32) for i in range(pairs))
    heads = tuple(_head(layer, head, distances, pairs) for layer in range(8) for head in range(8))
    facts = {"length": 4096, "documents": 4, "skipped": (), "windows": 8, "distances": distances}
    return AttentionProfile(**model(label), **facts, inv_freq=inv_freq, heads=heads)


def advice() -> Advice:
    tried = [("yarn", {"factor": 8.0}, 21.3, 19.0), ("ntk", {"factor": 8.0}, 24.9, 19.4), ("none", {}, 913.0, 18.7)]
    candidates = [
        Candidate(
            method=method,
            options=options,
            scheme={"name": "rope" if method == "none" else method, **options},
            perplexity=value,
            interval=Interval(0.95 * value, 1.06 * value),
            short_perplexity=short,
            over_best=None if method == "yarn" else Interval(0.97 * value / 21.3, 1.02 * value / 21.3),
            fine_tuning="nothing: the model as it is" if method == "none" else "400 steps for its published quality",
            command="" if method == "none" else f"hf-posswap extend MODEL OUT --max-length 8192 --method {method}",
        )
        for method, options, value, short in tried
    ]
    facts: dict[str, Any] = {
        "length": 8192,
        "trained_length": 1024,
        "measure": "perplexity",
        "short_perplexity": 18.7,
        "documents": 12,
        "over": "documents",
        "skipped": (),
    }
    untried = ("longrope: the time was over",)
    return Advice(**model("rope"), **facts, tokens=98_292, candidates=tuple(candidates), untried=untried)


def decay(scheme: str, what: str = "inner product", heads: int = 1) -> Decay:
    distances = tuple(range(0, 4096, 7))
    slopes = [2.0 ** -(1 + head) for head in range(heads)]
    rows = [tuple(-s * d if what == "bias" else math.cos(d / 400) / (1 + d / 300) for d in distances) for s in slopes]
    labels = tuple(f"{scheme}, head {head}" for head in range(1, heads + 1)) if heads > 1 else (scheme,)
    facts = {"what": what, "causal": True, "trained_length": 1024, "distances": distances}
    return Decay(scheme=SCHEMES[scheme], **facts, labels=labels, heads=tuple(rows))


def properties(scheme: str) -> Properties:
    found = (
        Property("unique positions", True, "smallest distance between two positions 0.31"),
        Property("depends on relative distance only", scheme != "nope", "largest change under a shift 2e-12"),
        Property("long-term decay", None if scheme == "nope" else False, "rises again at distance 1,287"),
    )
    return Properties(scheme=SCHEMES[scheme], causal=True, length=2048, drawn=False, properties=found)


def of_every_kind() -> list[Result]:
    """Two or more of each, but for advice."""
    results: list[Result] = [perplexity(name) for name in SCHEMES]
    results += [perplexity("rope, shuffled-context", "nope", control="shuffled-context")]
    results += [pseudo_perplexity("rope"), pseudo_perplexity("nope"), long_ppl("rope"), long_ppl("nope", none=True)]
    results += [long_ppl("yarn"), *(nll_by_position(name) for name in SCHEMES), *map(position_probe, ("rope", "nope"))]
    results += [retrieval(task, name) for task in ("passkey", "needle", "ruler_lite") for name in ("rope", "yarn")]
    results += [attention_profile("rope"), attention_profile("alibi", rotary=False), advice()]
    results += [decay("rope"), decay("yarn"), decay("alibi", "bias", heads=4), *map(properties, SCHEMES)]
    return results
