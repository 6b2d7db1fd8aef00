"""Patched models pass transformers' own tests wherever stock ones do. What ends otherwise is listed with its reason.

Their tests are found through the environment variable TRANSFORMERS_SOURCE, see `host.transformers_suite`. With `-m ""`
they run on every pair of architecture and scheme below, and on stock models.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import pytest
from host import transformers_suite as suite
from host.transformers_suite import FAILED, PASSED, SKIPPED

import hf_posswap as hp
from hf_posswap.schemes import Scheme

if (missing := suite.why_not()) is not None:
    pytest.skip(missing, allow_module_level=True)

SCHEMES: dict[str, tuple[Scheme, ...]] = {
    "gpt2": (hp.ALiBi(), hp.T5Bias(), hp.RoPE(), hp.XPos(), hp.Sinusoidal()),
    "bert": (hp.ALiBi(), hp.T5Bias(), hp.RoPE(), hp.Sinusoidal()),
    "llama": (hp.ALiBi(), hp.T5Bias(), hp.YaRN(factor=2.0), hp.XPos(), hp.Sinusoidal(), hp.Learned()),
}
"""A scheme of each kind for each place where it can meet the network."""

ALWAYS = ("gpt2-alibi", "gpt2-rope", "gpt2-sinusoidal", "bert-t5", "bert-rope")
ALWAYS += ("llama-yarn", "llama-xpos", "llama-learned")
"""Pairs that run without `-m ""`: each place once, each kind once."""

SLOW = ("test_bc_torch_dtype", "test_eager_matches_sdpa_inference_*")
NOT_SLOW = ("*_08_fp32_pad_left_sdpa_kernels", "*_15_fp32_pad_right_no_attn_mask", "*_17_bf16_pad_left")
"""Three of the 25 cells in which eager is compared with sdpa."""


@dataclass(frozen=True)
class Difference:
    """How a test ends on some patched models (patterns of `architecture-scheme`), where it passes on stock ones."""

    models: tuple[str, ...]
    says: str
    """A pattern for what the test says: it must not fail for any other reason."""
    reason: str
    ends: str = FAILED


IN_ATTENTION = ("*-alibi", "*-t5", "*-xpos")
WITH_PARAMETERS = ("*-t5", "llama-learned")
NOT_NATIVE = (*IN_ATTENTION, "gpt2-rope", "bert-rope", "llama-sinusoidal", "llama-learned")
"""transformers has no words for these, so their checkpoints need this package."""

BACKEND_NAME = (
    "in the config, the attention function that carries the scheme is called hf_posswap_eager or hf_posswap_sdpa; "
    "under a stock name there would be attention without it"
)
NOT_STOCK = (
    "the test makes a config from to_diff_dict(), which is what is written to disk. Where stock transformers would "
    "compute something else, that is on purpose no config that a class accepts; from_dict() and Auto classes read it"
)
WIDTH_IS_TEXT = "'(hidden_size|n_embd)' expected int"
REFUSED = "a checkpoint without the scheme's parameters is refused; stock transformers would draw new ones"

EXPECTED: dict[str, tuple[Difference, ...]] = {
    # By design: the names of attention functions.
    "test_can_set_attention_dynamically": (Difference(IN_ATTENTION, "check_attn_implementation", BACKEND_NAME),),
    "test_sdpa_can_dispatch_non_composite_models": (
        Difference(IN_ATTENTION, '_attn_implementation == "sdpa"', BACKEND_NAME),
    ),
    "test_attention_outputs": (
        Difference(
            IN_ATTENTION,
            "`output_attentions` attribute is not supported .* hf_posswap_eager",
            f"{BACKEND_NAME}, and config.output_attentions = True wants it to be eager. As an argument of the call, "
            "which the test tries first, it works",
        ),
    ),
    # By design: a checkpoint that needs this package is not taken for a stock one.
    "test_config_attn_implementation_setter": (Difference(NOT_NATIVE, WIDTH_IS_TEXT, NOT_STOCK),),
    "test_model_forward_default_config_values": (Difference(NOT_NATIVE, WIDTH_IS_TEXT, NOT_STOCK),),
    # By design: position parameters are never left to chance.
    "test_can_init_all_missing_weights": (
        Difference(("llama-t5", "llama-learned"), "CheckpointError: The checkpoint lacks", REFUSED),
    ),
    "test_model_weights_reload_no_missing_tied_weights": (
        Difference(WITH_PARAMETERS, "CheckpointError: The checkpoint lacks", REFUSED),
        Difference(
            ("gpt2-sinusoidal", "bert-sinusoidal"),
            r"(wpe|position_embeddings)\.weight",
            "the table is in the checkpoint for stock transformers to read; here it is a formula and no parameter",
        ),
    ),
    # By design: the scheme is what the config's block says, and the rotary module is always ours.
    "test_model_rope_scaling_from_config_*": (
        Difference(
            ("llama-learned",),
            "SchemeError: 96 tokens are more than the 64 positions of learned",
            "the test goes past the trained length, where a learned table ends and stock LLaMA goes on",
        ),
        Difference(
            ("llama-*",),
            "True is not false",
            "the test changes rope_parameters, which do not say which scheme a patched model has: patch() does that",
        ),
    ),
    "test_model_rope_scaling_frequencies": (
        Difference(
            ("llama-*",),
            "no standardized RoPE module found",
            "the test looks for a stock rotary module, and finds ours",
            ends=SKIPPED,
        ),
    ),
    # The harness: type(model.base_model)(config) makes the test's checkpoint, and the type of a patched model is stock.
    "test_base_model_prefix_loads_base_weights": (
        Difference(
            WITH_PARAMETERS,
            "CheckpointError: The checkpoint lacks",
            "a stock class makes a stock model from any config, so what the test saves lacks the scheme's parameters",
        ),
    ),
}
"""Tests of the mixin (patterns) that end otherwise on patched models. One that does not any more fails: take it out."""


def difference(pair: str, name: str) -> Difference | None:
    """What is expected of a test on a pair of architecture and scheme, if not that it ends as on stock."""
    listed = (d for pattern, group in EXPECTED.items() if fnmatch(name, pattern) for d in group)
    return next((d for d in listed if any(fnmatch(pair, model) for model in d.models)), None)


def is_slow(name: str) -> bool:
    return any(fnmatch(name, p) for p in SLOW) and not any(fnmatch(name, p) for p in NOT_SLOW)


def patched_cases() -> Iterator[Any]:
    """Every test of the mixin on every pair."""
    for model_type, schemes in SCHEMES.items():
        for scheme in schemes:
            pair = f"{model_type}-{scheme.name}"
            for name in suite.test_names():
                marks = [pytest.mark.slow] if pair not in ALWAYS or is_slow(name) else []
                yield pytest.param(model_type, scheme, name, id=f"{pair}-{name}", marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model_type", "scheme", "name"), list(patched_cases()))
def test_patched_model(model_type: str, scheme: Scheme, name: str) -> None:
    ends, says = suite.outcome(model_type, scheme, name)
    expected = difference(f"{model_type}-{scheme.name}", name)
    if expected is not None:
        assert ends == expected.ends, f"{ends}, but it is listed as {expected.ends}: {expected.reason}\n{says}"
        assert re.search(expected.says, says), f"{ends} for another reason than the one that is listed:\n{says}"
    if ends == PASSED:
        return
    on_stock, _ = suite.stock_outcome(model_type, name)
    if expected is not None:
        assert on_stock == PASSED, f"{on_stock} on stock models, so it is no difference any more"
        pytest.xfail(expected.reason)
    assert ends == on_stock, f"{ends} on patched models, {on_stock} on stock ones:\n{says}"
    pytest.skip(f"{ends} on stock models too: {says.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", suite.test_names())
@pytest.mark.parametrize("model_type", SCHEMES)
def test_stock_model(model_type: str, name: str) -> None:
    ends, says = suite.stock_outcome(model_type, name)
    if ends == SKIPPED:
        pytest.skip(says)
    assert ends == PASSED, says


def test_every_listed_difference_can_happen() -> None:
    pairs = [f"{model_type}-{scheme.name}" for model_type, schemes in SCHEMES.items() for scheme in schemes]
    assert set(ALWAYS) <= set(pairs)
    for pattern, group in EXPECTED.items():
        assert any(fnmatch(name, pattern) for name in suite.test_names()), pattern
        for model in (model for listed in group for model in listed.models):
            assert any(fnmatch(pair, model) for pair in pairs), model
