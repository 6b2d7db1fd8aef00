"""Tables of text, to be pasted into a paper or a README: Markdown and LaTeX, and aligned text for a terminal."""

import re
from dataclasses import dataclass

MARKDOWN = re.compile(r"([\\`*_{}<>|#~$]|(?<=\])[(\[:])")
LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: "\\" + letter for letter in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns. The first column names the row, numbers stand in the others."""

    title: str
    caption: str
    """What the numbers are and how they were measured: a table is read without the page around it."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = ()
    """Columns besides the first that hold words, and are set flush left."""

    def markdown(self) -> str:
        """GitHub's tables, the caption below."""
        rule = [":---" if left else "---:" for left in self._left()]
        lines = [self._marked(self.columns), rule, *map(self._marked, self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{_in_markdown(self.full_caption)}\n"

    def latex(self) -> str:
        """A `table` for the package booktabs, the caption above."""
        body = [_latex_row(row) for row in (self.columns, *self.rows)]
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_in_latex(self.full_caption)}}}"]
        lines += [rf"\begin{{tabular}}{{{''.join('l' if left else 'r' for left in self._left())}}}"]
        lines += [r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join(lines) + "\n"

    def text(self) -> str:
        """Columns aligned by spaces, without the caption."""
        lines = [[_one_line(cell) for cell in row] for row in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = ["<" if left else ">" for left in self._left()]
        return "\n".join(
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
            for line in lines
        )

    @property
    def full_caption(self) -> str:
        """Title and caption."""
        return f"{self.title}. {self.caption}".strip()

    def is_number(self, column: int) -> bool:
        """Whether a column is set flush right."""
        return not self._left()[column]

    def _left(self) -> list[bool]:
        return [i == 0 or i in self.words for i in range(len(self.columns))]

    def _marked(self, row: tuple[str, ...]) -> list[str]:
        return [_in_markdown(cell) for cell in row]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _in_markdown(text: str) -> str:
    return MARKDOWN.sub(r"\\\1", _one_line(text))


def _latex_row(row: tuple[str, ...]) -> str:
    cells = " & ".join(map(_in_latex, row))
    kept = "{}" if cells.startswith(("[", "*")) else ""  # else an argument of the line break before it
    return rf"{kept}{cells} \\"


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in _one_line(text))
