"""What an audit of accessibility asks of the report's page, in a real browser.

Lighthouse and axe need npm; these are their rules that a page of this kind can break.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PAGES = ("address", "kinds_address", "long_address")
AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")


@pytest.fixture(params=[(1400, "light"), (1400, "dark"), (420, "light"), (420, "dark")], ids=str)
def screen(browser, request):
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("place", PAGES)
@pytest.mark.parametrize("head", ["", "#head=L1H2"], ids=["no head", "a head"])
def test_an_audit_finds_nothing(screen, place, head, request):
    screen.goto(request.getfixturevalue(place) + head)
    screen.evaluate("document.querySelectorAll('details').forEach((of) => { of.open = true; })")
    screen.wait_for_function("document.getAnimations().length === 0")
    assert {rule: found for rule, found in screen.evaluate(AUDIT).items() if found} == {}


BROKEN = {
    "no language": "document.documentElement.removeAttribute('lang')",
    "a heading skips a level": "document.querySelector('h2').outerHTML = '<h5>x</h5>'",
    "a control without a name": "document.querySelector('#theme').outerHTML = '<button></button>'",
    "an image without a text": "document.querySelector('img').removeAttribute('alt')",
    "an id twice": "document.querySelector('h2').id = 'theme'",
    "a header cell without a scope": "document.querySelector('th').removeAttribute('scope')",
    "a table without a caption": "document.querySelector('table').deleteCaption()",
    "letters that are too faint": "document.querySelector('h1').style.color = '#999'",
    "not one main landmark": "document.querySelector('main').outerHTML = '<div></div>'",
    "a link to nowhere": "document.querySelector('nav a').setAttribute('href', '#nowhere')",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_the_audit_finds_what_is_broken(browser, address, rule):
    page = browser.new_page()
    page.goto(address)
    page.evaluate(BROKEN[rule])
    assert page.evaluate(AUDIT)[rule] != []
    page.close()
