"""What hidden states know of absolute positions: a linear probe for every layer.

Models without positional encodings learn them in their first layers (Haviv et al. 2203.16634, who probe with a
classifier; Kazemnejad et al. 2305.19466). Here a ridge regression goes from the hidden state of a token to its position
in the window, is fitted on some documents and tried on others. It takes all dimensions of the hidden states, so its
sums grow with the square of their width: as many layers as fit in `MOST_NUMBERS` are probed in one pass over the text,
and the others in further passes.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import refuse_batch
from hf_posswap.evaluation.base_model import batches, last_hidden_states, whole_windows
from hf_posswap.evaluation.documents import Documents, fingerprint_of_documents
from hf_posswap.evaluation.intervals import ratio_interval
from hf_posswap.evaluation.position_probe.layer_outputs import Show, layer_outputs, layers_of
from hf_posswap.evaluation.position_probe.results import PositionProbe, ProbedLayer
from hf_posswap.evaluation.position_probe.ridge import RidgeSums
from hf_posswap.evaluation.results import subject_of
from hf_posswap.evaluation.running import Running, run_items
from hf_posswap.evaluation.token_nll import evaluating

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_NUMBERS = 2**27
"""Numbers in the sums of the probes that exist at one time: 1 GiB."""

CONTROL = -1
"""Among the numbers of layers: random features."""

Read = Callable[[Tensor, Show], None]
"""Takes token ids `[B, L]` and shows features `[B, L, E]` of the layers that are probed."""


def position_probe(
    model: Any,
    documents: Documents,
    length: int,
    *,
    test_share: float = 0.25,
    ridge: float = 1e-4,
    seed: int = 0,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> PositionProbe:
    """Mean absolute error of a linear probe for the position in the window, for every layer of a decoder or an encoder.

    Args:
        length: tokens of a window; all whole windows of each document are read.
        test_share: of the documents; which ones, `seed` decides, as it does the random features of the control.
        ridge: penalty on the weights, of standardised features: as small as keeps the solution stable, so that the
            probe finds what can be found.
        tokens_per_batch: tokens that go through the model at once, at most, or one window.
        run: `accelerator`, `state` and `progress`: see `Running`. Layers are shared out over processes, not documents.

    Raises:
        EvaluationError: fewer than two documents are long enough; a model whose layers are not known; or hidden states
            that are not finite.
    """
    _refuse(test_share, ridge)
    refuse_batch(tokens_per_batch)
    kept, windows, skipped = whole_windows(model, documents, length)
    fitted, tested = _split(len(kept), test_share, seed)
    fit_on, test_on = (batches(torch.cat([windows[i] for i in some]), tokens_per_batch) for some in (fitted, tested))
    accelerator = run.get("accelerator")
    together = _together(model, 1 if accelerator is None else accelerator.num_processes)

    def measure(item: int) -> list[list[float]]:
        layers = together[item]
        read = _random_features(model, seed) if layers == [CONTROL] else _hidden_states(model, layers)
        return probe_errors(read, layers, fit_on, test_on, ridge)

    settings = {"measurement": "position_probe", "documents": fingerprint_of_documents(kept), "length": length}
    settings |= {"test_share": test_share, "ridge": ridge, "seed": seed, "tokens_per_batch": tokens_per_batch}
    read = sum(map(len, windows)) * length
    sizes = [read * len(layers) for layers in together]
    done = run_items(measure, sizes, model=model, settings={**settings, "together": together}, **run)
    (control, *layers), counts = [row for rows in done.values for row in rows], [len(windows[i]) for i in tested]
    probed = [_probed(i, row, counts, length) for i, row in enumerate([control, *layers], CONTROL)]
    return PositionProbe(
        subject=subject_of(model),
        cost=done.cost,
        length=length,
        skipped=skipped,
        fitted_documents=len(fitted),
        fitted_tokens=sum(map(len, fit_on)) * length,
        tested_documents=len(tested),
        ridge=ridge,
        layers=tuple(probed[1:]),
        control=probed[0].error,
        guess=sum(abs(position - (length - 1) / 2) for position in range(length)) / length,
    )


def probe_errors(
    read: Read,
    layers: Sequence[int],
    fit_on: Sequence[Tensor],
    test_on: Sequence[Tensor],
    ridge: float,
) -> list[list[float]]:
    """For each of `layers` the error of its probe in every window of `test_on`, summed over positions."""
    positions = torch.arange(fit_on[0].shape[1], dtype=torch.float64)
    sums = {layer: RidgeSums() for layer in layers}
    for rows in fit_on:
        read(rows, lambda layer, x: sums[layer].add(x.flatten(0, 1), positions.repeat(len(x))))
    probes = {layer: each.fit(ridge) for layer, each in sums.items()}
    errors: dict[int, list[float]] = {layer: [] for layer in layers}

    def test(layer: int, features: Tensor) -> None:
        found = probes[layer](features).cpu() - positions
        errors[layer].extend(found.abs().sum(dim=1).tolist())

    for rows in test_on:
        read(rows, test)
    return [errors[layer] for layer in layers]


def _refuse(test_share: float, ridge: float) -> None:
    if not isinstance(test_share, Real) or not 0 < test_share < 1:
        raise EvaluationError(f"test_share is a share between 0 and 1 of the documents, not {test_share!r:.60}.")
    if not isinstance(ridge, Real) or not 0 < ridge < math.inf:
        raise EvaluationError(f"ridge is a number above 0, not {ridge!r:.60}.")


def _split(documents: int, test_share: float, seed: int) -> tuple[list[int], list[int]]:
    """Documents to fit on and to test on, at least one of each, in order."""
    if documents < 2:
        raise EvaluationError("A probe is fitted on some documents and tested on others: at least 2 are needed.")
    order = torch.randperm(documents, generator=torch.Generator().manual_seed(seed)).tolist()
    tested = min(max(1, round(test_share * documents)), documents - 1)
    return sorted(order[tested:]), sorted(order[:tested])


def _together(model: Any, processes: int) -> list[list[int]]:
    """Layers that are probed in one pass over the text; the control is alone."""
    layers, width = len(layers_of(model)) + 1, model.config.get_text_config().hidden_size
    most = min(max(1, MOST_NUMBERS // (width + 2) ** 2), math.ceil(layers / processes))
    return [[CONTROL], *(list(range(start, min(start + most, layers))) for start in range(0, layers, most))]


def _hidden_states(model: Any, layers: Sequence[int]) -> Read:
    def read(input_ids: Tensor, show: Show) -> None:
        with evaluating(model), layer_outputs(model, layers, show):
            last_hidden_states(model, input_ids)

    return read


def _random_features(model: Any, seed: int) -> Read:
    generator, width = torch.Generator().manual_seed(seed), model.config.get_text_config().hidden_size

    def read(input_ids: Tensor, show: Show) -> None:
        show(CONTROL, torch.randn(*input_ids.shape, width, generator=generator))

    return read


def _probed(layer: int, errors: list[float], windows: list[int], length: int) -> ProbedLayer:
    """From `errors` of every window, of which the documents have so many each."""
    documents = [float(part.sum()) for part in torch.tensor(errors, dtype=torch.float64).split(windows)]
    tokens = [count * length for count in windows]
    return ProbedLayer(layer, sum(documents) / sum(tokens), ratio_interval(documents, tokens))
