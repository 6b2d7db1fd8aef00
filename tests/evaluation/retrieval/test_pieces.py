"""Pieces: keys of single tokens, the same wherever they stand, and the BOS."""

from collections import Counter
from random import Random
from typing import Any

import pytest

import hf_posswap as hp
from hf_posswap.evaluation.retrieval.pieces import Pieces


def test_keys_are_digits_whatever_the_tokenizer(tokenizer: Any) -> None:
    pieces = Pieces(tokenizer, 5)
    assert pieces.alphabet_name == "digits"
    assert [tokenizer.decode([token]).strip() for token in pieces.alphabet] == list("0123456789")
    (key,) = pieces.keys(Random(1), 1)
    text = tokenizer.decode(pieces.before_key("The pass key is") + key)
    assert text.replace(" ", "").endswith("Thepasskeyis" + tokenizer.decode(key).replace(" ", ""))
    assert len(key) == 5


def test_the_space_belongs_to_the_key_or_to_what_stands_before_it(tokenizers: dict[str, Any]) -> None:
    glued, apart = Pieces(tokenizers["gpt2"], 3), Pieces(tokenizers["llama2"], 3)
    assert [tokenizers["gpt2"].decode([token]) for token in glued.alphabet] == [f" {digit}" for digit in "0123456789"]
    assert tokenizers["gpt2"].decode(glued.before_key("VAR x =")) == "VAR x ="
    assert tokenizers["llama2"].convert_ids_to_tokens(list(apart.alphabet)) == list("0123456789")
    assert tokenizers["llama2"].convert_ids_to_tokens(apart.before_key("VAR x ="))[-1][-1] == "▁"


def test_keys_differ_and_are_uniform(byte_tokenizer: Any) -> None:
    keys = Pieces(byte_tokenizer, 2).keys(Random(2), 100)
    assert len({*map(tuple, keys)}) == 100  # all there are
    digits = Counter(token for key in Pieces(byte_tokenizer, 4).keys(Random(3), 2500) for token in key)
    assert len(digits) == 10
    assert all(850 < count < 1150 for count in digits.values())  # five standard deviations
    with pytest.raises(hp.EvaluationError, match="no 101 keys of 2 digits"):
        Pieces(byte_tokenizer, 2).keys(Random(4), 101)


def test_letters_where_digits_are_not_single_tokens(letter_tokenizer: Any, word_tokenizer: Any) -> None:
    pieces = Pieces(letter_tokenizer, 5)
    assert (pieces.alphabet_name, len(pieces.alphabet)) == ("letters", 26)
    with pytest.raises(hp.EvaluationError, match="neither digits nor letters"):
        Pieces(word_tokenizer, 5)


def test_bos_as_the_tokenizer_does_it_or_as_asked(tokenizers: dict[str, Any]) -> None:
    bos = {name: Pieces(each, 5).bos for name, each in tokenizers.items()}
    assert bos == {"bytes": [], "gpt2": [], "llama2": [tokenizers["llama2"].bos_token_id]}
    assert Pieces(tokenizers["gpt2"], 5, bos=True).bos == [tokenizers["gpt2"].bos_token_id]
    assert Pieces(tokenizers["llama2"], 5, bos=False).bos == []
    with pytest.raises(hp.EvaluationError, match="ByT5Tokenizer has no BOS"):
        Pieces(tokenizers["bytes"], 5, bos=True)


def test_refuses_a_key_that_melts_into_the_text(tokenizers: dict[str, Any]) -> None:
    pieces = Pieces(tokenizers["gpt2"], 5)
    pieces.alphabet = [*reversed(pieces.alphabet)]
    with pytest.raises(hp.EvaluationError, match="joins the key"):
        pieces.before_key("The pass key is")
    with pytest.raises(hp.EvaluationError, match="digits is a whole number from 1 up, not 0"):
        Pieces(tokenizers["gpt2"], 0)
