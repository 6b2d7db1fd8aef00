"""Pictures on disk, the command, and what neither may do to the process around it."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

import hf_posswap as hp
from hf_posswap.report import plot_scheme, save_figure

SIGNATURE = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml"}


@pytest.mark.parametrize("kind", SIGNATURE)
@pytest.mark.parametrize("scheme", ["rope", "sinusoidal", "xpos", "t5", "alibi"])
def test_the_same_bytes_every_time(scheme, kind, geometry, tmp_path: Path) -> None:
    for name in ("first", "second"):
        path = save_figure(plot_scheme(scheme, geometry()), tmp_path / f"{name}.{kind}")
        assert path == tmp_path / f"{name}.{kind}"
    first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("first", "second"))
    assert first.startswith(SIGNATURE[kind])
    assert first == second
    assert not any(word in first for word in (b"matplotlib v", b"Matplotlib v", b"<dc:date>", b"Software"))


def test_a_png_is_two_pixels_for_each_of_900(geometry, tmp_path: Path) -> None:
    content = save_figure(plot_scheme("alibi", geometry()), tmp_path / "alibi.PNG").read_bytes()
    assert int.from_bytes(content[16:20], "big") == 1800


def test_letters_without_a_glyph_are_no_warning(geometry, tmp_path: Path) -> None:
    figure = plot_scheme("alibi", geometry())
    figure.suptitle("模型")
    for kind in SIGNATURE:
        assert save_figure(figure, tmp_path / f"cjk.{kind}").is_file()


def test_dark_is_dark(geometry, tmp_path: Path) -> None:
    def brightness(figure) -> list[float]:
        grounds = [figure.get_facecolor(), *(axes.get_facecolor() for axes in figure.axes)]
        return [sum(colour[:3]) / 3 for colour in grounds]

    light, dark = (plot_scheme("xpos", geometry(), dark=dark) for dark in (False, True))
    assert min(brightness(light)) > 0.95
    assert max(brightness(dark)) < 0.15
    contents = [save_figure(f, tmp_path / f"{i}.svg").read_bytes() for i, f in enumerate((light, dark))]
    assert contents[0] != contents[1]


def test_written_as_any_file_is(geometry, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("as a file is made here")
    save_figure(plot_scheme("alibi", geometry()), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_mode == (tmp_path / "own.txt").stat().st_mode
    assert {p.name for p in tmp_path.iterdir()} == {"own.txt", "a.svg"}


def test_a_link_stays_a_link(geometry, tmp_path: Path) -> None:
    (tmp_path / "real.svg").write_text("old")
    (tmp_path / "link.svg").symlink_to(tmp_path / "real.svg")
    save_figure(plot_scheme("alibi", geometry()), tmp_path / "link.svg", overwrite=True)
    assert (tmp_path / "link.svg").is_symlink()
    assert (tmp_path / "real.svg").read_bytes().startswith(SIGNATURE["svg"])


def test_a_failing_disk_leaves_what_was_there(geometry, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.png").write_text("old")
    figure = plot_scheme("alibi", geometry())

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_figure(figure, tmp_path / "a.png", overwrite=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.png": "old"}


# The process around it


def test_the_users_style_is_neither_changed_nor_seen(geometry, tmp_path: Path) -> None:
    plain = save_figure(plot_scheme("xpos", geometry()), tmp_path / "plain.svg").read_bytes()
    own = {"axes.facecolor": "red", "lines.linewidth": 9, "font.size": 30, "text.color": "green", "axes.grid": True}
    with matplotlib.rc_context({**own, "xtick.labelsize": 40, "svg.fonttype": "none"}):
        before = dict(matplotlib.rcParams)
        styled = save_figure(plot_scheme("xpos", geometry()), tmp_path / "styled.svg").read_bytes()
        assert dict(matplotlib.rcParams) == before
    assert styled == plain


def test_the_style_comes_back_after_an_error(geometry) -> None:
    with matplotlib.rc_context({"font.size": 30}):
        before = dict(matplotlib.rcParams)
        with contextlib.suppress(hp.SchemeError):
            plot_scheme("nope", geometry())
        assert dict(matplotlib.rcParams) == before


def process(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_drawing_loads_matplotlib_and_nothing_loads_pyplot() -> None:
    process(
        "import sys, hf_posswap.report as report\n"
        "assert 'matplotlib' not in sys.modules and 'transformers' not in sys.modules\n"
        "figure = report.plot_scheme('alibi')\n"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
        "import matplotlib\n"
        "assert matplotlib.rcParams._get('backend') is matplotlib.rcsetup._auto_backend_sentinel\n"
    )


def test_without_matplotlib(geometry, refused, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(hp.PosswapError, match=r"need matplotlib: pip install hf_posswap\[plot\]"):
        plot_scheme("rope", geometry())
    assert "pip install hf_posswap[plot]" in refused("plot", "rope", "--output", tmp_path / "rope.png")
    assert list(tmp_path.iterdir()) == []


# The command


@pytest.mark.parametrize("kind", SIGNATURE)
def test_the_command_draws_what_the_call_draws(kind, run, geometry, tmp_path: Path) -> None:
    sizes = ("--trained-length", 256, "--head-dim", 32, "--heads", 6, "--max-length", 2048, "--dark")
    out = tmp_path / f"out.{kind}"
    done = run("plot", "yarn", "--factor", "8", "--rope-theta", "5e5", *sizes, "--output", out)
    assert (done.code, done.err, done.out) == (0, "", f"{out}: yarn (rotary encoding)\n")
    facts = geometry(trained_length=256, head_dim=32, num_attention_heads=6, num_key_value_heads=6)
    figure = plot_scheme(hp.YaRN(factor=8.0, rope_theta=5e5), facts, max_length=2048, dark=True)
    assert save_figure(figure, tmp_path / f"call.{kind}").read_bytes() == out.read_bytes()


def test_the_name_of_the_scheme_is_the_default(run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("plot", "sinusoidal", "--layout", "concatenated", "--hidden-size", 64).code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["sinusoidal.png"]


def test_a_composition(run, tmp_path: Path) -> None:
    members = '["rope", {"name": "alibi"}]'
    assert run("plot", "layered", "--schemes", members, "--pattern", "RRA", "--output", tmp_path / "l.svg").code == 0


def test_existing_files_are_kept_unless_overwritten(run, refused, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    out.write_text("mine")
    assert "--overwrite" in refused("plot", "alibi", "--output", out)
    assert out.read_text() == "mine"
    assert run("plot", "alibi", "--output", out, "--overwrite").code == 0
    assert out.read_bytes().startswith(SIGNATURE["png"])


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["bogus"], "There is no scheme 'bogus'; there are nope, learned"),
        (["nope"], "nope adds no positions"),
        (["learned"], "init='normal'"),
        (["yarn"], "yarn needs factor"),
        (["rope", "--factor", "4"], "rope has no field 'factor'"),
        (["yarn", "--factor", "0.5"], "factor=0.5 is not a finite number from 1 to 65536"),
        (["rope", "--head-dim", "15"], "even head_dim, not 15"),
        (["rope", "--heads", "0"], "num_attention_heads from 1 to 256, not 0"),
        (["rope", "--max-length", "-5"], "max_length from 16"),
        (["longrope", "--factor", "4", "--long-factor", "[1, 2]"], "2 numbers, and 64 pairs"),
    ],
)
def test_wrong_schemes_fields_and_sizes(typed, says, refused, tmp_path: Path) -> None:
    assert says in refused("plot", *typed, "--output", tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x.pdf", "saved as .png or .svg, not as 'x.pdf'"),
        ("x", "saved as .png or .svg, not as 'x'"),
        (".png", "saved as .png or .svg"),
        ("missing/x.png", "There is no directory"),
        ("folder.svg", "folder.svg is a directory"),
        ("file.txt/x.png", "There is no directory"),
    ],
)
def test_wrong_outputs(name, says, refused, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file.txt").write_text("mine")

    def never(*args, **kwargs):
        raise AssertionError("drawn before the path was checked")

    monkeypatch.setattr("hf_posswap.cli.plot.plot_scheme", never)
    assert says in refused("plot", "rope", "--output", tmp_path / name, "--overwrite")
    assert {p.name for p in tmp_path.iterdir()} == {"folder.svg", "file.txt"}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "SCHEME"),
        (["rope", "extra"], "extra"),
        (["rope", "--heads", "many"], "--heads"),
        (["rope", "--output"], "--output"),
        (["yarn", "--factor"], "--factor"),
    ],
)
def test_usage_errors(argv, says, refused) -> None:
    assert says in refused("plot", *argv)


def test_help(run) -> None:
    done = run("plot", "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("usage: hf-posswap plot")
    assert "--trained-length N" in done.out
