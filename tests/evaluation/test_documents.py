"""Documents: what may be one, which are long enough, and fingerprints of all that values can depend on."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import Document
from hf_posswap.evaluation.documents import as_documents, fingerprint_of_documents, long_enough


def row(length: int) -> Tensor:
    return torch.randint(0, 50, (length,))


def test_tensors_stand_for_documents() -> None:
    ids, known = row(3), Document(row(4), "name")
    found = as_documents([ids, known])
    assert found[0].input_ids is ids
    assert (found[0].name, found[0].byte_ends, found[0].words) == ("", None, None)
    assert found[1] is known
    assert [len(each) for each in as_documents(torch.zeros(2, 5, dtype=torch.int32))] == [5, 5]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (torch.zeros(3), r"torch.float32 \[3\]"),
        (torch.zeros(3, dtype=torch.bool), r"torch.bool \[3\]"),
        (torch.zeros(1, 3, dtype=torch.long), r"torch.int64 \[1, 3\]"),
        ([1, 2], "list"),
        ("text", "str"),
    ],
)
def test_what_is_no_row_of_tokens_is_refused(wrong: object, what: str) -> None:
    with pytest.raises(hp.EvaluationError, match=rf"not {what}; read_documents makes them of text\.$"):
        as_documents([row(2), wrong])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["byte_ends", "words"])
def test_what_is_known_is_known_of_every_token(name: str) -> None:
    with pytest.raises(hp.EvaluationError, match=rf"one of {name} for every token, 4 here, not \[3\]"):
        replace(Document(row(4)), **{name: row(3)})


def test_short_ones_are_skipped_and_reported() -> None:
    documents = [row(8), Document(row(3), "short"), row(9), row(0)]
    kept, skipped = long_enough(documents, 8)
    assert [each.input_ids is source for each, source in zip(kept, documents[::2], strict=True)] == [True, True]
    assert skipped == (1, 3)
    with pytest.raises(hp.EvaluationError, match=r"None of the 4 documents has 10 tokens \(the longest has 9\)"):
        long_enough(documents, 10)
    with pytest.raises(hp.EvaluationError, match="None of the 0 documents"):
        long_enough([], 1)


def test_fingerprints_are_of_tokens_bytes_and_words() -> None:
    ids, ends, words = row(4), torch.arange(4), torch.zeros(4, dtype=torch.long)
    whole = Document(ids, "a", ends, words)
    same = [whole, replace(whole, name="b"), replace(whole, input_ids=ids.to(torch.int16))]
    assert len({fingerprint_of_documents([each]) for each in same}) == 1
    others = [[replace(whole, input_ids=ids + 1)], [replace(whole, byte_ends=None)], [replace(whole, words=None)],
              [replace(whole, words=None, byte_ends=words)], [whole, whole], [Document(ids)], []]  # fmt: skip
    split = [Document(ids[:2]), Document(ids[2:])]
    assert len({fingerprint_of_documents(each) for each in [[whole], *others, split]}) == 9
