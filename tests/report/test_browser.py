"""The report in a real browser: it draws, switches tabs, shows maps with their tokens, and makes no request."""

import json
import re
import shutil

import pytest

from linnet.cli.app import run_app as linnet
from linnet.report.page import write_report_page
from linnet.storage import write_json_file
from tests.report.browser import Browser, browser, program

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
pytestmark = pytest.mark.skipif(program() is None, reason="needs a browser: chromium is not installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory, trained):
    """A report of one analyzed run with hostile names in it, and one of two runs."""
    folder = tmp_path_factory.mktemp("browser")
    run = shutil.copytree(trained, folder / "run")
    assert linnet(["analyze", str(run), "--samples", "1", "--json"]) == 0
    found = json.loads((run / "analysis/analysis.json").read_text())
    found["tokens"][3] = HOSTILE
    found["layers"][1]["name"] = f"layer 1 {HOSTILE}"
    found["layers"][1]["notes"]["entropy"] = HOSTILE
    write_json_file(run / "analysis/analysis.json", found)
    write_report_page([run], folder / "one.html")
    write_report_page([run, trained], folder / "two.html")
    text, long = folder / "long.txt", shutil.copytree(trained, folder / "long")
    text.write_text("abcdefghij" * 60)
    options = ["--text", str(text), "--tokens", "600", "--instrument", "attention_map", "--json"]
    assert linnet(["analyze", str(long), *options]) == 0
    write_report_page([long], folder / "long.html")
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def shown(chromium: Browser) -> list[str]:
    """The names of the visible panels."""
    seen = "[...document.querySelectorAll('.panel')].filter(panel => panel.offsetHeight > 0)"
    return chromium.script(f"{seen}.map(panel => panel.querySelector('h2').textContent)")


def assert_clean(chromium: Browser) -> None:
    """There was no error, no script from a run's text, and no request except the file itself and data: images."""
    assert chromium.errors == []
    assert chromium.script("typeof window.hacked") == "undefined"
    asked = [url for url in chromium.requests if not url.startswith(("data:", "blob:"))]
    assert asked == [chromium.script("location.href.split('#')[0]")]


@pytest.mark.parametrize("width", [1400, 420])
def test_it_draws_and_switches_tabs(page, chromium, width):
    chromium.open(page / "one.html", width)
    assert shown(chromium) == ["Training"]
    drawn = "document.querySelectorAll('.panel:not([hidden]) .chart .main-svg').length"
    assert chromium.script(drawn) >= 4
    tabs = chromium.script("[...document.querySelectorAll('[role=tab]')].map(tab => tab.textContent)")
    assert tabs == ["Training", "Attention", "Text", "Configuration", "Environment"]
    for i, name in enumerate(tabs):
        chromium.script(f"document.querySelectorAll('[role=tab]')[{i}].click()")
        assert shown(chromium) == [name]
        assert chromium.script("document.querySelector('[aria-selected=true]').textContent") == name
        assert chromium.script("document.documentElement.scrollWidth <= innerWidth"), name  # nothing sticks out
        box = chromium.script(f"document.querySelectorAll('[role=tab]')[{i}].getBoundingClientRect().toJSON()")
        assert 0 <= box["left"] < box["right"] <= width, name
    assert_clean(chromium)


def test_a_map_shows_its_tokens(page, chromium):
    chromium.open(page / "one.html", fragment="#1")
    chromium.wait("document.querySelectorAll('.map .heatmaplayer image').length === 1")
    pictures = "document.querySelectorAll('.thumbs canvas').length"
    assert chromium.script(pictures) == 4  # two layers of two heads
    chromium.script("document.querySelector('.map').scrollIntoView({block: 'center'})")
    place = chromium.script(
        "(() => { const box = document.querySelector('.map .heatmaplayer image').getBoundingClientRect();"
        " return [box.x, box.y, box.width, box.height]; })()"
    )
    chromium.point(place[0] + place[2] * 3.5 / 32, place[1] + place[3] * 10.5 / 32)  # query 10, key 3
    chromium.wait("document.querySelector('.readout').textContent.includes('reads')")
    text = chromium.script("document.querySelector('.readout').textContent")
    assert text.startswith("10 “")
    assert f"reads 3 “{HOSTILE}”: " in text
    weight = float(text.rsplit(" ", 1)[1])
    assert 0 <= weight <= 1
    assert_clean(chromium)


def test_a_pooled_map_counts_tokens(page, chromium):
    """With 600 tokens in 256 pools, the axes and the words still count tokens."""
    chromium.open(page / "long.html", fragment="#1")
    chromium.wait("document.querySelectorAll('.map .heatmaplayer image').length === 1")
    assert chromium.script("document.querySelector('.readout').textContent").endswith("600 tokens pooled to 256")
    for axis in ("x", "y"):
        ticks = chromium.script(f"[...document.querySelectorAll('.map .{axis}tick text')].map(t => +t.textContent)")
        assert 400 <= max(ticks) <= 600
    chromium.script("document.querySelector('.map').scrollIntoView({block: 'center'})")
    place = chromium.script(
        "(() => { const box = document.querySelector('.map .heatmaplayer image').getBoundingClientRect();"
        " return [box.x, box.y, box.width, box.height]; })()"
    )
    chromium.point(place[0] + place[2] * 100.5 / 256, place[1] + place[3] * 200.5 / 256)  # query 200, key 100
    chromium.wait("document.querySelector('.readout').textContent.includes('reads')")
    text = chromium.script("document.querySelector('.readout').textContent")
    for (first, last, word), pool in zip(re.findall("([0-9]+)–([0-9]+) “([a-j]+)”", text), (200, 100), strict=True):
        assert abs(int(first) - pool * 600 / 256) < 4  # a pool is but a pixel or two wide
        assert word == ("abcdefghij" * 60)[int(first) : int(last) + 1]
    assert_clean(chromium)


def test_other_heads_can_be_chosen(page, chromium):
    chromium.open(page / "one.html", fragment="#1")
    chromium.wait("document.querySelectorAll('.map .heatmaplayer image').length === 1")
    chromium.script("document.querySelectorAll('.thumbs button')[3].click()")
    assert chromium.script("document.querySelector('.readout').textContent").endswith(", head 1")
    assert chromium.script("[...document.querySelectorAll('.picker select')].map(s => s.value)") == ["1", "1"]
    chromium.script("document.getElementById('map-layer').value = '0'")
    chromium.script("document.getElementById('map-layer').dispatchEvent(new Event('change'))")
    assert chromium.script("document.querySelector('.readout').textContent") == "layer 0 diag, head 1"
    assert_clean(chromium)


def test_lines_have_the_color_of_their_system_and_are_lighter_on_a_dark_page(page, chromium):
    lines = "[...document.querySelector('.chart').querySelectorAll('.scatterlayer .js-line')]"
    bright = {}
    for mode in ("light", "dark"):
        chromium.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        chromium.open(page / "one.html")
        train, valid = chromium.script(f"{lines}.map(line => line.style.stroke)")
        assert train == valid  # validation is the same line, dashed
        bright[mode] = [int(part) for part in re.findall("[0-9]+", train)]
    chromium.send("Emulation.setEmulatedMedia", features=[])
    assert bright["light"] == [0, 114, 178]  # the first color of figures/colors.py
    assert all(b > a for a, b in zip(bright["light"], bright["dark"], strict=True))
    assert_clean(chromium)


def test_keys_move_between_tabs(page, chromium):
    chromium.open(page / "one.html")
    chromium.script("document.querySelector('[role=tab]').focus()")
    for key, name in (("ArrowRight", "Attention"), ("End", "Environment"), ("ArrowRight", "Training")):
        script = f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
        chromium.script(script)
        assert shown(chromium) == [name]


@pytest.mark.parametrize("width", [1400, 420])
def test_two_runs_side_by_side(page, chromium, width):
    chromium.open(page / "two.html", width, fragment="#1")
    chromium.wait("document.querySelectorAll('.map .heatmaplayer image').length === 1")
    assert chromium.script("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.script("document.querySelectorAll('.panel:not([hidden]) .chart .main-svg').length") > 0
    assert_clean(chromium)


def test_without_scripts_all_text_is_there(page, chromium):
    chromium.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.send("Page.navigate", url=(page / "one.html").as_uri())
        chromium.wait("document.readyState === 'complete'")
        assert shown(chromium) == ["Training", "Attention", "Text", "Configuration", "Environment"]
        assert chromium.script("document.querySelector('.tabs').offsetHeight") == 0
    finally:
        chromium.send("Emulation.setScriptExecutionDisabled", value=False)
