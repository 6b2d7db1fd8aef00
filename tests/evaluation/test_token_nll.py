"""token_nll against a plain loop over the model's own logits, for heads of every make, and what it refuses."""

import importlib
from typing import Any

import pytest
import torch
import transformers
from tiny import VOCAB, redraw, tiny
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hf_posswap as hp
from hf_posswap.evaluation import token_nll

MODULE = importlib.import_module("hf_posswap.evaluation.token_nll")

SCHEMES = {
    "nope": hp.NoPE(),
    "sinusoidal": hp.Sinusoidal(),
    "yarn": hp.YaRN(factor=4.0),
    "alibi": hp.ALiBi(),
    "t5": hp.T5Bias(),
    "xpos": hp.XPos(),
}

IDS: dict[str, Any] = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {**IDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "softcapped": ("gemma2", {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 1.5}),
    "scaled": ("cohere", {**SMALL, "logit_scale": 0.6}),
    "divided": ("granite", {**SMALL, "logits_scaling": 3.0}),
    "projected before": ("opt", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 16, "max_position_embeddings": 40}),
    "transformed before": ("bert", {**SMALL, "is_decoder": True}),
    "other names": ("gpt_neox", SMALL),
    "no attention interface": ("bloom", {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
}


def other(model_type: str, fields: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(model_type, **fields)
    return redraw(transformers.AutoModelForCausalLM.from_config(config)).eval()


def naive(model: Any, input_ids: Tensor) -> Tensor:
    """One number at a time, in float64, from the logits that the model gives."""
    with torch.no_grad():
        logits = model(input_ids).logits.double().tolist()
    rows = []
    for row, ids in zip(logits, input_ids.tolist(), strict=True):
        normalisers = [torch.tensor(scores, dtype=torch.float64).logsumexp(0).item() for scores in row]
        rows.append([normalisers[t] - row[t][ids[t + 1]] for t in range(len(ids) - 1)])
    return torch.tensor(rows, dtype=torch.float64)


def assert_naive(model: Any, vocab: int = VOCAB) -> None:
    input_ids = torch.randint(0, vocab, (2, 37))
    expected = naive(model, input_ids)
    assert expected.std() > 0.3, "a model that predicts nothing tests nothing"
    torch.testing.assert_close(token_nll(model, input_ids).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_equals_a_plain_loop(model_type: str, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "CHUNK_ROWS", 1)
    monkeypatch.setattr(MODULE, "CHUNK_ELEMENTS", 5 * VOCAB)
    assert_naive(tiny(model_type, std=0.5, tie_word_embeddings=tied))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_equals_a_plain_loop_on_patched_models(model_type: str, scheme: str) -> None:
    assert_naive(hp.patch(tiny(model_type), SCHEMES[scheme]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_equals_a_plain_loop_in_other_dtypes(model_type: str, dtype: torch.dtype) -> None:
    model = tiny(model_type).to(dtype)
    assert_naive(model)
    nll = token_nll(model, torch.randint(0, VOCAB, (1, 5)))
    assert nll.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("kind", OTHERS)
def test_equals_a_plain_loop_whatever_surrounds_the_head(kind: str) -> None:
    assert_naive(other(*OTHERS[kind]), vocab=50)


@pytest.mark.parametrize("scheme", [None, "rope", "alibi"])
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_padding_changes_nothing_and_is_not_a_number(model_type: str, scheme: str | None) -> None:
    model = tiny(model_type)
    if scheme is not None:
        hp.patch(model, scheme)
    alone = torch.randint(0, VOCAB, (1, 20))
    expected = token_nll(model, alone)[0]
    pads = torch.zeros(7, dtype=torch.long)
    input_ids = torch.stack([torch.cat([pads, alone[0]]), torch.cat([alone[0], pads])])
    mask = torch.ones_like(input_ids)
    mask[0, :7] = mask[1, 20:] = 0
    nll = token_nll(model, input_ids, attention_mask=mask)
    torch.testing.assert_close(nll[0, 7:], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nll[1, :19], expected, rtol=1e-5, atol=1e-5)
    assert nll[0, :7].isnan().all()
    assert nll[1, 19:].isnan().all()


@pytest.mark.parametrize("last", [1, 7, 19])
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_the_last_tokens_alone(model_type: str, last: int) -> None:
    model, input_ids = tiny(model_type), torch.randint(0, VOCAB, (3, 20))
    torch.testing.assert_close(token_nll(model, input_ids, last=last), token_nll(model, input_ids)[:, -last:])
    mask = torch.ones_like(input_ids)
    mask[0, :15] = mask[1, 18:] = 0
    found, whole = (token_nll(model, input_ids, mask, last=tokens) for tokens in (last, None))
    torch.testing.assert_close(found, whole[:, -last:], equal_nan=True)


def test_what_is_in_front_of_the_last_tokens_costs_no_head() -> None:
    model = tiny("llama")
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _, args, logits: rows.append(logits.shape[:-1].numel()))
    token_nll(model, torch.randint(0, VOCAB, (2, 60)), last=5)
    assert max(rows) == 2 * 5


@pytest.mark.parametrize("last", [0, 9, -1])
def test_refuses_last_tokens_with_none_in_front(last: int) -> None:
    with pytest.raises(hp.EvaluationError, match="last is from 1 to 8"):
        token_nll(tiny("llama"), torch.randint(0, VOCAB, (1, 9)), last=last)


class Largest(TorchDispatchMode):
    """Remembers how many elements the largest tensor had that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *(tensor.numel() for tensor in tensors)])
        return result


def test_logits_of_all_positions_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", vocab_size=2048, max_position_embeddings=512)
    input_ids = torch.randint(0, 2048, (1, 256))
    weights = 2048 * 32
    monkeypatch.setattr(MODULE, "CHUNK_ROWS", 1)
    monkeypatch.setattr(MODULE, "CHUNK_ELEMENTS", weights)
    with Largest() as whole:
        model(input_ids)
    with Largest() as chunked:
        token_nll(model, input_ids)
    assert whole.elements == 256 * 2048  # the watch sees them
    assert chunked.elements == weights


def test_leaves_the_model_as_it_was() -> None:
    model = tiny("gpt2", resid_pdrop=0.5).train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    input_ids = torch.randint(0, VOCAB, (1, 30))
    first = token_nll(model, input_ids)
    assert torch.equal(first, token_nll(model, input_ids))  # no dropout
    assert not first.requires_grad
    with pytest.raises(hp.EvaluationError):
        token_nll(model, input_ids + VOCAB)
    assert [module.training for module in model.modules()] == modes
    assert not model.lm_head._forward_pre_hooks
    assert model(input_ids).logits.shape == (1, 30, VOCAB)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: tiny("bert"), "BertForMaskedLM is no causal language model"),
        (lambda: hp.patch(tiny("bert"), "alibi"), "no causal language model"),
        (lambda: other("bert", SMALL), "BertLMHeadModel is no causal language model"),
        (
            lambda: other("xlnet", {**IDS, "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 32}),
            "no causal language",
        ),
        (lambda: tiny("llama", is_causal=False), "no causal language model"),
        (lambda: tiny("llama", head="sequence"), "has no output embeddings"),
        (lambda: tiny("llama", head="base"), "has no output embeddings"),
        (lambda: tiny("gpt2"), "65 tokens are more than the 64 positions .* extend"),
        (lambda: hp.patch(tiny("llama"), "learned"), "65 tokens are more than the 64 positions"),
        (lambda: other(*OTHERS["projected before"]), "65 tokens are more than the 40 positions"),
    ],
)
def test_refuses_models_that_cannot_give_it(model: Any, message: str) -> None:
    with pytest.raises(hp.EvaluationError, match=message):
        token_nll(model(), torch.randint(0, 50, (1, 65)))


def test_refuses_a_head_that_it_does_not_know() -> None:
    class Tempered(transformers.LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 1.01
            return output

    model = Tempered(tiny("llama").config)
    with pytest.raises(hp.EvaluationError, match="not known here"):
        token_nll(model, torch.randint(0, VOCAB, (1, 9)))


@pytest.mark.parametrize(
    ("input_ids", "mask", "message"),
    [
        (torch.zeros(1, 1, dtype=torch.long), None, "at least 2"),
        (torch.zeros(9, dtype=torch.long), None, r"not torch.int64 \[9\]"),
        (torch.zeros(1, 9), None, "whole numbers"),
        (torch.full((1, 9), VOCAB), None, "vocabulary of 64"),
        (torch.full((1, 9), -100), None, "Token ids from -100"),
        (torch.zeros(1, 9, dtype=torch.long), torch.ones(1, 8), "attention_mask"),
    ],
)
def test_refuses_input_that_is_none(input_ids: Tensor, mask: Tensor | None, message: str) -> None:
    with pytest.raises(hp.EvaluationError, match=message):
        token_nll(tiny("llama"), input_ids, mask)


def test_takes_whole_numbers_of_every_kind_and_wrapped_models() -> None:
    model, input_ids = hp.patch(tiny("llama"), "alibi"), torch.randint(0, VOCAB, (2, 9))
    expected = token_nll(model, input_ids)
    for dtype in (torch.int16, torch.uint8, torch.int32):
        torch.testing.assert_close(token_nll(model, input_ids.to(dtype)), expected, rtol=0, atol=0)
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    torch.testing.assert_close(token_nll(wrapped, input_ids), expected)
    from hf_posswap.evaluation.results import subject_of

    assert (subject_of(wrapped).label, subject_of(wrapped).architecture) == ("alibi", "LlamaForCausalLM")
