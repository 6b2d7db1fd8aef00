"""Documents from files, folders and data sets, in order and by name; and what is none, in one sentence."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

import hf_posswap as hp
from hf_posswap.evaluation import Document, read_documents
from hf_posswap.evaluation.sources import files

TEXTS = ["the cats", "", "a naïve 🙂\r\ndog"]
ROWS = [{"id": i, "text": text, "other": text.upper()} for i, text in enumerate(TEXTS)]


@pytest.fixture
def texts(tokenizer: Any) -> Callable[[list[Document]], dict[str, str]]:
    """The texts of documents by their names, from their tokens; with the bytes that they are said to have."""

    def of(documents: list[Document]) -> dict[str, str]:
        found = {each.name: tokenizer.decode(each.input_ids.tolist()) for each in documents}
        ends = [int(each.byte_ends[-1]) if len(each) else 0 for each in documents]
        assert ends == [len(text.encode()) for text in found.values()]
        return found

    return of


def write_json_lines(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", encoding="utf-8")


def write_parquet(path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=2)


WRITERS = {"a.jsonl": (write_json_lines, 1), "a.NDJSON": (write_json_lines, 1), "a.parquet": (write_parquet, 0)}


@pytest.mark.parametrize("content", [b"the\r\ncats\n\n", b"\xef\xbb\xbfthe cats", "naïve 🙂 \u2028".encode(), b" "])
def test_a_text_file(content: bytes, tokenizer: Any, texts: Any, tmp_path: Path) -> None:
    (tmp_path / "book").write_bytes(content)
    found = texts(read_documents(tmp_path / "book", tokenizer))
    assert found == {"book": content.decode("utf-8-sig")}
    assert texts(read_documents(str(tmp_path / "book"), tokenizer)) == found


@pytest.mark.parametrize("name", WRITERS)
def test_rows(name: str, tokenizer: Any, texts: Any, tmp_path: Path) -> None:
    write, first = WRITERS[name]
    write(tmp_path / name)
    found = texts(read_documents(tmp_path / name, tokenizer))
    assert found == {f"{name}:{first + i}": text for i, text in enumerate(TEXTS)}
    other = texts(read_documents(tmp_path / name, tokenizer, field="other", most=1))
    assert other == {f"{name}:{first}": "THE CATS"}


def test_no_more_is_read_than_asked_for(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\nno JSON')
    assert len(read_documents(tmp_path / "a.jsonl", tokenizer, most=2)) == 2
    assert len(read_documents((text for text in ("a", "b", None)), tokenizer, most=2)) == 2
    with pytest.raises(hp.EvaluationError, match=r"a.jsonl:3 is no JSON"):
        read_documents(tmp_path / "a.jsonl", tokenizer)


def test_a_folder_by_name(tokenizer: Any, texts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("b/c.md", "a.txt", "b/.hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"in {name}", encoding="utf-8")
    write_json_lines(tmp_path / "b" / "rows.jsonl")
    (tmp_path / "empty.txt").write_text("")
    found = texts(read_documents(tmp_path, tokenizer))
    rows = {f"b/rows.jsonl:{i}": text for i, text in enumerate(TEXTS, start=1)}
    assert list(found.items()) == list({"a.txt": "in a.txt", "b/c.md": "in b/c.md", **rows, "empty.txt": ""}.items())
    assert not caplog.records


def test_files_of_a_folder_that_are_no_text_are_named(
    tokenizer: Any, texts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_bytes("ü".encode() * files.START)  # cut within a character where its start ends
    (tmp_path / "odd.txt").write_bytes(b"x" + "ü".encode() * files.START)
    for name, content in (("b.png", b"\x89PNG"), ("c.bin", b"a\0b"), ("d.json", b"{}"), ("e.csv", b"a,b")):
        (tmp_path / name).write_bytes(content)
    assert list(texts(read_documents(tmp_path, tokenizer))) == ["a.txt", "odd.txt"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{tmp_path}: left out 4 of 6 files, which are no UTF-8 text, .jsonl, .parquet, .npy or .safetensors: "
        "b.png, c.bin, d.json, e.csv"
    )


def test_only_some_of_many_are_named(tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("the")
    for i in range(12):
        (tmp_path / f"{i:02}.bin").write_bytes(b"\xff")
    read_documents(tmp_path, tokenizer)
    assert caplog.records[0].getMessage().endswith("08.bin, 09.bin and 2 more")


def test_token_files(tmp_path: Path) -> None:
    rows = {"b": torch.tensor([3, 1]), "a": torch.tensor([5, 6, 7], dtype=torch.int32)}
    save_file(rows, tmp_path / "a.safetensors")
    np.save(tmp_path / "b.npy", np.array([1, 65000], dtype=np.uint16))
    np.save(tmp_path / "c.npy", np.array([1, 2], dtype=">i4"))
    found = {each.name: each for each in read_documents(tmp_path)}
    expected = {"a.safetensors:a": [5, 6, 7], "a.safetensors:b": [3, 1], "b.npy": [1, 65000], "c.npy": [1, 2]}
    assert {name: each.input_ids.tolist() for name, each in found.items()} == expected
    assert all(each.input_ids.dtype == torch.long and each.byte_ends is None for each in found.values())


def test_what_a_program_has(tokenizer: Any) -> None:
    ids, known = torch.tensor([1, 2]), Document(torch.tensor([4]), "mine")
    found = read_documents(["the cats", ids, known], tokenizer)
    assert [each.name for each in found] == ["text 0", "tokens 1", "mine"]
    assert found[1].input_ids is ids
    assert found[2] is known
    assert [len(each) for each in read_documents(torch.zeros(3, 5, dtype=torch.long))] == [5, 5, 5]


def test_saved_data_sets(tokenizer: Any, texts: Any, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows, test=rows.select([2])).save_to_disk(tmp_path / "two")
    datasets.DatasetDict(test=rows).save_to_disk(tmp_path / "single")
    every = {f"one:{i}": text for i, text in enumerate(TEXTS)}
    assert texts(read_documents(tmp_path / "one", tokenizer)) == every
    assert texts(read_documents(tmp_path / "two", tokenizer, split="test")) == {"two:0": TEXTS[2]}
    assert len(read_documents(str(tmp_path / "single"), tokenizer, field="other")) == 3
    with pytest.raises(hp.EvaluationError, match=r"^two has the splits train, test: name one\.$"):
        read_documents(tmp_path / "two", tokenizer)
    with pytest.raises(hp.EvaluationError, match="two has the splits train, test: there is no 'dev'"):
        read_documents(tmp_path / "two", tokenizer, split="dev")
    with pytest.raises(hp.EvaluationError, match="one has no splits, so there is no 'test'"):
        read_documents(tmp_path / "one", tokenizer, split="test")
    with pytest.raises(hp.EvaluationError, match="one:0 has no field 'body'; there are 'id', 'text', 'other'"):
        read_documents(tmp_path / "one", tokenizer, field="body")
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(hp.EvaluationError, match="one cannot be loaded as a data set: "):
        read_documents(tmp_path / "one", tokenizer)


def test_data_sets_by_name_are_streamed(tokenizer: Any, texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, given = [], []

    def rows() -> Any:
        for row in ROWS:
            given.append(row["id"])
            yield row

    def load_dataset(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        return datasets.IterableDatasetDict(test=datasets.IterableDataset.from_generator(rows))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts(read_documents("some/books:plain", tokenizer, most=1)) == {"some/books:plain:0": "the cats"}
    assert given == [0]
    assert len(read_documents("books", tokenizer, split="test")) == 3
    assert asked == [(("some/books", "plain"), {"streaming": True}), (("books", None), {"streaming": True})]


def test_a_name_that_is_nothing(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        hp.EvaluationError, match=r"^no-such/books is no file or folder here, and cannot be .*\.$"
    ) as no:
        read_documents("no-such/books", tokenizer)
    assert "\n" not in str(no.value)
    for path in ("./books", "/no/such", "books.txt", "x/books.jsonl", "a/b/c", "~/no-such-book", Path("books")):
        with pytest.raises(hp.EvaluationError, match="There is no file or folder"):
            read_documents(path, tokenizer)


def write_wrong(folder: Path) -> None:
    line = b'{"text": "the"}\n'
    wrong = {
        "empty.txt": b"",
        "binary.txt": b"the \xff",
        "nul.txt": b"the \0",
        "table.json": b"[]",
        "list.jsonl": line + b"\n[1]\n",
        "broken.jsonl": line + b'{"text": ',
        "latin.jsonl": '{"text": "ü"}'.encode("latin-1"),
        "field.jsonl": line + b'{"body": "the"}\n',
        "number.jsonl": b'{"text": 3}\n',
        "none.jsonl": b"",
        "half.jsonl": b'{"text": "\\ud83d"}\n',
        "no.parquet": b"PAR1",
        "no.npy": b"the",
        "no.safetensors": b"the",
    }
    for name, content in wrong.items():
        (folder / name).write_bytes(content)
    np.save(folder / "float.npy", np.zeros(3))
    np.save(folder / "grid.npy", np.zeros((2, 3), dtype=int))
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    save_file({"x": torch.zeros(3)}, folder / "float.safetensors")
    parquet.write_table(pyarrow.table({"body": ["the"], "n": [1]}), folder / "field.parquet")
    parquet.write_table(pyarrow.table({"text": ["the", None]}), folder / "null.parquet")
    (folder / "nothing").mkdir()
    (folder / "binaries").mkdir()
    (folder / "binaries" / "a.png").write_bytes(b"\x89")


WRONG = {
    "empty.txt": "has no text: every document is empty",
    "binary.txt": r"^binary.txt is no UTF-8 text, see byte 4; what can be read: UTF-8 text, .jsonl",
    "nul.txt": "nul.txt is no text, because it holds a NUL",
    "table.json": "table.json is a table or markup: write it as .jsonl or .parquet",
    "list.jsonl": r"list.jsonl:3 is no JSON object with a text under 'text', but \[1\]",
    "broken.jsonl": r"broken.jsonl:2 is no JSON: ",
    "latin.jsonl": r"latin.jsonl:1 is no JSON: ",
    "field.jsonl": "field.jsonl:2 has no field 'text'; there are 'body'",
    "number.jsonl": "number.jsonl:1: the field 'text' is no text, but 3",
    "none.jsonl": "has no text",
    "half.jsonl": "half.jsonl:1 has a surrogate",
    "no.parquet": "no.parquet is no parquet file, or broken: ",
    "no.npy": "no.npy is no array of token ids, or broken: ",
    "no.safetensors": "no.safetensors is no safetensors file, or broken: ",
    "float.npy": r"float.npy: A document is a tensor of token ids \[length\], not torch.float64 \[3\]",
    "grid.npy": r"grid.npy: A document .* not torch.int64 \[2, 3\]",
    "objects.npy": "objects.npy is no array of token ids",
    "float.safetensors": "float.safetensors:x: A document .* not torch.float32",
    "field.parquet": "field.parquet has no field 'text'; there are 'body', 'n'",
    "null.parquet": "null.parquet:1: the field 'text' is no text, but None",
    "nothing": "nothing has no file of UTF-8 text, .jsonl",
    "binaries": "binaries has no file of UTF-8 text",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_document_is_said_in_a_sentence(name: str, tokenizer: Any, tmp_path: Path) -> None:
    write_wrong(tmp_path)
    with pytest.raises(hp.EvaluationError, match=WRONG[name]) as refused:
        read_documents(tmp_path / name, tokenizer)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("most", [0, -1, 1.5, "3"])
def test_a_number_of_documents_that_is_none(most: Any, tokenizer: Any) -> None:
    with pytest.raises(hp.EvaluationError, match="most is a number of documents from 1 up, or None"):
        read_documents(["a"], tokenizer, most=most)


def test_splits_are_for_data_sets(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the")
    for source in (tmp_path, tmp_path / "a.txt", ["the"]):
        with pytest.raises(hp.EvaluationError, match="splits"):
            read_documents(source, tokenizer, split="test")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "There is no file or folder ''"),
        (None, "not from None"),
        (3, "a path, a name, or a list of texts, not from 3"),
        (b"the", "not int"),
        ([None], "not NoneType"),
        ([], "These documents have no text"),
        (["", ""], "These documents have no text"),
        ([["the"]], "not list"),
    ],
)
def test_what_is_no_source(source: Any, message: str, tokenizer: Any) -> None:
    with pytest.raises(hp.EvaluationError, match=message):
        read_documents(source, tokenizer)


def test_a_file_that_may_not_be_read(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("the")

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(hp.EvaluationError, match=r"a.txt cannot be read: Permission denied\.$"):
        read_documents(tmp_path / "a.txt", tokenizer)


@pytest.mark.parametrize("missing", ["pyarrow", "datasets"])
def test_what_has_to_be_installed(
    missing: str, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, missing, None)
    source = tmp_path / "a.parquet" if missing == "pyarrow" else "some/books"
    with pytest.raises(hp.EvaluationError, match=rf"with {missing}, which is not installed: pip install hf-posswap"):
        read_documents(source, tokenizer)
