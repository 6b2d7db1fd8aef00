"""Tables as text: what they say, and that nothing a cell holds changes what they are."""

import math

import pytest
from report import sample_results as sample

from hf_posswap.evaluation.intervals import Interval
from hf_posswap.report import result_tables
from hf_posswap.report.numbers import number, percent_with_interval, with_interval
from hf_posswap.report.tables import Table

TABLE = Table(
    "Of two", "With 5% & more.", ("model", "a_b", "note"), (("x|y", "1.50", "*all*"), ("[z]", "2", "#1")), (2,)
)


def test_markdown_is_a_table_of_github() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[:4] == [
        "| model | a\\_b | note |",
        "| :--- | ---: | :--- |",
        "| x\\|y | 1.50 | \\*all\\* |",
        "| [z] | 2 | \\#1 |",
    ]
    assert lines[4:] == ["", "Of two. With 5% & more."]


@pytest.mark.parametrize("cell", ["[a](http://b)", "<b>", "`c`", "\\|", "a\nb", "~~d~~"])
def test_no_cell_is_markup_in_markdown(cell: str) -> None:
    line = Table("T", "", ("m",), ((cell,),)).markdown().splitlines()[2]
    assert line.startswith("| ")
    assert line.endswith(" |")
    bare = line[2:-2]
    for mark in ("](", "<b", "`c`", "~~"):
        assert mark not in bare.replace("\\" + mark[0], "").replace("]\\(", "")
    assert "|" not in bare.replace("\\|", "")


def test_latex_compiles_by_its_letters() -> None:
    text = TABLE.latex()
    assert "\\caption{Of two. With 5\\% \\& more.}" in text
    assert "\\begin{tabular}{lrl}" in text
    assert "\\toprule\nmodel & a\\_b & note \\\\\n\\midrule" in text
    assert "x\\textbar{}y & 1.50 & *all* \\\\" in text
    assert "\n{}[z] & 2 & \\#1 \\\\" in text, "a bracket after a line break is its argument"
    special = Table("T", "", ("m",), (("\\^~{}$<>",),)).latex()
    wanted = "\\textbackslash{}\\textasciicircum{}\\textasciitilde{}\\{\\}\\$\\textless{}\\textgreater{}"
    assert f"{wanted} \\\\" in special


def test_text_is_aligned() -> None:
    assert TABLE.text().splitlines() == ["model   a_b  note", "x|y    1.50  *all*", "[z]       2  #1"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (18.4249, "18.42"),
        (0.0123, "0.012"),
        (12345.6, "12,346"),
        (4.2e9, "4.20e+09"),
        (0.0, "0"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (-0.5, "-0.50"),
    ],
)
def test_numbers(value: float, said: str) -> None:
    assert number(value) == said
    assert with_interval(value, None) == said
    assert with_interval(value, Interval(1.0, 2.0)) == f"{said} [1.00, 2.00]"


def test_shares() -> None:
    assert percent_with_interval(0.875, Interval(0.82, 0.9164)) == "87.5% [82, 91.6]"
    assert percent_with_interval(1.0, Interval(0.5, 1.0)) == "100% [50, 100]"


def test_perplexity_leaves_nothing_unsaid() -> None:
    results = [sample.perplexity("rope", skipped=(1, 4)), sample.perplexity("yarn", skipped=(1, 4))]
    by_length, in_full = result_tables(results)["perplexity"]
    assert by_length.columns == ("model", *(f"{n:,}" for n in sample.LENGTHS))
    first = results[0].lengths[0]
    assert first.interval is not None
    numbers = (first.perplexity, first.interval.low, first.interval.high)
    assert by_length.rows[0][1] == "{:.2f} [{:.2f}, {:.2f}] (1.00)".format(*numbers)
    for words in ("sliding", "stride min(256, length / 2)", "token", "no BOS", "12 documents", "2 of them too short"):
        assert words in by_length.caption
    assert "98,292" in by_length.caption
    assert "95%" in by_length.caption
    assert len(in_full.rows) == 2 * len(sample.LENGTHS)
    row = dict(zip(in_full.columns, in_full.rows[0], strict=True))
    assert (row["tokens"], row["windows"], row["NLL (nats)"]) == ("98,292", "192", f"{first.nll:.4f}")
    assert row["bits per byte"] == f"{first.bits_per_byte:.4f}"


def test_results_of_other_protocols_stand_apart() -> None:
    ways = [{}, {"protocol": "disjoint"}, {"stride": 128}, {"bos": "document"}, {"reduction": "yarn"}]
    tables = result_tables([sample.perplexity("rope", **way) for way in ways])
    assert [name for name in tables if name.startswith("perplexity")] == [
        "perplexity",
        *(f"perplexity-{i}" for i in range(2, 6)),
    ]
    captions = [tables[name][0].caption for name in tables if name.startswith("perplexity")]
    for caption, words in zip(captions[1:], ("share no token", "stride 128", "each document", "YaRN"), strict=True):
        assert words in caption


def test_other_tokens_cannot_be_compared() -> None:
    same = result_tables([sample.perplexity("rope"), sample.perplexity("yarn")])["perplexity"][0]
    other = result_tables([sample.perplexity("rope"), sample.perplexity("yarn", documents=11)])["perplexity"][0]
    assert "cannot be compared" not in same.caption
    assert "cannot be compared" in other.caption


def test_equal_labels_are_told_apart() -> None:
    results = [sample.perplexity("rope"), sample.perplexity("rope"), sample.perplexity("yarn")]
    rows = result_tables(results)["perplexity"][0].rows
    assert [row[0] for row in rows] == ["rope", "rope (2)", "yarn"]


def test_retrieval_says_trials_and_chance() -> None:
    (table,) = result_tables([sample.retrieval("passkey", "yarn")])["passkey"]
    assert "exact (Clopper-Pearson)" in table.caption
    assert "200" in table.caption
    row = dict(zip(table.columns, table.rows[-1], strict=True))
    cell = sample.retrieval("passkey", "yarn").cells[-1]
    assert row["right"] == f"{cell.correct} of 200"
    assert row["chance (token)"] == "10%"
    assert row["accuracy"].startswith(f"{100 * cell.accuracy:.1f}".removesuffix(".0"))


def test_advice_gives_the_commands_in_order() -> None:
    ranking, needs, commands = result_tables([sample.advice()])["advice"]
    assert [row[0] for row in ranking.rows] == ["yarn (factor=8)", "ntk (factor=8)", "none (as it is)"]
    assert [row[1] for row in needs.rows] == [each.fine_tuning for each in sample.advice().candidates]
    assert commands.rows[0] == ("yarn (factor=8)", "hf-posswap extend MODEL OUT --max-length 8192 --method yarn")
    assert len(commands.rows) == 2
    assert "longrope: the time was over" in ranking.caption


def test_no_key_tokens_is_said() -> None:
    (table,) = result_tables([sample.long_ppl("nope", none=True)])["long-ppl"]
    assert table.rows[0][1] == "no key tokens"


def test_properties_have_answers_and_numbers() -> None:
    answers, numbers = result_tables([sample.properties("rope"), sample.properties("nope")])["properties"]
    assert answers.rows[0][1:] == ("yes", "yes", "no")
    assert answers.rows[1][1:] == ("yes", "no", "does not apply")
    assert len(numbers.rows) == 6
    assert numbers.rows[0][3] == "smallest distance between two positions 0.31"
