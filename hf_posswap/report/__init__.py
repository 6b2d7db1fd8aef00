"""Pictures of schemes. matplotlib, of the extra `plot`, is imported when one is drawn."""

from hf_posswap.report.files import checked_target, save_figure
from hf_posswap.report.plot import plot_scheme

__all__ = ["checked_target", "plot_scheme", "save_figure"]
