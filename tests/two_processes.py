"""What `test_running.py` starts in two processes: a measurement whole, resumed, and with an error in one of them."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tiny import VOCAB, tiny

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.running import Run, run_items
from hf_posswap.evaluation.token_nll import token_nll

SIZES = (12, 40, 7, 33, 21, 18, 9)


def measured(path: Path | None = None, *, fails_at: int = -1, interrupt: type[BaseException] = ValueError, **run: Any):
    """The likelihoods of some documents, and the items that this process measured itself; `fails_at` raises."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    documents = [torch.randint(0, VOCAB, (1, size), generator=generator) for size in SIZES]
    model, here = tiny("llama"), []

    def measure(i: int) -> list[float]:
        if i == fails_at:
            raise interrupt(f"item {i}")
        here.append(i)
        return token_nll(model, documents[i])[0].tolist()

    done = run_items(measure, SIZES, model=model, settings={"measurement": "sample"}, state=path, **run)
    return done, here


def facts(done: Run, here: list[int]) -> dict[str, Any]:
    return {"values": done.values, "here": here, "processes": done.cost.processes}


def main(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    found = {"whole": facts(*measured(accelerator=accelerator))}
    found["resumed"] = facts(*measured(folder / "interrupted", accelerator=accelerator))
    try:
        measured(folder / "failed", fails_at=2, accelerator=accelerator)
    except (EvaluationError, ValueError) as error:
        found["failed"] = {"error": f"{type(error).__name__}: {error}"}
    try:
        missing = folder / "missing" / "state" if accelerator.is_main_process else folder / "there"
        measured(missing, accelerator=accelerator)
    except EvaluationError as error:
        found["refused"] = {"error": str(error)}
    (folder / f"found.{accelerator.process_index}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
