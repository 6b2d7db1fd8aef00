"""The same word and byte perplexity as lm-evaluation-harness gives, in its own protocol, on the same saved model."""

import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import hf_posswap as hp
from hf_posswap.evaluation import LengthPerplexity, perplexity, token_nll
from hf_posswap.evaluation.documents import Document

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports are not ours to mend
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

MAX_LENGTH = 24
TEXTS = [
    "Positions are read by a model in windows. Träume und Brücken: words of more bytes than letters!\n",
    "A second text, shorter than the first one;\tone tab, two  spaces.  ",
]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = tiny("llama", vocab_size=258, bos_token_id=0, eos_token_id=1)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def harness(folder: Path, texts: list[str]) -> dict[str, float]:
    """Its figures, from its own reading of the folder to its own sums."""
    metrics = ("word_perplexity", "byte_perplexity", "bits_per_byte")
    config: dict[str, Any] = {"task": "texts", "output_type": "loglikelihood_rolling", "test_split": "test"}
    config |= {"custom_dataset": lambda **_: {"test": Dataset.from_dict({"text": texts})}}
    config |= {"doc_to_text": "", "doc_to_target": "text", "metric_list": [{"metric": name} for name in metrics]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = HFLM(str(folder), device="cpu", dtype="float32", max_length=MAX_LENGTH, batch_size=2)
        results = evaluate(lm, {"texts": ConfigurableTask(config=config)}, bootstrap_iters=0)["results"]["texts"]
    return {name: results[f"{name},none"] for name in metrics}


def read(text: str) -> Document:
    ids = torch.tensor(byte_tokenizer()(text)["input_ids"])
    assert len(ids) == len(text.encode())
    return Document(ids, byte_ends=torch.arange(1, len(text.encode()) + 1))


def likelihood(model: Any, documents: list[Document]) -> LengthPerplexity:
    return perplexity(model, documents, [MAX_LENGTH + 1], stride=MAX_LENGTH, bos="document").lengths[0]


def test_whole_windows_give_the_same_word_and_byte_perplexity(saved: Path) -> None:
    texts = [text.encode()[: len(text.encode()) // MAX_LENGTH * MAX_LENGTH].decode() for text in TEXTS]
    found, expected = likelihood(hp.load(saved), [read(text) for text in texts]), harness(saved, texts)
    words = sum(len(re.split(r"\s+", text)) for text in texts)  # as it counts them
    assert (found.tokens, found.windows) == (6 * MAX_LENGTH, 6)
    assert math.exp(sum(found.document_nll) / words) == pytest.approx(expected["word_perplexity"], rel=1e-5)
    assert found.bits_per_byte is not None
    assert 2**found.bits_per_byte == pytest.approx(expected["byte_perplexity"], rel=1e-6)
    assert found.bits_per_byte == pytest.approx(expected["bits_per_byte"], rel=1e-6)


def test_its_last_window_reaches_back_where_ours_is_short(saved: Path) -> None:
    model, documents = hp.load(saved), [read(text) for text in TEXTS]
    whole = [len(document) // MAX_LENGTH * MAX_LENGTH for document in documents]
    found = likelihood(model, [Document(d.input_ids[:n]) for d, n in zip(documents, whole, strict=True)])
    rest = [
        token_nll(model, document.input_ids[None, -MAX_LENGTH - 1 :], last=len(document) - n).sum().item()
        for document, n in zip(documents, whole, strict=True)
    ]
    bits = (sum(found.document_nll) + sum(rest)) / math.log(2) / sum(map(len, documents))
    expected = harness(saved, TEXTS)["bits_per_byte"]
    assert min(rest) > 0
    assert bits == pytest.approx(expected, rel=1e-6)
    assert likelihood(model, documents).bits_per_byte != pytest.approx(expected, rel=1e-4)
