"""transformers' own `ModelTesterMixin`, from an unpacked source distribution, on stock and on patched models.

Their tests are in no wheel: `pip download --no-deps --no-binary :all: transformers==<installed>`, unpack, and name the
directory in the environment variable TRANSFORMERS_SOURCE. They also need the package `parameterized`.
"""

import copy
import functools
import importlib
import os
import sys
import unittest
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from pairs import draw_position_parameters
from tiny import tiny_config
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import hf_posswap as hp
from hf_posswap.families.configs import CONFIG_CLASSES
from hf_posswap.persistence.auto import building_class

SOURCE = "TRANSFORMERS_SOURCE"
PACKAGE = "transformers_own_tests"
MISSING = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}
"""Modules that the mixin imports and the source distribution lacks, with what it wants of them."""

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


def why_not() -> str | None:
    """Why their tests cannot run here; None when they can."""
    named = os.environ.get(SOURCE)
    if not named:
        return f"{SOURCE} names no unpacked source distribution of transformers"
    info = Path(named, "PKG-INFO")
    if not info.is_file() or not Path(named, "tests", "test_modeling_common.py").is_file():
        return f"{SOURCE} names a directory that is no source distribution of transformers"
    version = next(line.split()[1] for line in info.read_text().splitlines() if line.startswith("Version: "))
    if version != transformers.__version__:
        return f"{SOURCE} has transformers {version}, installed is {transformers.__version__}"
    return None


@functools.cache
def mixins() -> tuple[Any, Any]:
    """`ModelTesterMixin`, and a stand-in for `GenerationTesterMixin`, which it wants beside it."""
    package = ModuleType(PACKAGE)
    package.__path__ = [str(Path(os.environ[SOURCE], "tests"))]
    sys.modules[PACKAGE] = package
    for path, mixin in MISSING.items():
        folder = ModuleType(f"{PACKAGE}.{path.partition('.')[0]}")
        folder.__path__ = []
        stand_in = ModuleType(f"{PACKAGE}.{path}")
        setattr(stand_in, mixin, type(mixin, (), {}))
        sys.modules.update({folder.__name__: folder, stand_in.__name__: stand_in})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common = importlib.import_module(f"{PACKAGE}.test_modeling_common")
    return common.ModelTesterMixin, common.GenerationTesterMixin


def test_names() -> list[str]:
    """Every test of the mixin."""
    mixin, _ = mixins()
    return [name for name in dir(mixin) if name.startswith("test_") and callable(getattr(mixin, name))]


def stock_classes(model_type: str) -> tuple[Any, ...]:
    """Every public model class of an architecture, first the one without a head, as the mixin wants it."""
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    named = [getattr(module, name) for name in module.__all__ if not name.endswith("PreTrainedModel")]
    models = [cls for cls in named if issubclass(cls, transformers.PreTrainedModel)]
    return tuple(sorted(models, key=lambda cls: cls.__name__ != MODEL_MAPPING_NAMES[model_type]))


def patched_classes(model_type: str) -> tuple[Any, ...]:
    """What Auto classes build patched models with, under the names of the stock ones: the mixin goes by names.

    Position parameters are drawn: at their neutral start they would hide most mistakes.
    """

    def named_as_stock(stock: Any) -> Any:
        built = building_class(stock, CONFIG_CLASSES[model_type])

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            built.__init__(self, *args, **kwargs)
            draw_position_parameters(self)

        return type(stock.__name__, (built,), {"__module__": stock.__module__, "__init__": init})

    return tuple(named_as_stock(stock) for stock in stock_classes(model_type))


def stock_config(model_type: str) -> Any:
    """A tiny config whose weights are drawn so large that positions matter."""
    return tiny_config(model_type, initializer_range=0.2)


def patched_config(model_type: str, scheme: hp.schemes.Scheme) -> Any:
    """The config of a patched model, as it comes back from disk."""
    base_class = stock_classes(model_type)[0]
    config = hp.patch(base_class(stock_config(model_type)), scheme).config
    return type(config).from_dict(config.to_diff_dict())


class ModelTester:
    """What the mixin calls a model tester: a config, inputs for it, and their sizes."""

    is_training = True
    batch_size, seq_length, num_choices = 5, 7, 3

    def __init__(self, config: Any) -> None:
        self.config = config
        self.hidden_size = config.hidden_size
        self.num_hidden_layers = config.num_hidden_layers
        self.num_attention_heads = config.num_attention_heads

    def get_config(self) -> Any:
        return copy.deepcopy(self.config)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        shape = (self.batch_size, self.seq_length)
        ids = torch.randint(4, self.config.vocab_size, shape)
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}


def labelled(name: str, inputs: dict[str, Any], tester: ModelTester) -> dict[str, Any]:
    """`inputs` with labels for the two heads that have two losses; the mixin leaves those to each model's own tests."""
    rows = torch.zeros(tester.batch_size, dtype=torch.long)
    if name == "BertForPreTraining":
        return {**inputs, "labels": torch.zeros_like(inputs["input_ids"]), "next_sentence_label": rows}
    if name == "GPT2DoubleHeadsModel":
        choices = {k: v[:, None].expand(-1, tester.num_choices, -1).contiguous() for k, v in inputs.items()}
        last = torch.full((tester.batch_size, tester.num_choices), tester.seq_length - 1)
        return {**choices, "labels": choices["input_ids"], "mc_token_ids": last, "mc_labels": rows}
    return inputs


@functools.cache
def case_class(model_type: str, scheme: hp.schemes.Scheme | None) -> type[unittest.TestCase]:
    """The mixin's tests on every class of an architecture: patched, or stock where `scheme` is None."""
    mixin, generation = mixins()
    config = stock_config(model_type) if scheme is None else patched_config(model_type, scheme)

    class Case(mixin, generation, unittest.TestCase):  # type: ignore[misc, valid-type]
        all_model_classes = stock_classes(model_type) if scheme is None else patched_classes(model_type)
        # The mixin takes a model's age from its config's source file and spares the old ones; ours has no date.
        test_can_init_all_missing_weights_before_2023 = model_type == "llama"

        def setUp(self) -> None:
            self.model_tester = ModelTester(config)
            verbosity = transformers.logging.get_verbosity()
            transformers.logging.set_verbosity_warning()  # some tests read what is logged
            self.addCleanup(transformers.logging.set_verbosity, verbosity)

        def check_training_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
            # Two losses in two outputs: the test takes the first, and wants gradients everywhere.
            one_loss = (cls for cls in self.all_model_classes if cls.__name__ != "GPT2DoubleHeadsModel")
            self.all_model_classes = tuple(one_loss)
            super().check_training_gradient_checkpointing(*args, **kwargs)

        def _prepare_for_class(self, inputs: Any, model_class: Any, return_labels: bool = False) -> Any:
            prepared = super()._prepare_for_class(inputs, model_class, return_labels=return_labels)
            return labelled(model_class.__name__, prepared, self.model_tester) if return_labels else prepared

    return Case


@functools.cache
def stock_outcome(model_type: str, name: str) -> tuple[str, str]:
    """`outcome` on stock classes, once for all that are compared with it."""
    return outcome(model_type, None, name)


def outcome(model_type: str, scheme: hp.schemes.Scheme | None, name: str) -> tuple[str, str]:
    """How a test of the mixin ends, and what it says; a test with subtests fails when one of them does."""
    result = unittest.TestResult()
    case_class(model_type, scheme)(name).run(result)
    problems = [*result.errors, *result.failures]
    if problems:
        return FAILED, "\n".join(text for _, text in problems)
    return (SKIPPED, result.skipped[0][1]) if result.skipped else (PASSED, "")
