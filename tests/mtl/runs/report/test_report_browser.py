"""The report's page in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

from mtl.commands.report import report
from mtl.probes.tables import heads_table
from tests.mtl.runs.report.conftest import HEADS, LAYERS
from tests.mtl.studies import Study

pytestmark = pytest.mark.slow


@pytest.fixture
def page(browser, address):
    """The page; at the end, it must have reported no error and loaded nothing."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light")
    opened = context.new_page()
    said, asked = [], []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(address)
    yield opened
    context.close()
    assert said == []
    assert asked == [address]


def lit(page):
    """The heads that are marked in the maps, each as (layer, head) from 0; the number of maps."""
    return page.evaluate(
        """() => {
            const marks = [...document.querySelectorAll('svg.map .mark')].filter(
                (mark) => getComputedStyle(mark).display !== 'none');
            const place = (mark) => mark.getAttribute('y') + ' ' + mark.getAttribute('x');
            const places = new Set(marks.map(place));
            return [[...places], marks.length, document.querySelectorAll('svg.map').length];
        }"""
    )


def point(page, chosen, layer, head):
    """Move the mouse to a head in a mask, with axes or without."""
    chosen.scroll_into_view_if_needed()
    box = chosen.bounding_box()
    room = 1.6 if "axes" in chosen.get_attribute("class") else 0.0
    page.mouse.move(
        box["x"] + (room + head + 0.5) / (HEADS + room) * box["width"],
        box["y"] + (room + layer + 0.5) / (LAYERS + room) * box["height"],
    )


def mask(page, place):
    return page.locator("#masks .task svg.map").nth(place)


def shown(page):
    """The labels in the visible rows of the table."""
    return page.locator("#label-table tbody tr:visible button.label").all_inner_texts()


def column(page, place):
    return page.evaluate(
        """(place) => [...document.querySelectorAll('#label-table tbody tr')].map(
            (row) => row.cells[place].dataset.v ?? row.cells[place].textContent.trim())""",
        place,
    )


def test_no_head_is_marked_before_one_is_pointed_at(page):
    assert lit(page)[1] == 0
    assert page.locator("#explorer-head").inner_text() == "No head chosen"


def test_pointing_at_a_head_marks_it_in_all_maps(page):
    point(page, mask(page, 2), 3, 1)
    places, marked, maps = lit(page)
    assert (places, marked) == (["3 1"], maps)
    assert maps == 42  # five of them are grey twins of overlays
    assert page.locator("#explorer-head").inner_text() == "L3H1"
    assert page.locator("circle.lit").get_attribute("data-cell") == str(3 * HEADS + 1)
    explained = page.locator("#explorer-body").inner_text()
    for part in (
        "Claimed by",
        "Best labels",
        "Pretrained: before training",
        "STL: alone",
        "MTL: jointly",
        "Gates",
        "MTL-5, dynamic",
    ):
        assert part in explained
    point(page, mask(page, 20), 0, 5)
    assert lit(page)[0] == ["0 5"]


def test_pointing_at_a_dot_and_at_a_map_with_axes(page):
    page.locator(f'circle[data-cell="{HEADS + 2}"]').hover(force=True)
    assert lit(page)[0] == ["1 2"]
    claims = page.locator("#masks .large svg.map.axes")
    claims.scroll_into_view_if_needed()
    box = claims.bounding_box()
    unit = box["width"] / (HEADS + 1.6)
    page.mouse.move(box["x"] + (1.6 + 4.5) * unit, box["y"] + (1.6 + 2.5) * unit)
    assert lit(page)[0] == ["2 4"]


def test_a_click_holds_a_head_and_escape_lets_go(page):
    point(page, mask(page, 0), 1, 1)
    page.mouse.down()
    page.mouse.up()
    assert "held" in page.locator("#explorer-head").inner_text()
    point(page, mask(page, 0), 2, 2)
    assert lit(page)[0] == ["2 2"]
    page.evaluate("document.activeElement.blur()")
    page.locator("h1").hover()
    assert lit(page)[0] == ["1 1"]
    page.keyboard.press("Escape")
    assert lit(page)[1] == 0


def test_keys_go_from_head_to_head(page):
    page.locator("#masks .group").nth(1).focus()
    assert lit(page)[0] == ["0 0"]
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "End"):
        page.keyboard.press(key)
    assert lit(page)[0] == [f"1 {HEADS - 1}"]
    page.keyboard.press("ArrowRight")
    assert lit(page)[0] == [f"1 {HEADS - 1}"]
    page.keyboard.press("Enter")
    assert "held" in page.locator("#explorer-head").inner_text()


def test_a_key_goes_to_what_is_known_of_a_head_and_back(page):
    page.locator("#masks .group").nth(1).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("i")
    assert page.evaluate("document.activeElement.id") == "explorer"
    assert page.locator("#explorer-head").inner_text() == "L1H0 · held"
    page.keyboard.press("i")
    assert page.evaluate("document.activeElement.className") == "group"
    assert lit(page)[0] == ["1 0"]


def test_the_page_keeps_the_chosen_theme(browser, address):
    context = browser.new_context(color_scheme="light")
    opened = context.new_page()
    for chosen in ("dark", "light"):
        opened.goto(address)
        opened.click("#theme")
        opened.goto(address)
        assert opened.evaluate("document.documentElement.className") == chosen
    context.close()


def test_a_heads_name_in_a_table_lights_it_up(page):
    name = page.locator("#label-table button.head").first
    name.focus()
    cell = int(name.get_attribute("data-cell"))
    assert lit(page)[0] == [f"{cell // HEADS} {cell % HEADS}"]
    assert name.inner_text() == f"L{cell // HEADS}H{cell % HEADS}"


def test_labels_are_filtered(page):
    assert len(shown(page)) == 15
    page.fill("#filter-label", "1")
    assert shown(page) == ["pos1", "ner1", "dep1", "con1", "srl1"]  # tasks as everywhere
    page.select_option("#filter-task", "dep")
    assert shown(page) == ["dep1"]
    page.fill("#filter-label", "")
    page.fill("#filter-count", "60")
    assert shown(page) == ["dep0", "dep1"]
    assert page.locator("#filter-shown").inner_text() == "2 of 15 labels"
    page.select_option("#filter-task", "")
    page.fill("#filter-count", "0")
    page.check("#filter-worse")
    changes = [float(value) for value in column(page, 10)]
    assert len(shown(page)) == sum(change < 0 for change in changes) < 15


def test_labels_are_sorted(page):
    header = page.locator("#label-table thead th")
    header.nth(4).locator("button").click()
    falling = [float(value) for value in column(page, 4)]
    assert falling == sorted(falling, reverse=True)
    assert header.nth(4).get_attribute("aria-sort") == "descending"
    header.nth(4).locator("button").click()
    assert [float(value) for value in column(page, 4)] == falling[::-1]
    header.nth(1).locator("button").click()
    names = column(page, 1)
    assert names == sorted(names)
    assert header.nth(4).get_attribute("aria-sort") == "none"


def test_a_label_is_shown_over_all_heads(page):
    before = lit(page)[2]
    page.locator("button.label").nth(1).click()
    assert "pos pos1" in page.locator("#label-maps").inner_text()
    chosen = page.locator("#label-maps svg.map")
    assert chosen.count() == 3
    point(page, chosen.nth(1), 2, 3)
    assert lit(page) == [["2 3"], before + 3, before + 3]


def test_light_and_dark(browser, address, page):
    def ground(of):
        return of.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground(page)
    page.click("#theme")
    dark = ground(page)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 22, 26)")
    page.click("#theme")
    assert ground(page) == light
    context = browser.new_context(color_scheme="dark")
    other = context.new_page()
    other.goto(address)
    assert ground(other) == dark
    other.emulate_media(media="print")
    assert ground(other) == light
    for screen_only in ("#explorer", "nav", "#filters"):
        assert not other.locator(screen_only).is_visible()
    context.close()


def test_figures_are_dark_on_the_screen_and_light_on_paper(page):
    looks = "getComputedStyle(document.querySelector('img.figure')).filter"
    assert page.evaluate(looks) == "none"
    page.click("#theme")
    assert page.evaluate(looks).startswith("invert(0.92)")
    page.emulate_media(media="print")
    assert page.evaluate(looks) == "none"


def test_a_head_that_is_held_is_printed(page):
    page.emulate_media(media="print")
    assert not page.locator("#explorer").is_visible()
    page.emulate_media(media="screen")
    point(page, mask(page, 0), 1, 1)
    page.mouse.down()
    page.mouse.up()
    page.emulate_media(media="print")
    assert "Gates" in page.locator("#explorer-body").inner_text()


def test_a_link_leads_to_a_head(page, browser, address):
    point(page, mask(page, 0), 1, 2)
    page.mouse.down()
    page.mouse.up()
    assert page.evaluate("location.hash") == "#head=L1H2"
    link = page.locator("#head-link").get_attribute("href")
    page.keyboard.press("Escape")
    assert "L1H2" not in page.evaluate("location.href")
    other = browser.new_page()
    other.goto(f"{address}{link}")
    assert other.locator("#explorer-head").inner_text() == "L1H2 · held"
    other.goto(f"{address}#head=L9H9")
    assert other.locator("#explorer-head").inner_text() == "No head chosen"
    other.close()


def test_filters_are_in_the_address(page, browser, address):
    page.fill("#filter-label", "1")
    page.select_option("#filter-task", "dep")
    page.fill("#filter-count", "30")
    page.check("#filter-worse")
    point(page, mask(page, 0), 1, 2)
    page.mouse.down()
    page.mouse.up()
    here = page.evaluate("location.hash")
    assert here == "#label=1&task=dep&items=30&worse=yes&head=L1H2"
    before = shown(page)
    other = browser.new_page()
    other.goto(f"{address}{here}")
    assert shown(other) == before == ["dep1"]
    assert other.locator("#filter-worse").is_checked()
    assert "L1H2" in other.locator("#explorer-head").inner_text()
    other.goto(f"{address}#task=none&items=many")
    assert len(shown(other)) == 15
    other.close()


@pytest.mark.parametrize("width", [420, 1400])
def test_the_deciding_column_is_never_cut(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.wide')].filter((of) => of.offsetWidth).map((of) => {
            const within = of.getBoundingClientRect();
            const cells = [...of.querySelectorAll('.decides')].map((cell) => cell.getBoundingClientRect());
            const outside = ({left, right}) => left < within.left - 1 || right > within.right + 1;
            return [cells.length, cells.filter(outside).length];
        })"""
    )
    assert sum(cells > 0 for cells, _ in cut) >= 2
    assert all(not outside for _, outside in cut)


def test_tables_of_runs_need_no_scrolling_on_a_wide_screen(page):
    page.set_viewport_size({"width": 1400, "height": 900})
    cut = page.evaluate(
        """() => {
            for (const cell of document.querySelectorAll('#provenance td')) cell.append('-train.conllu');
            const tables = [...document.querySelectorAll('#provenance .wide')];
            return [tables.length, tables.filter((at) => at.scrollWidth > at.clientWidth).length];
        }"""
    )
    assert cut[0] >= 1
    assert cut[1] == 0


@pytest.mark.parametrize("width", [380, 900, 1360])
def test_nothing_sticks_out(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    point(page, mask(page, 0), 0, 0)
    assert page.evaluate("document.documentElement.scrollWidth") == width


PAGES = ("address", "kinds_address", "long_address")


@pytest.fixture
def on_a_phone(browser, request):
    """A page on a screen 420 pixels wide, in dark colours, with everything unfolded and a head chosen."""
    context = browser.new_context(viewport={"width": 420, "height": 800}, color_scheme="dark")
    opened = context.new_page()
    opened.goto(request.getfixturevalue(request.param))
    opened.evaluate("document.querySelectorAll('details').forEach((of) => { of.open = true; })")
    point(opened, mask(opened, 0), 0, 0)
    yield opened
    context.close()


@pytest.mark.parametrize("on_a_phone", PAGES, indirect=True)
def test_nothing_is_wider_than_a_phone(on_a_phone):
    assert on_a_phone.evaluate("document.documentElement.scrollWidth") == 420
    wider = """() => [...document.querySelectorAll('main *, header *, aside *')].filter((of) => {
        const box = of.getBoundingClientRect();
        return box.width && !of.closest('.wide') && (box.right > 420.5 || box.left < -0.5);
    }).map((of) => of.outerHTML.slice(0, 99))"""
    assert on_a_phone.evaluate(wider) == []


@pytest.mark.parametrize("on_a_phone", PAGES, indirect=True)
def test_tables_say_what_they_and_their_headers_are(on_a_phone):
    tables = on_a_phone.locator("table")
    assert tables.count() >= 5
    captions = [tables.nth(place).locator("caption").all_text_contents() for place in range(tables.count())]
    assert all(len(of) == 1 and of[0].strip() for of in captions)
    assert len({of[0] for of in captions}) == len(captions)
    headers = "[...document.querySelectorAll('th')]"
    assert set(on_a_phone.evaluate(f"{headers}.map((th) => th.scope)")) <= {"col", "row"}
    assert on_a_phone.evaluate(f"{headers}.filter((th) => !th.textContent.trim()).length") == 0


def luminance(colour):
    """WCAG's relative luminance of a colour as the browser gives it."""
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("on_a_phone", PAGES, indirect=True)
def test_tables_are_dark_where_the_system_is(on_a_phone):
    """The text of every cell, header and caption has WCAG's contrast of 4.5 on a dark ground."""
    pairs = on_a_phone.evaluate(
        """() => [...document.querySelectorAll('caption, th, td, table small, table span, table button')].map(
            (of) => {
                const colour = (of) => getComputedStyle(of).backgroundColor;
                let ground = of;
                while (colour(ground) === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
                return [getComputedStyle(of).color, colour(ground), of.matches('.lit')];
            })"""
    )
    plain = [pair for pair in pairs if pair[1].startswith("rgb")]  # not the mixtures of correlations
    assert len(plain) > 50
    for text, ground, lit in plain:
        assert lit or luminance(ground) < 0.1
        low, high = sorted((luminance(text), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_a_head_is_named_by_its_kind_and_has_all_measures(browser, kinds_address):
    opened = browser.new_page()
    opened.goto(kinds_address)
    chosen = mask(opened, 0)
    chosen.scroll_into_view_if_needed()
    box = chosen.bounding_box()
    left, _, width, _ = (float(number) for number in chosen.get_attribute("viewBox").split())
    unit = box["width"] / width
    opened.mouse.move(box["x"] + (1.5 - left) * unit, box["y"] + (1.6 + 4.5) * unit)
    assert opened.locator("#explorer-head").inner_text() == "cross L0H1"
    explained = opened.locator("#explorer-body").inner_text()
    assert "Mean attention to the most attended word" in explained
    assert "pos\t\t13.0 %" in explained
    opened.close()


def in_words(unit, value, low=None, high=None, p=None, q=None, chance=None):
    """A value as the page shows it, by Python's own formats."""

    def written(number):
        text = f"{number:.3g}" if unit in ("nats", "number") else f"{number:,.1f}"
        return ("0.0" if text == "-0.0" else text).replace("-", "\N{MINUS SIGN}")

    text = written(value) + {"share": " %", "points": " points", "nats": " nats", "number": ""}[unit]
    if low is not None and high is not None:
        text += f" [{written(low)}, {written(high)}]"
    for name, probability in (("p", p), ("q", q)):
        if probability is not None:
            shown = (
                f"{probability:.3f}" if probability >= 0.001 else f"{probability:.0e}".replace("e-0", "e-")
            )
            text += f", {name} {'<1e-12' if probability < 1e-12 else shown}"
    return text if chance is None else f"{text} ({written(chance)})"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A report with measures of every unit, tested and not, whose sizes differ by many powers of ten."""
    study = Study(tmp_path_factory.mktemp("measured") / "study", LAYERS, HEADS)
    path = study.run(["pos"], 1) / "heads.parquet"
    skills, provenance = heads_table.read_heads_table(path)
    random = np.random.default_rng(3)
    shape, one = (1, LAYERS, HEADS), np.array([200])
    powers = 10.0 ** random.integers(-9, 5, size=shape)
    values = {
        "confidence": random.uniform(size=shape),
        "importance": random.normal(size=shape) * powers,
        "ablation": random.normal(size=shape) * np.where(powers > 1, 2000, 0.1),
        "syntactic": random.uniform(size=shape),
        "syntactic_offset": random.uniform(size=shape),
    }
    values["ablation_low"], values["ablation_high"] = values["ablation"] - 1.25, values["ablation"] + 0.75
    values["ablation_p"] = np.clip(10.0 ** random.uniform(-15, 1, size=shape), 0, 1)
    values["ablation_q"] = np.clip(10.0 ** random.uniform(-4, 1, size=shape), 0, 1)
    label = {"syntactic": "det", "syntactic_offset": "det"}
    rows = [heads_table.rows(name, "pos", [label.get(name, "")], of, one) for name, of in values.items()]
    heads_table.write_heads_table(path, pl.concat([skills, *rows]), provenance)
    report(study.root)
    return (study.root / "report.html").as_uri(), {name: of[0] for name, of in values.items()}


def test_measures_are_worded_as_python_words_them(browser, measured):
    address, values = measured
    opened = browser.new_page()
    opened.goto(address)
    for (layer, head), ablation in np.ndenumerate(values["ablation"]):
        point(opened, mask(opened, 0), layer, head)
        explained = opened.locator("#explorer-body").inner_text()
        at = {name: of[layer, head] for name, of in values.items()}
        tested = {end: at[f"ablation_{end}"] for end in ("low", "high", "p", "q")}
        for text in (
            in_words("share", 100 * at["confidence"]),
            in_words("nats", at["importance"]),
            in_words("points", ablation, **tested),
            in_words("share", 100 * at["syntactic"], chance=100 * at["syntactic_offset"]),
        ):
            assert f"\t{text}\n" in f"{explained}\n", (layer, head)
    opened.close()


def test_a_page_without_heads(browser, tmp_path):
    Study(tmp_path).run(["pos"], 1, pruning="none", probe=False)
    report(tmp_path)
    opened = browser.new_page()
    said = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto((tmp_path / "report.html").as_uri())
    opened.locator(".scores thead button").first.click()
    assert "No run has masks" in opened.locator("#masks").inner_text()
    opened.close()
    assert said == []


OUTSIDE = """() => {
    const seen = (each) => each.checkVisibility({contentVisibilityAuto: true, opacityProperty: true});
    const name = (each) => (each.closest('table')?.caption ?? each).textContent.trim().slice(0, 60);
    const edge = document.documentElement.clientWidth + 1;
    const found = document.documentElement.scrollWidth > edge ? ['the page is too wide'] : [];
    const scrollers = (each) => {
        const around = [];
        for (let at = each.parentElement; at; at = at.parentElement)
            if (/auto|scroll/.test(getComputedStyle(at).overflowX) && at.scrollWidth > at.clientWidth)
                around.push(at);
        return around;
    };
    const boxes = 'td, th, caption, figcaption, h1, h2, h3, h4, p, li, dd';
    for (const each of document.querySelectorAll(boxes)) {
        if (!seen(each)) continue;
        if (each.scrollWidth > each.clientWidth + 1)
            found.push('cut: ' + name(each) + ': ' + each.textContent);
        const around = scrollers(each);
        if (each.getBoundingClientRect().right > edge && !around.length) found.push('out: ' + name(each));
        if (each.matches('#first *') && !each.closest('#examples') && around.length)
            found.push('scrolls: ' + name(each));
    }
    for (const text of document.querySelectorAll('svg text')) {
        if (!seen(text)) continue;
        const svg = text.ownerSVGElement, of = svg.getBoundingClientRect();
        const box = text.getBoundingClientRect();
        const across = box.left < of.left - 1 || box.right > of.right + 1;
        if (across || box.top < of.top - 1 || box.bottom > of.bottom + 1)
            found.push('outside of ' + svg.getAttribute('aria-label') + ': ' + text.textContent);
    }
    return found;
}"""


@pytest.mark.parametrize("letters", [3, 8, 20])
def test_no_digit_and_no_word_of_the_page_is_cut_off(browser, named, letters):
    """In each width and scheme and in print (A4 has 718 pixels within its margins), with all unfolded.

    Every cell and text is within its box and the page; only what is below the first screen may scroll.
    """
    page = browser.new_page()
    page.goto(named[letters])
    assert page.locator("#cost table tbody tr").count() == 2
    assert page.locator("svg.map .forced").count() > 5
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    screens = [(scheme, width) for scheme in ("light", "dark") for width in (390, 768, 1280, 1920)]
    for scheme, width in [*screens, ("print", 718)]:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(
            color_scheme="dark" if scheme == "dark" else "light",
            media="print" if scheme == "print" else "screen",
        )
        assert page.evaluate(OUTSIDE) == [], (scheme, width)
    page.close()


def test_what_is_cut_off_is_found(browser, named):
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(named[3])
    assert page.evaluate(OUTSIDE) == []
    for selector, change in {
        "#cost td.n": "each.style.cssText = 'display: block; width: 1ch; overflow: hidden'",
        "#cost p": "each.style.cssText = 'white-space: nowrap'",
        "svg.map text": "each.setAttribute('x', -9)",
    }.items():
        page.evaluate(
            f"(selector) => {{ const each = document.querySelector(selector); {change} }}", selector
        )
        assert page.evaluate(OUTSIDE) != []
        page.goto(named[3])
    page.close()
