"""extend, as the package offers it: by the method that is given, or by the one that does best on a text."""

from typing import Any, TypeVar

from torch import Tensor, nn

from hf_posswap.errors import EvaluationError
from hf_posswap.patching import extending
from hf_posswap.patching.checks import ORIGINAL

Model = TypeVar("Model", bound=nn.Module)

AUTO = "auto"


def extend(
    model: Model,
    max_length: int,
    method: str | None = None,
    *,
    tokenizer: Any = None,
    calibration: Any = None,
    seconds: float | None = 300.0,
    **fields: Any,
) -> Model:
    """Raises the length that the model accepts to `max_length` positions, in place, and returns it.

    `method` and its `fields` depend on the scheme that the model has:

    - A learned table grows by "interpolate" (default; `interpolation="cubic"`), "tile", "repeat_last", "hierarchical"
      (`alpha`), "random" (`seed`) or "group". The middle four keep the rows of old positions; `transfer.py` has the
      formulas.
    - RoPE and its rescalings go on by "yarn" (default) or another rescaling, whose name is the method: "linear", "ntk",
      "dynamic", "ntk_by_parts", "llama3", "longrope" (needs `long_factor`). They take the fields of that scheme except
      for `factor`, which is worked out: `max_length` by the length before any extension, whatever the model was
      extended by so far. The base is the one of before, too. "theta" raises the base instead, and needs `rope_theta`.
    - `layered` and `log_scaled` go on in those of their schemes that are RoPE (SmolLM3: the layers that rotate).
    - p-RoPE goes on by "proportional" (all its frequencies divided by the factor) or "theta".
    - All other schemes take "length" alone.
    - "auto", on any of them, tries what there is on `calibration`, a text like that the model is for (token ids `[L]`,
      or a list of them), for about `seconds` (300 by default; None: no limit), and takes the best: see
      `hf_posswap.evaluation.advise`. It takes `original_max_position_embeddings`, and for a masked language model it
      needs `tokenizer`.

    A method that the model has already keeps its fields (`mode`, `beta_fast`, `short_factor` ...) unless they are
    given, but for `attention_factor`, which is worked out anew. `partial_rotary_factor` stays in any case.

    The length before any extension is `original_max_position_embeddings`: given, or that of the model's scheme or
    config, else the config's length. A stock config with linear (or proportional) scaling does not say whether its
    length is the one from before or after, so there it must be given.

    `tokenizer.model_max_length` is raised along when a tokenizer is given.

    Raises:
        FamilyError: the model is not supported, or is wrapped.
        SchemeError: no such method or field for this scheme, or `max_length` is not longer. The model is unchanged.
        EvaluationError: "auto" without a calibration text that is long enough, or a calibration without "auto".
    """
    if method == AUTO:
        method, fields = _best(model, max_length, calibration, tokenizer, seconds, fields)
    elif calibration is not None:
        raise EvaluationError(f"A calibration text is of method={AUTO!r}, not of {method!r}, which reads none.")
    return extending.extend(model, max_length, method, tokenizer=tokenizer, **fields)


def _best(
    model: Any, max_length: int, calibration: Any, tokenizer: Any, seconds: float | None, fields: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Method and fields of the best extension."""
    from hf_posswap.evaluation.advice import advise  # what only "auto" needs is not loaded for others
    from hf_posswap.evaluation.comparison import likelihood_of, pseudo_perplexity

    if calibration is None:
        raise EvaluationError(
            f"method={AUTO!r} tries methods on a text: calibration= takes token ids, one tensor or several."
        )
    unknown = [name for name in fields if name != ORIGINAL]
    if unknown:
        raise EvaluationError(f"method={AUTO!r} finds fields by itself, and takes no {', '.join(unknown)}.")
    given = {"tokenizer": tokenizer} if likelihood_of(model) is pseudo_perplexity else {}
    documents = [*calibration.unbind()] if isinstance(calibration, Tensor) and calibration.dim() == 2 else calibration
    documents = [documents] if isinstance(documents, Tensor) else documents
    best = advise(model, max_length, documents, seconds=seconds, **fields, **given).best
    return best.method, best.options
