"""`hf-posswap report RESULTS...`: one page of saved results, and its pictures as files."""

import argparse

from hf_posswap.evaluation.results import load_results
from hf_posswap.report.numbers import plural
from hf_posswap.report.style import require_matplotlib
from hf_posswap.report.writing import checked_page, files_beside, write_report


def run(args: argparse.Namespace) -> str:
    """What was written. All that can be refused is refused before anything is drawn."""
    checked_page(args.output, overwrite=args.overwrite)
    require_matplotlib()
    results = [result for path in args.results for result in load_results(path)]
    target = write_report(results, args.output, overwrite=args.overwrite, progress=True)
    drawn = len(list(files_beside(target).glob("*-light.png")))
    pictures = f"{plural(drawn, 'picture')}, light and dark, as PNG and SVG in {files_beside(target).name}"
    return f"{args.output}: {plural(len(results), 'result')}, {pictures}"
