"""Items are measured once, in any number of processes and at any number of goes, and come out the same."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes
from tiny import VOCAB, tiny
from two_processes import SIZES, measured

import hf_posswap as hp
from hf_posswap.evaluation import perplexity, save_results
from hf_posswap.evaluation.running import groups, run_items

ITEMS = list(range(len(SIZES)))


class Counted:
    """A measurement of squares that knows which it made."""

    def __init__(self, count: int = 4, model: Any = None, **settings: Any) -> None:
        self.model = model or tiny("llama")
        self.count, self.made, self.settings = count, [], {"measurement": "squares", **settings}

    def __call__(self, state: Any = None, *, stop_at: int = -1, error: type[BaseException] = KeyboardInterrupt) -> Any:
        self.made = []

        def measure(i: int) -> dict[str, Any]:
            if i == stop_at:
                raise error("stopped")
            self.made.append(i)
            return {"square": i * i, "rest": (0.1 * i, None, float("inf"))}

        return run_items(measure, [1] * self.count, model=self.model, settings=self.settings, state=state).values


EXPECTED = [{"square": i * i, "rest": [0.1 * i, None, float("inf")]} for i in range(4)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_interrupted_run_goes_on(error: type[BaseException], tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    with pytest.raises(error, match="stopped"):
        run(state, stop_at=2, error=error)
    assert run(state) == EXPECTED
    assert run.made == [2, 3]
    assert run(state) == EXPECTED
    assert run.made == []


def test_what_was_measured_is_written_at_once(tmp_path: Path) -> None:
    state, lines = tmp_path / "state", []

    def measure(i: int) -> int:
        lines.append(len(state.read_text().splitlines()))
        return i

    run_items(measure, [1] * 4, model=tiny("llama"), settings={"measurement": "lines"}, state=state)
    assert lines == [1, 2, 3, 4]


@pytest.mark.parametrize(("lost", "again"), [(1, []), (2, [3]), (30, [3]), (70, [3])])
def test_a_line_that_was_cut_off_is_measured_again(lost: int, again: list[int], tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    run(state)
    content = state.read_bytes()
    state.write_bytes(content[:-lost])
    assert run(state) == EXPECTED
    assert run.made == again
    assert run(state) == EXPECTED
    assert run.made == []
    lines = content.splitlines(keepends=True)
    state.write_bytes(b"".join([*lines[:2], b"\0" * 50 + b"\n", lines[3].replace(b'"item"', b'"it\xff"'), lines[4]]))
    assert run(state) == EXPECTED
    assert run.made == [1, 2]


def test_a_header_that_was_cut_off_is_a_state(tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    for start in (b"", b"{", b'{"state": "hf_pos'):
        state.write_bytes(start)
        assert run(state) == EXPECTED
        assert run(state) == EXPECTED
        assert run.made == []


def change_a_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1.01)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "weights": change_a_weight,
    "scheme": lambda model: hp.patch(model, "yarn", factor=2.0),
    "attention": lambda model: model.set_attn_implementation("eager"),
    "config": lambda model: setattr(model.config, "rms_norm_eps", 1e-3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_is_measured_anew(change: str, tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    run(state)
    CHANGES[change](run.model)
    run(state)
    assert run.made == [0, 1, 2, 3]
    run(state)
    assert run.made == []


def test_several_measurements_share_a_state(tmp_path: Path) -> None:
    state, model = tmp_path / "state", tiny("llama")
    runs = [Counted(model=model, length=length) for length in (1, 2)]
    for run in runs:
        with pytest.raises(KeyboardInterrupt):
            run(state, stop_at=3)
    for run in runs:
        assert run(state) == EXPECTED
        assert run.made == [3]


@pytest.mark.parametrize("content", ["A novel.\n", '{"results": []}', "{}\n{}\n", '{"key": "x"}\n', "\n\nA novel"])
def test_a_file_of_something_else_is_refused_and_stays(content: str, tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    state.write_text(content)
    with pytest.raises(hp.EvaluationError, match=r"state is no state of a measurement: remove it"):
        run(state)
    assert run.made == []
    assert state.read_text() == content


@pytest.mark.parametrize("name", ["missing/state", ".", "a\0b", "x" * 300, "file/state"])
def test_a_state_that_cannot_be_written_is_refused_before_work(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = Counted()
    with pytest.raises(hp.EvaluationError, match=r"The state cannot be kept in .* name a file in a folder"):
        run(f"{tmp_path}/{name}")
    assert run.made == []


def test_a_full_disk_is_said_and_what_was_written_counts(tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))
    try:
        with pytest.raises(hp.EvaluationError, match=r"The state cannot be kept in .*: File too large; name a file"):
            run(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert state.stat().st_size == 400
    finished = len(run.made) - 1  # the last was measured, but not written
    assert run(state) == EXPECTED
    assert run.made == ITEMS[finished:4]


def test_an_argument_that_is_none_is_an_error() -> None:
    with pytest.raises(TypeError, match="progres"):
        run_items(int, [1], model=tiny("llama"), settings={"measurement": "x"}, progres=True)  # type: ignore[call-arg]


def test_costs_add_up(tmp_path: Path) -> None:
    run, state = Counted(), tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        run(state, stop_at=3)
    done = run_items(lambda i: i, [1] * 4, model=run.model, settings=run.settings, state=state)
    assert done.cost.seconds == sum(done.seconds)
    written = [json.loads(line)["seconds"] for line in state.read_text().splitlines() if '"item"' in line]
    assert sorted(written) == sorted(done.seconds)
    assert (done.cost.processes, done.cost.device) == (1, "cpu")
    assert done.cost.peak_memory is None or 0 <= done.cost.peak_memory < 2**28


def test_the_bar_shows_what_is_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = {"model": tiny("llama"), "settings": {"measurement": "counting"}, "state": tmp_path / "state"}
    run_items(lambda i: i, [10, 20], **options)
    assert capfd.readouterr().err == ""
    run_items(lambda i: i, [10, 20], unit="trial", progress=True, **options)
    run_items(lambda i: i, [10, 30], unit="trial", progress=True, **{**options, "state": None})
    shown = capfd.readouterr().err
    assert "counting" in shown
    assert "40.0/40.0" in shown
    assert "0.00/0.00" in shown or "0.00trial" in shown


def test_groups_keep_neighbours_together() -> None:
    assert groups([3, 4, 5, 20, 1, 1], 8) == [range(0, 2), range(2, 3), range(3, 4), range(4, 6)]
    assert groups([], 8) == []


def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Whole, resumed from one process, resumed by one process, and with an error or a refusal in one of two."""
    whole = measured()[0].values
    for i, size in enumerate(SIZES):
        assert len(whole[i]) == size - 1
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "interrupted", fails_at=4, interrupt=KeyboardInterrupt)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = [str(Path(two_processes.__file__).parent), str(Path(hp.__file__).parent.parent)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [*launch, two_processes.__file__, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"found.{rank}.json").read_text()) for rank in (0, 1))
    for found in (first, second):
        assert found["whole"]["values"] == found["resumed"]["values"] == whole
        assert found["whole"]["processes"] == 2
    assert sorted(first["whole"]["here"] + second["whole"]["here"]) == ITEMS
    assert abs(sum(SIZES[i] for i in first["whole"]["here"]) - sum(SIZES) / 2) < max(SIZES) / 2
    assert sorted(first["resumed"]["here"] + second["resumed"]["here"]) == [4, 5, 6]

    errors = {first["failed"]["error"], second["failed"]["error"]}
    assert errors == {"ValueError: item 2", "EvaluationError: Another process failed with ValueError: item 2"}
    again, here = measured(tmp_path / "failed")  # by one process
    assert again.values == whole
    assert 2 in here
    assert len(here) < len(SIZES) / 2 + 1, "each did its share but for what came after the error"
    assert "The state cannot be kept in" in first["refused"]["error"]
    assert "Another process failed with EvaluationError: The state" in second["refused"]["error"]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.model.layers[0].mlp.down_proj.weight.data[:, 5].zero_(),
        lambda model: model.model.rotary_emb.inv_freq.mul_(0.5),
        lambda model: setattr(model.model.layers[0].self_attn, "scaling", 0.1),
        lambda model: model.model.layers[1].register_forward_hook(lambda module, args, output: output * 0),
    ],
    ids=["a column of weights", "a buffer that is not saved", "an attribute", "a hook"],
)
def test_a_changed_model_is_measured_anew(change: Any, tmp_path: Path) -> None:
    model, documents = tiny("llama"), [torch.randint(0, VOCAB, (40,)) for _ in range(2)]
    before = perplexity(model, documents, [16], state=tmp_path / "state")
    assert perplexity(model, documents, [16], state=tmp_path / "state").lengths == before.lengths  # seconds too
    with torch.no_grad():
        change(model)
    after = perplexity(model, documents, [16], state=tmp_path / "state")
    assert after.lengths[0].nll == perplexity(model, documents, [16]).lengths[0].nll != before.lengths[0].nll


def test_a_file_of_results_is_no_state(tmp_path: Path) -> None:
    model, documents, path = tiny("llama"), [torch.randint(0, VOCAB, (40,)) for _ in range(2)], tmp_path / "saved.json"
    saved = save_results([perplexity(model, documents, [16])], path).read_bytes()
    with pytest.raises(hp.EvaluationError, match="is no state of a measurement"):
        perplexity(model, documents, [16], state=path)
    assert path.read_bytes() == saved
