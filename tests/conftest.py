"""Fresh random inputs in every test, the same in every run; and the command line within this process."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command line with exit code, stdout and stderr."""
    from hf_posswap.cli import main

    def call(*argv: Any) -> Any:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def refused(run: Callable[..., Any]) -> Callable[..., str]:
    """Asserts exit code 2, nothing on stdout and one line on stderr, which it returns."""

    def call(*argv: Any) -> str:
        done = run(*argv)
        assert (done.code, done.out) == (2, ""), done
        assert done.err.startswith("hf-posswap: ")
        assert done.err.count("\n") == 1
        return done.err

    return call


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Stock checkpoints of tiny models that read bytes, with their tokenizer; no test may write there."""
    from tiny import tiny
    from transformers import ByT5Tokenizer

    made: dict[str, Path] = {}

    def at(model_type: str = "llama") -> Path:
        if model_type not in made:
            made[model_type] = tmp_path_factory.mktemp(model_type) / "bytes"
            tiny(model_type, vocab_size=384).save_pretrained(made[model_type])
            mask = {"mask_token": "<extra_id_0>"} if model_type == "bert" else {}
            ByT5Tokenizer(**mask).save_pretrained(made[model_type])
        return made[model_type]

    return at


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with three texts and one that is too short for most."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, length in {"a": 300, "b": 40, "c": 270, "d": 410}.items():
        letters = torch.randint(ord("a"), ord("z"), (length,)).tolist()
        (folder / f"{name}.txt").write_bytes(bytes(letters))
    return folder
