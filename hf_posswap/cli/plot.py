"""`hf-posswap plot SCHEME`: a picture of a scheme, without a model."""

import argparse
from dataclasses import replace

from hf_posswap.cli.typed_scheme import typed_scheme
from hf_posswap.profiles.without_model import EXAMPLE
from hf_posswap.report import checked_target, plot_scheme, save_figure
from hf_posswap.schemes import Geometry


def run(args: argparse.Namespace) -> str:
    """What was saved. All that can be refused is refused before anything is drawn."""
    scheme = typed_scheme(args.scheme, args.fields)
    target = args.output or f"{scheme.name}.png"
    checked_target(target, overwrite=args.overwrite)
    figure = plot_scheme(scheme, _geometry(args), max_length=args.max_length, dark=args.dark)
    save_figure(figure, target, overwrite=args.overwrite)
    return f"{target}: {scheme.name} ({scheme.kind} encoding)"


def _geometry(args: argparse.Namespace) -> Geometry:
    """The example with what was typed."""
    typed = {
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.heads,
        "head_dim": args.head_dim,
        "hidden_size": args.hidden_size,
        "trained_length": args.trained_length,
    }
    return replace(EXAMPLE, **{name: value for name, value in typed.items() if value is not None})
