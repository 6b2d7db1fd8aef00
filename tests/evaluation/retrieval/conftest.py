"""Tokenizers of every make that matters here, built on the spot."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from hf_posswap.evaluation.retrieval.haystacks import FILLER
from hf_posswap.evaluation.retrieval.pieces import NAMES

TEXT = [FILLER, *(f"The pass key of {name} is" for name in NAMES), "\nVAR x = VAR y\n"] * 3
DIGITS = " 0 1 2 3 4 5 6 7 8 9"


def bytes_() -> Any:
    """Every byte a token."""
    return ByT5Tokenizer()


def gpt2_like() -> Any:
    """Spaces glued to what follows, digits too; a BOS that the tokenizer does not put."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, special_tokens=["<bos>"])
    tokenizer.train_from_iterator([*TEXT, *[DIGITS] * 50], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>")


def llama2_like() -> Any:
    """A space in front of every text, digits apart from it, and a BOS that the tokenizer puts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"], max_token_length=8)
    tokenizer.train_from_iterator([*TEXT, DIGITS, ".?-,"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def of_words(*words: str) -> Any:
    """Knows these words; all others are one and the same token."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


MAKES = {"bytes": bytes_, "gpt2": gpt2_like, "llama2": llama2_like}


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Any]:
    """One of every make."""
    return {name: make() for name, make in MAKES.items()}


@pytest.fixture(params=MAKES)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Any]) -> Any:
    return tokenizers[request.param]


@pytest.fixture(scope="session")
def byte_tokenizer(tokenizers: dict[str, Any]) -> Any:
    return tokenizers["bytes"]


@pytest.fixture
def letter_tokenizer() -> Any:
    """No digits."""
    return of_words("is", "The", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@pytest.fixture
def word_tokenizer() -> Any:
    """Neither digits nor letters."""
    return of_words("is", "The")
