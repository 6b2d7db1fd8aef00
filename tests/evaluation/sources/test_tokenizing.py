"""The bytes and words that tokens stand for, against the text itself."""

import logging
import re
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer

import hf_posswap as hp
from hf_posswap.evaluation import Document, read_documents

NAMES = ("byte_level", "trimmed", "one_word", "word_piece", "bytes")
TEXTS = (
    "the cats read",
    "  the  cats\tread \n\n a book. ",
    "don't read: naïve cafés, 12 cats' books!",
    "Die Katzen: über 猫猫 🙂🙂 and 🙂the e\u0301",
    "one\r\ntwo\r\nthe cats\r\n",
    "_a_b 3.14 (x)",
    " ",
)
every_tokenizer = pytest.mark.parametrize("name", NAMES)
every_text = pytest.mark.parametrize("text", TEXTS)


def read(text: str, tokenizer: Any, **options: Any) -> Document:
    return read_documents([text, "x"], tokenizer, **options)[0]


def words_of(text: str) -> list[tuple[int, int]]:
    """Where words begin and end, by a regular expression."""
    found = re.finditer(r"[^\W_\u4e00-\u9fff][^\W_\u4e00-\u9fff\u0301]*\u0301?|\u4e00|[^\s]", text)
    return [match.span() for match in found]


def spans(text: str, tokenizer: Any, ids: torch.Tensor) -> list[tuple[int, int]]:
    """The characters of each token, from one that is asked token by token."""
    if tokenizer.is_fast:
        return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]


@every_text
@every_tokenizer
def test_bytes_against_the_text(name: str, text: str, tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(name)
    document = read(text, tokenizer)
    seen, expected = 0, []
    for number, (_, stop) in enumerate(spans(text, tokenizer, document.input_ids), start=1):
        seen = max(seen, stop)
        expected.append(number if name == "bytes" else len(text[:seen].encode()))
    assert document.byte_ends.tolist() == expected
    if name in ("byte_level", "one_word", "bytes"):
        assert expected[-1] == len(text.encode()), "these tokenizers leave nothing out"


def test_bytes_by_hand(tokenizer_of: Any) -> None:
    document = read("the 🙂", tokenizer_of("byte_level"))
    assert document.byte_ends[-1] == 8
    assert document.byte_ends[0] == 3
    ids = tokenizer_of("byte_level").convert_ids_to_tokens(document.input_ids.tolist())
    assert ids[0] == "the"
    assert read("é!", tokenizer_of("bytes")).byte_ends.tolist() == [1, 2, 3]
    assert read("Ünd", tokenizer_of("word_piece")).byte_ends[-1] == 4, "bytes of the text, not of what it became"


@every_text
@every_tokenizer
def test_words_against_the_text(name: str, text: str, tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(name)
    document, borders = read(text, tokenizer), words_of(text)
    for (start, stop), word in zip(spans(text, tokenizer, document.input_ids), document.words.tolist(), strict=True):
        visible = [i for i in range(start, stop) if not text[i].isspace()]
        if not visible:
            assert word == -1
        else:
            assert borders[word][0] <= visible[0] < borders[word][1]
    if text.strip():
        numbers = [word for word in document.words.tolist() if word >= 0]
        assert numbers == sorted(numbers)
        assert numbers[-1] == len(borders) - 1


@every_text
def test_words_are_those_of_berts_tokenizer(text: str, tokenizer_of: Any) -> None:
    tokenizer, text = tokenizer_of("word_piece"), text.replace("🙂", "")  # which it joins to letters
    own = tokenizer(text, add_special_tokens=False).word_ids()
    assert read(text, tokenizer).words.tolist() == own


def test_word_ids_of_other_tokenizers_are_no_words(tokenizer_of: Any) -> None:
    """Why words are not taken from there."""
    tokenizer, text = tokenizer_of("one_word"), "the cats read"
    assert set(tokenizer(text, add_special_tokens=False).word_ids()) == {0}
    assert set(read(text, tokenizer).words.tolist()) - {-1} == {0, 1, 2}


@pytest.mark.parametrize("name", ["word_piece"])
def test_special_tokens_stand_for_nothing(name: str, tokenizer_of: Any) -> None:
    plain, special = (read("the cats", tokenizer_of(name), add_special_tokens=add) for add in (False, True))
    assert special.input_ids[1:-1].tolist() == plain.input_ids.tolist()
    assert special.byte_ends.tolist() == [0, *plain.byte_ends.tolist(), plain.byte_ends[-1]]
    assert special.words.tolist() == [-1, *plain.words.tolist(), -1]


def test_bytes_are_not_known_of_other_slow_tokenizers() -> None:
    tokenizer = ByT5Tokenizer()
    with_end = read("the", tokenizer, add_special_tokens=True)
    assert len(with_end) == 4
    assert (with_end.byte_ends, with_end.words) == (None, None)


@pytest.mark.parametrize("name", ["byte_level", "bytes"])
def test_texts_longer_than_the_model_are_read_whole_and_in_silence(
    name: str, tokenizer_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tokenizer_of(name)
    logging.getLogger("transformers").addHandler(caplog.handler)
    document = read("the cats " * 300, tokenizer)
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert document.byte_ends[-1] == 2700
    assert document.words[document.words >= 0][-1] == 599
    assert not caplog.records


@every_tokenizer
def test_empty_texts_are_documents_without_tokens(name: str, tokenizer_of: Any) -> None:
    empty = read("", tokenizer_of(name))
    assert (len(empty), empty.input_ids.dtype) == (0, torch.long)
    assert len(empty.byte_ends) == len(empty.words) == 0


def test_half_a_character_is_refused(tokenizer: Any) -> None:
    with pytest.raises(hp.EvaluationError, match="text 0 has a surrogate, half of a character, at 3"):
        read("the\ud83d", tokenizer)


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(hp.EvaluationError, match="text 0 is text: give the model's tokenizer"):
        read_documents(["a"])
