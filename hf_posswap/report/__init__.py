"""Pictures of schemes, and of results with their tables and a page of both.

matplotlib, of the extra `plot`, is imported when something is drawn; transformers when there are results to show.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_posswap.report.files import checked_target, save_figure
from hf_posswap.report.plot import plot_scheme

if TYPE_CHECKING:
    from hf_posswap.report.figures import draw_results, result_tables
    from hf_posswap.report.writing import write_report

__all__ = ["checked_target", "draw_results", "plot_scheme", "result_tables", "save_figure", "write_report"]

_OF_RESULTS = {"draw_results": "figures", "result_tables": "figures", "write_report": "writing"}


def __getattr__(name: str) -> Any:
    if name in _OF_RESULTS:
        return getattr(import_module(f"{__name__}.{_OF_RESULTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
