"""What `import hf_posswap` loads and names, and that Auto classes know our checkpoints whatever is imported first."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny

import hf_posswap as hp
from hf_posswap.schemes import SCHEMES

FORKS = """
import os, sys, traceback
import accelerate, torch, torch.distributed.tensor, torch._dynamo
torch.set_num_threads(1)
for size in sys.stdin:
    code = sys.stdin.read(int(size))
    child = os.fork()
    if child == 0:
        try:
            exec(code, {})
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""A process that has loaded torch, but neither transformers nor hf_posswap, and runs each code in a fork of itself:
a fresh interpreter for every test would import torch every time."""


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[str], None]]:
    """Runs code where transformers and hf_posswap were never imported; an error in it fails the test."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None

        def run(code: str) -> None:
            process.stdin.write(f"{len(code)}\n{code}")
            process.stdin.flush()
            assert process.stdout.readline().strip() == "0", "see the captured stderr"

        yield run
        process.stdin.close()


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Code that loads an ALiBi GPT-2 with an Auto class, compares logits, and looks for finders left behind."""
    folder = tmp_path_factory.mktemp("saved")
    model = hp.patch(tiny("gpt2"), "alibi")
    hp.save(model, folder / "alibi")
    with torch.no_grad():
        torch.save(model(torch.arange(3, 43)[None]).logits, folder / "logits.pt")
    return f"""
import sys, torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
model = AutoModelForCausalLM.from_pretrained({str(folder / "alibi")!r})
assert type(model) is GPT2LMHeadModel, type(model)
with torch.no_grad():
    assert torch.equal(model(torch.arange(3, 43)[None]).logits, torch.load({str(folder / "logits.pt")!r}))
import hf_posswap
assert hf_posswap.scheme_of(model) == hf_posswap.ALiBi()
assert not [f for f in sys.meta_path if type(f).__module__.startswith("hf_posswap")], sys.meta_path
"""


NAMES = ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM", "pipeline", "GPT2LMHeadModel", "Trainer")
"""Names of transformers whose import reaches its table of configs in different ways."""


def covering(*quick: str) -> list[Any]:
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", covering("AutoConfig", "pipeline", "GPT2LMHeadModel"))
def test_imported_before(fresh: Callable[[str], None], loads: str, name: str) -> None:
    fresh(f"import hf_posswap\nfrom transformers import {name}\n{loads}")


@pytest.mark.parametrize("name", covering("AutoModelForCausalLM", "GPT2LMHeadModel"))
def test_imported_after(fresh: Callable[[str], None], loads: str, name: str) -> None:
    fresh(f"from transformers import {name}\nimport hf_posswap\n{loads}")


@pytest.mark.parametrize(
    "imports",
    [
        "import hf_posswap, importlib\nimportlib.reload(hf_posswap)",
        "import hf_posswap.families.configs",
        pytest.param("import transformers\nimport hf_posswap", marks=pytest.mark.slow),
        pytest.param("import hf_posswap.schemes", marks=pytest.mark.slow),
        pytest.param("from hf_posswap.cli import main", marks=pytest.mark.slow),
        pytest.param("import hf_posswap\nhf_posswap.patch", marks=pytest.mark.slow),
    ],
)
def test_imported_in_other_ways(fresh: Callable[[str], None], loads: str, imports: str) -> None:
    fresh(f"{imports}\n{loads}")


def test_looking_for_transformers_table_does_not_end_the_wait(fresh: Callable[[str], None], loads: str) -> None:
    look = "import importlib.util\nassert importlib.util.find_spec('transformers.models.auto.configuration_auto')"
    fresh(f"import hf_posswap\n{look}\n{loads}")


def test_pickled_config_comes_back_in_a_fresh_process(fresh: Callable[[str], None], tmp_path: Path) -> None:
    model = hp.patch(tiny("gpt2"), "t5")
    torch.save(model, tmp_path / "model.pt")
    path = str(tmp_path / "model.pt")
    fresh(
        f"import torch\nmodel = torch.load({path!r}, weights_only=False)\nimport hf_posswap\n"
        "assert hf_posswap.scheme_of(model).name == 't5'\nmodel(torch.arange(9)[None])"
    )


def test_stock_models_are_untouched_by_the_import(fresh: Callable[[str], None]) -> None:
    fresh(
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        "known = {type(f) for f in __import__('sys').meta_path}\n"
        "import hf_posswap, sys\n"
        "config = AutoConfig.for_model('gpt2', n_layer=1, n_embd=8, n_head=2)\n"
        "assert type(config).__module__ == 'transformers.models.gpt2.configuration_gpt2'\n"
        "model = AutoModelForCausalLM.from_config(config)\n"
        "assert type(model).__module__ == 'transformers.models.gpt2.modeling_gpt2'\n"
        "assert not model.transformer._forward_pre_hooks\n"
        "assert {type(f) for f in sys.meta_path} == known"
    )


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import hf_posswap", {"torch", "transformers", "numpy"}),
        ("import hf_posswap; hf_posswap.PosswapError, hf_posswap.__version__", {"torch", "transformers", "numpy"}),
        ("import hf_posswap; hf_posswap.schemes(), hf_posswap.YaRN(factor=2), dir(hf_posswap)", {"transformers"}),
    ],
)
def test_import_is_light(code: str, heavy: set[str]) -> None:
    check = f"{code}\nimport sys\nloaded = {heavy} & set(sys.modules)\nassert not loaded, loaded"
    done = subprocess.run([sys.executable, "-W", "error", "-c", check], stderr=-1, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Names


def test_every_public_name_resolves() -> None:
    for name in hp.__all__:
        assert getattr(hp, name).__doc__
    assert sorted(hp.__all__) == list(hp.__all__)
    assert set(hp.__all__) <= set(dir(hp))


def test_every_scheme_class_is_a_public_name() -> None:
    for scheme in SCHEMES:
        assert getattr(hp, scheme.__name__) is scheme
        assert scheme.__name__ in dir(hp)


def test_schemes_is_a_call_and_a_package() -> None:
    assert hp.schemes() == {scheme.name: scheme for scheme in SCHEMES}
    hp.schemes().clear()
    assert hp.schemes()
    assert hp.schemes.SCHEMES is SCHEMES


def test_errors_are_value_errors_of_one_tree() -> None:
    for error in (hp.SchemeError, hp.FamilyError, hp.CheckpointError, hp.EvaluationError):
        assert issubclass(error, hp.PosswapError)
        assert issubclass(error, ValueError)


@pytest.mark.parametrize("name", ["no_such_name", "_private", "BY_NAME_", "__wrapped__"])
def test_unknown_names_are_attribute_errors(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(hp, name)
    assert not hasattr(hp, name)
