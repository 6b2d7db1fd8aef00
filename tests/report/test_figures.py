"""Figures of results hold the numbers of the results, and name what they show."""

import math
from dataclasses import replace
from typing import Any

import pytest
from report import sample_results as sample

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.results import Result
from hf_posswap.report import draw_results
from hf_posswap.report.figures import KINDS, sections_of
from hf_posswap.report.figures.schemes import scheme_label

HOSTILE = ["<script>alert(1)</script>", "a$b$c^{", "_hidden", "", "%s {0} \\frac", "x" * 300, "two\nlines\x00"]


def texts(figure: Any) -> str:
    """All words of a figure."""
    found = [figure.get_suptitle(), *(text.get_text() for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        found += [text.get_text() for text in axes.texts]
        found += [label.get_text() for label in axes.get_yticklabels()]
        found += [] if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]
    return "\n".join(found)


def test_every_kind_has_its_sections() -> None:
    own = {kind for kind in Result.kinds.values() if kind.__module__.startswith("hf_posswap")}
    assert set(KINDS) == own
    assert {type(result) for result in sample.of_every_kind()} == set(KINDS)


def test_all_that_is_drawn_has_words() -> None:
    sections = sections_of(sample.of_every_kind())
    names = [section.name for section in sections]
    assert len(set(names)) == len(names)
    for section in sections:
        assert section.caption.endswith(".")
        assert (section.alt != "") == (section.draw is not None)
        for table in section.tables:
            assert {len(row) for row in table.rows} == {len(table.columns)}


def test_perplexity_by_length(lines) -> None:
    results = [sample.perplexity("rope"), sample.perplexity("yarn")]
    figure = draw_results(results)["perplexity"]
    (axes,) = figure.axes
    drawn = lines(axes)
    for result in results:
        assert drawn[result.subject.label] == (
            [entry.length for entry in result.lengths],
            [entry.perplexity for entry in result.lengths],
        )
    assert drawn["trained length 1,024"][0] == [1024, 1024]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    bars = {tuple(segment[:, 1]) for bars in axes.collections for segment in bars.get_segments()}
    interval = results[1].lengths[2].interval
    assert interval is not None
    assert (interval.low, interval.high) in bars
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rope", "yarn", "trained length 1,024"]


def test_a_control_is_dashed() -> None:
    results = [sample.perplexity("rope"), sample.perplexity("rope", control="shuffled-context")]
    plain, control = draw_results(results)["perplexity"].axes[0].get_lines()[0::3][:2]
    assert plain.get_linestyle() == "-"
    assert control.get_linestyle() == "--"
    assert control.get_label() == "rope, shuffled-context"


def test_a_control_has_the_colour_of_its_model() -> None:
    rows = [("rope", None), ("yarn", None), ("rope, shuffled-context", "shuffled-context")]
    rows += [("yarn, shuffled-context", "shuffled-context"), ("other", None)]
    results = [sample.perplexity(label, "nope", control=control) for label, control in rows]
    drawn = draw_results(results)["perplexity"].axes[0].get_lines()[0::3][:5]
    assert [line.get_label() for line in drawn] == [label for label, _ in rows]
    looks = [(line.get_color(), line.get_marker()) for line in drawn]
    assert looks[2:4] == looks[:2]
    assert len(set(looks)) == 3
    alone = draw_results([results[0], results[3]])["perplexity"].axes[0].get_lines()[0::3][:2]
    assert alone[0].get_color() != alone[1].get_color()


def test_what_is_not_finite_is_left_to_the_table(lines) -> None:
    result = sample.perplexity("rope")
    broken = replace(result.lengths[-1], perplexity=math.inf, interval=None, ratio=math.inf)
    result = replace(result, lengths=(*result.lengths[:-1], broken))
    figure = draw_results([result])["perplexity"]
    assert lines(figure.axes[0])["rope"][0] == [entry.length for entry in result.lengths[:-1]]
    assert sections_of([result])[0].tables[0].rows[0][-1] == "inf (inf)"


def test_a_single_document_has_no_bars() -> None:
    entries = tuple(sample.at_length("rope", length, single=True) for length in sample.LENGTHS)
    section = sections_of([sample.perplexity("rope", lengths=entries)])[0]
    assert "A single document: no intervals." in section.caption
    figure = draw_results([sample.perplexity("rope", lengths=entries)])["perplexity"]
    assert not figure.axes[0].collections


def test_nll_by_position(lines) -> None:
    result = sample.nll_by_position("rope")
    (axes,) = draw_results([result])["nll-by-position"].axes
    x, y = lines(axes)["rope"]
    assert y == [bucket.nll for bucket in result.buckets]
    assert x[0] == (result.buckets[0].start + result.buckets[0].stop - 1) / 2
    assert lines(axes)["trained length 1,024"][0] == [1024, 1024]
    (band,) = axes.collections
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(max(bucket.interval.high for bucket in result.buckets))


def test_needles_are_a_map_with_numbers_in_it() -> None:
    result = sample.retrieval("needle", "rope")
    axes = draw_results([result])["needle"].axes[0]
    values = axes.get_images()[0].get_array()
    by_place = {(cell.depth, cell.length): cell for cell in result.cells}
    depths, lengths = sorted({cell.depth for cell in result.cells}), sorted({cell.length for cell in result.cells})
    assert values.shape == (len(depths), len(lengths))
    for i, depth in enumerate(depths):
        for j, length in enumerate(lengths):
            assert values[i, j] == pytest.approx(100 * by_place[depth, length].accuracy)
    written = [text.get_text() for text in axes.texts]
    assert written == [f"{100 * by_place[depth, length].accuracy:.0f}" for depth in depths for length in lengths]
    assert axes.get_images()[0].get_clim() == (0, 100)


def test_numbers_stand_out_from_their_cells() -> None:
    axes = draw_results([sample.retrieval("needle", "rope")])["needle"].axes[0]
    image = axes.get_images()[0]
    shown = {text.get_text(): text.get_color() for text in axes.texts}
    assert shown["100"] == "#000000"
    assert shown["0"] == "#ffffff"
    assert image.get_cmap().name == "cividis"


@pytest.mark.parametrize("task", ["passkey", "ruler_lite"])
def test_retrieval_by_length(task: str, lines) -> None:
    results = [sample.retrieval(task, name) for name in ("rope", "yarn")]
    figure = draw_results(results)[task.replace("_", "-")]
    tasks = list(dict.fromkeys(cell.task for cell in results[0].cells))
    assert len(figure.axes) == 2 * len(tasks)
    for i, each in enumerate(tasks):
        whole, tokens = figure.axes[2 * i : 2 * i + 2]
        cells = [cell for cell in results[1].cells if cell.task == each]
        assert lines(whole)["yarn"][1] == pytest.approx([100 * cell.accuracy for cell in cells])
        assert lines(tokens)["yarn"][1] == pytest.approx([100 * cell.token_accuracy for cell in cells])
        assert lines(tokens)["chance"][1] == [10, 10]


def test_probe_by_layer_beside_what_knows_nothing(lines) -> None:
    result = sample.position_probe("nope")
    drawn = lines(draw_results([result])["position-probe"].axes[0])
    assert drawn["nope"] == ([each.layer for each in result.layers], [each.error for each in result.layers])
    assert drawn["control: random features"][1] == [result.control] * 2
    assert drawn["guess: always the middle"][1] == [result.guess] * 2


def test_attention_shows_the_purest_heads(lines) -> None:
    result = sample.attention_profile("rope")
    figure = draw_results([result])["attention-profile"]
    weights, scores, distance, previous, first, frequencies = figure.axes[:6]
    head = next(each for each in result.heads if (each.layer, each.head) == (2, 3))
    assert lines(weights)["previous token: layer 2, head 3"] == (list(result.distances), list(head.weight))
    assert lines(scores)["previous token: layer 2, head 3"][1] == list(head.score)
    assert distance.get_images()[0].get_array()[2, 3] == head.mean_distance
    assert previous.get_images()[0].get_array()[2, 3] == pytest.approx(100 * head.previous)
    assert first.get_images()[0].get_array()[2, 3] == pytest.approx(100 * head.first)
    used = frequencies.get_images()[0].get_array()
    assert used.shape == (8, 32)
    assert used.sum(axis=1).tolist() == pytest.approx([100.0] * 8)


def test_attention_without_rotation_has_no_frequencies() -> None:
    figure = draw_results([sample.attention_profile("alibi", rotary=False)])["attention-profile"]
    assert "frequenc" not in texts(figure)
    assert "Weight on the token itself" in texts(figure)


def test_advice_is_in_its_order() -> None:
    result = sample.advice()
    (axes,) = draw_results([result])["advice"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "yarn (factor=8)",
        "ntk (factor=8)",
        "none (as it is)",
    ]
    assert axes.get_ylim() == (2.5, -0.5)
    drawn = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()}
    assert drawn["at 8,192 tokens"] == [each.perplexity for each in result.candidates]
    assert drawn["at the trained 1,024"] == [each.short_perplexity for each in result.candidates]


def test_long_ppl_leaves_out_what_was_not_found() -> None:
    results = [sample.long_ppl("rope"), sample.long_ppl("nope", none=True)]
    drawn = {line.get_label(): list(line.get_xdata()) for line in draw_results(results)["long-ppl"].axes[0].get_lines()}
    assert drawn["key tokens"] == [results[0].perplexity]
    assert drawn["all tokens"] == [result.all_perplexity for result in results]


def test_intervals_are_said_where_there_are_some() -> None:
    section = sections_of([sample.long_ppl("nope", none=True)])[0]
    assert "95%, over documents" in section.caption
    advice = replace(sample.advice(), documents=1, over="windows of one document")
    (section,) = [section for section in sections_of([advice]) if section.name == "advice"]
    for words in (section.caption, section.tables[0].caption, texts(draw_results([advice])["advice"])):
        assert "over windows of one document" in words
        assert "over documents" not in words


def test_schemes_are_named_by_what_is_their_own() -> None:
    filled_in = {"rope_theta": 5e5, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 1024}
    assert scheme_label({"name": "yarn", "factor": 4.0, "beta_fast": 32.0, **filled_in}) == (
        "yarn (factor=4, rope_theta=500000)"
    )
    inner = {"name": "log_scaled", "inner": {"name": "linear", "factor": 2.0}}
    assert scheme_label(inner) == "log_scaled (inner=linear (factor=2))"
    assert scheme_label({"name": "of_tomorrow", "new": [1, 2]}) == "of_tomorrow (new=[1, 2])"


def test_models_that_chose_their_own_key_tokens_stand_apart() -> None:
    results = [sample.long_ppl("rope"), sample.long_ppl("yarn")]
    own = [replace(result, evaluator="the model itself") for result in results]
    for given, names in ((results, ["long-ppl"]), (own, ["long-ppl", "long-ppl-2"])):
        assert [section.name for section in sections_of(given) if section.name.startswith("long")] == names


def test_decay_has_a_line_for_each_head(lines) -> None:
    result = sample.decay("alibi", "bias", heads=4)
    (axes,) = draw_results([result])["decay"].axes
    assert lines(axes)["alibi, head 3"] == (list(result.distances), list(result.heads[2]))
    assert axes.get_ylim()[0] == -20
    assert "cut at -20" in axes.get_ylabel()


def test_each_scheme_that_was_measured_is_drawn_once() -> None:
    results = [sample.perplexity("alibi"), sample.nll_by_position("alibi"), sample.properties("alibi")]
    results += [sample.perplexity("nope")]
    schemes = [section for section in sections_of(results) if section.name.startswith("scheme")]
    assert [section.name for section in schemes] == ["scheme-alibi", "scheme-nope"]
    assert "trained length of 1,024, 12 heads, a head_dim of 64 and a hidden_size of 768, those of the model" in (
        schemes[0].caption
    )
    drawn = draw_results([sample.perplexity("alibi"), sample.perplexity("nope")])
    assert "scheme-alibi" in drawn
    assert "scheme-nope" not in drawn, "there is nothing to be seen of no positions"


def test_lists_for_pairs_are_drawn_for_their_head_dim() -> None:
    factors = [1.0 + i / 8 for i in range(8)]
    scheme = {"name": "longrope", "factor": 4.0, "short_factor": factors, "long_factor": factors}
    result = sample.perplexity("longrope", scheme=scheme)
    for head_dim, whose in ((None, "the others an example's"), (16, "those of the model")):
        subject = replace(result.subject, head_dim=head_dim)
        (section,) = [s for s in sections_of([replace(result, subject=subject)]) if s.name.startswith("scheme")]
        assert "head_dim of 16" in section.caption
        assert whose in section.caption
    assert "long_factor=8 numbers" in section.title


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_are_words_and_nothing_else(label: str) -> None:
    results = [sample.perplexity(label, "nope"), sample.perplexity("other", "nope")]
    figure = draw_results(results)["perplexity"]
    figure.draw_without_rendering()
    assert len(figure.legends[0].get_texts()) == 3
    advice = replace(sample.advice(), subject=sample.subject("x", "nope", model=label))
    draw_results([advice])["advice"].draw_without_rendering()


def test_dark_and_light() -> None:
    for dark, bright in ((False, True), (True, False)):
        figure = draw_results([sample.perplexity("nope")], dark=dark)["perplexity"]
        for colour in (figure.get_facecolor(), figure.axes[0].get_facecolor()):
            assert (sum(colour[:3]) / 3 > 0.5) == bright


def test_nothing_and_strangers_are_refused() -> None:
    with pytest.raises(EvaluationError, match="no results"):
        draw_results([])
    with pytest.raises(EvaluationError, match="Nobody knows how to show Result"):
        draw_results([Result()])
