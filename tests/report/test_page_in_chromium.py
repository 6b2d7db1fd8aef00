"""The page in a real browser, without a window: as it is on a phone and a desk, in light and dark."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from report import sample_results as sample

from hf_posswap.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
LOOK_IN = "--allow-file-access-from-files"
DARK = "--blink-settings=preferredColorScheme=0"
GROUNDS = {"light": (255, 255, 255), "dark": (13, 17, 23)}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")

FRAME = """<!DOCTYPE html><html><head><meta name="color-scheme" content="light dark"></head><body>
<iframe src="page.html" width="WIDTH" height="900" sandbox="allow-same-origin"></iframe><pre></pre><script>
onload = () => {
  const seen = document.querySelector("iframe"), page = seen.contentDocument, view = seen.contentWindow
  document.querySelector("pre").textContent = JSON.stringify({
    width: view.innerWidth,
    needed: page.documentElement.scrollWidth,
    images: [...page.images].map(each => [each.complete, each.naturalWidth, each.width, each.currentSrc]),
    fetched: view.performance.getEntriesByType("resource").map(each => each.name.slice(0, 5)),
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    title: page.title,
    scripts: page.scripts.length,
    clipped: [...page.querySelectorAll("table, img, pre")].filter(
      each => each.getBoundingClientRect().right > view.innerWidth && !each.closest(".scrolls, pre")).length,
  })
}
</script></body></html>"""
"""The page in a frame that may run no scripts: without JavaScript, whatever is in it. The page around it looks in."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hostile = sample.perplexity("<script>document.title = 'changed'</script>", "nope")
    results = [hostile, sample.perplexity("nope"), sample.retrieval("needle", "nope"), sample.properties("nope")]
    return write_report(results, tmp_path_factory.mktemp("report") / "page.html")


def chromium(tmp_path: Path, url: Path, *options: str) -> str:
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options, url.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def look(report: Path, tmp_path: Path, width: int, *options: str) -> dict[str, Any]:
    frame = report.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.replace("WIDTH", str(width)))
    found = re.search("<pre>(.*?)</pre>", chromium(tmp_path, frame, "--dump-dom", LOOK_IN, *options), re.DOTALL)
    assert found is not None
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize(("width", "theme"), [(400, "light"), (400, "dark"), (1200, "light")])
def test_it_opens_without_scripts_and_network(width: int, theme: str, report: Path, tmp_path: Path) -> None:
    seen = look(report, tmp_path, width, *([DARK] if theme == "dark" else []))
    assert seen["title"] == "Long-context evaluation of a-small-llama"
    assert seen["dark"] == (theme == "dark")
    assert seen["scripts"] == 0
    assert len(seen["images"]) == 2
    for complete, natural, shown, source in seen["images"]:
        assert complete
        assert natural >= 640
        assert shown >= 600, "smaller, nobody could read it"
        assert source.startswith("data:image/")
    assert not set(seen["fetched"]) - {"data:"}
    assert seen["width"] == width
    assert seen["needed"] <= width, "the page scrolls sideways"
    assert seen["clipped"] == 0


def test_light_and_dark_show_other_pictures(report: Path, tmp_path: Path) -> None:
    light, dark = (look(report, tmp_path, 400, *options)["images"] for options in ([], [DARK]))
    for one, other in zip(light, dark, strict=True):
        assert one[3] != other[3]


@pytest.mark.parametrize("theme", GROUNDS)
def test_it_is_seen(theme: str, report: Path, tmp_path: Path) -> None:
    shot, options = tmp_path / "shot.png", [DARK] if theme == "dark" else []
    chromium(tmp_path, report, f"--screenshot={shot}", "--window-size=1000,1600", *options)
    with Image.open(shot) as picture:
        colours = picture.convert("RGB").getcolors(2**24)
    assert colours is not None
    counts = {colour: count for count, colour in colours}
    share = counts[GROUNDS[theme]] / sum(counts.values())
    assert 0.5 < share < 0.98, "neither blank nor of another ground"
    assert len(counts) > 50
