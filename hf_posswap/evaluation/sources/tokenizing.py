"""Text to tokens, with the bytes and the words that each token stands for.

A word is a run of letters, digits and their marks, or any other visible character by itself, ideographs and emojis
among them: what BERT's tokenizer splits text into before it looks for pieces, but for symbols outside ASCII, which it
joins to letters. It is defined on characters, so that it is the same for all tokenizers: the `word_ids` of many are
something else, down to one word for a whole text.
"""

import unicodedata
from typing import Any

import numpy as np
import torch

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.sources.files import Text

UNICODE = 0x110000
SPACE, ALONE, JOINED = 0, 1, 2


def tokenized(text: Text, tokenizer: Any, add_special_tokens: bool = False) -> Document:
    """The tokens of a text, however many.

    Raises:
        EvaluationError: there is no tokenizer, or the text is none that can be written as UTF-8.
    """
    if tokenizer is None:
        raise EvaluationError(f"{text.name} is text: give the model's tokenizer with it.")
    options = {"return_offsets_mapping": True} if tokenizer.is_fast else {}
    characters = _characters(text)
    # Not verbose: the tokenizer would warn of texts that are longer than the model.
    encoded = tokenizer(text.text, add_special_tokens=add_special_tokens, verbose=False, **options)
    ids = torch.tensor(encoded["input_ids"], dtype=torch.long)
    bytes_before = np.concatenate([[0], _utf8_lengths(characters).cumsum()])
    if tokenizer.is_fast:
        starts, stops = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2).T
        byte_ends = np.maximum.accumulate(bytes_before[stops])  # special tokens stand for characters 0 to 0
    elif len(ids) == bytes_before[-1]:
        starts = np.repeat(np.arange(len(characters)), _utf8_lengths(characters))
        stops, byte_ends = starts + 1, np.arange(1, len(ids) + 1)
    else:
        return Document(ids, text.name)
    words = _words(characters, starts, stops)
    return Document(ids, text.name, torch.from_numpy(byte_ends), torch.from_numpy(words))


def _characters(text: Text) -> Any:
    """Their code points `[C]`."""
    try:
        return np.frombuffer(text.text.encode("utf-32-le"), dtype=np.uint32)
    except UnicodeEncodeError as error:
        raise EvaluationError(
            f"{text.name} has a surrogate, half of a character, at {error.start}: that is no text."
        ) from error


def _utf8_lengths(characters: Any) -> Any:
    return 1 + (characters >= 0x80).astype(np.int64) + (characters >= 0x800) + (characters >= 0x10000)


def _words(characters: Any, starts: Any, stops: Any) -> Any:
    """The word of the first visible character of each token, `[L]`; -1 where there is none."""
    kinds = _kinds(characters)
    begins = (kinds == ALONE) | ((kinds == JOINED) & (np.concatenate([[SPACE], kinds[:-1]]) != JOINED))
    numbers = np.concatenate([begins.cumsum() - 1, [-1]])
    places = np.where(kinds == SPACE, len(characters), np.arange(len(characters)))
    next_visible = np.minimum.accumulate(np.concatenate([places, [len(characters)]])[::-1])[::-1]
    first = next_visible[starts]
    return np.where(first < stops, numbers[first], -1)


def _kinds(characters: Any) -> Any:
    table = np.zeros(UNICODE, dtype=np.int8)
    table[characters] = 1
    for point in np.flatnonzero(table):
        table[point] = _kind(chr(point))
    return table[characters]


def _kind(character: str) -> int:
    if character.isspace():
        return SPACE
    joined = character.isalnum() or unicodedata.category(character).startswith("M")
    return JOINED if joined and not unicodedata.name(character, "").startswith("CJK") else ALONE
