"""Peak memory: of the process where the system tells it, None elsewhere."""

from pathlib import Path

import pytest
import torch

from hf_posswap.evaluation import memory
from hf_posswap.evaluation.memory import peak_memory

MEBI = 2**20
knows = pytest.mark.skipif(not memory.RESET.exists(), reason="this system does not tell the peak of a process")


@knows
def test_the_peak_is_of_the_block_and_not_of_what_was_before() -> None:
    torch.ones(100 * MEBI // 4).sum()  # freed before
    with peak_memory("cpu") as peak:
        assert peak.bytes is None
        torch.ones(40 * MEBI // 4).sum()
    assert peak.bytes is not None
    assert 39 * MEBI < peak.bytes < 60 * MEBI


@pytest.mark.parametrize(("name", "content"), [("RESET", None), ("STATUS", None), ("STATUS", "Name: x"),
                                               ("STATUS", "VmRSS: many kB\nVmHWM:")])  # fmt: skip
def test_systems_that_do_not_tell(name: str, content: str | None, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "folder" / "file"
    if content is not None:
        file.parent.mkdir()
        file.write_text(content)
    monkeypatch.setattr(memory, name, file)
    with peak_memory("cpu") as peak:
        pass
    assert peak.bytes is None


def test_other_devices_have_none() -> None:
    with peak_memory("meta") as peak:
        pass
    assert peak.bytes is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_counts_what_was_allocated() -> None:
    kept = torch.ones(MEBI, device="cuda")
    with peak_memory(kept.device) as peak:
        torch.ones(10 * MEBI, device="cuda").sum()
    assert peak.bytes is not None
    assert 40 * MEBI <= peak.bytes < 44 * MEBI
