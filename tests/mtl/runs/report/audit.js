// By rule what breaks it: the start of each element, or its name.
() => {
    const seen = (of) => of.checkVisibility({visibilityProperty: true}) && !of.closest('[aria-hidden=true]');
    const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
    const start = (of) => of.outerHTML.slice(0, 120);
    const byIds = (of, name) => (of.getAttribute(name) ?? '').split(' ').filter(Boolean)
        .map((id) => document.getElementById(id)?.textContent ?? '').join(' ');
    const named = (of) => [of.getAttribute('aria-label'), byIds(of, 'aria-labelledby'), of.alt, of.innerText,
        ...[...(of.labels ?? [])].map((label) => label.innerText)].some((text) => (text ?? '').trim());

    // Contrast: WCAG 2, 4.5 to 1, and 3 to 1 for large letters.
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
    };
    const over = ([r, g, b, a], ground) => [r, g, b].map((value, n) => a * value + (1 - a) * ground[n]);
    const ground = (of) => {
        const layers = [];
        for (let at = of; at; at = at.parentElement) layers.unshift(rgba(getComputedStyle(at).backgroundColor));
        return layers.reduce((below, layer) => over(layer, below), [1, 1, 1]);
    };
    const light = (colour) => {
        const [r, g, b] = colour.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const faint = (of) => {
        if (![...of.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) return false;
        if (of.closest('svg')) return false;
        let opacity = 1;
        for (let at = of; at; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
        const behind = ground(of), style = getComputedStyle(of);
        const [r, g, b, a] = rgba(style.color);
        const [low, high] = [light(over([r, g, b, a * opacity], behind)), light(behind)].sort((x, y) => x - y);
        const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
        return (high + 0.05) / (low + 0.05) < (large ? 3 : 4.5);
    };

    const levels = all('h1, h2, h3, h4, h5, h6').map((of) => Number(of.tagName[1]));
    const ids = [...document.querySelectorAll('[id]')].map((of) => of.id);
    return {
        'no language': document.documentElement.lang ? [] : ['html'],
        'no title': document.title.trim() ? [] : ['title'],
        'no zoom': /user-scalable=no|maximum-scale/.test(document.querySelector('meta[name=viewport]').content) ? ['meta'] : [],
        'not one main landmark': all('main').length === 1 ? [] : ['main'],
        'outside of landmarks': all('body > *').filter((of) => !of.matches('script, style') && !of.matches('header, main, aside, nav, footer')
            && !of.querySelector('main')).map(start),
        'not one first heading': levels.filter((level) => level === 1).length === 1 ? [] : ['h1'],
        'a heading skips a level': levels.filter((level, n) => n && level > levels[n - 1] + 1).map(String),
        'an id twice': ids.filter((id, n) => ids.indexOf(id) !== n),
        'a control without a name': all('button, a[href], input, select, summary, [role=button], [tabindex="0"][role]')
            .filter((of) => !named(of)).map(start),
        'an image without a text': all('img, svg').filter((of) => !(of.hasAttribute('alt') || of.getAttribute('aria-label')
            || of.getAttribute('role') === 'presentation')).map(start),
        'a link to nowhere': all('a[href^="#"]').filter((of) => of.hash && !of.hash.includes('=') && !document.getElementById(of.hash.slice(1)))
            .map(start),
        'a header cell without a scope': all('th:not([scope])').map(start),
        'a table without a caption': all('table').filter((of) => !of.caption).map(start),
        'a list with other children': all('ul, ol').filter((of) => [...of.children].some((child) => !child.matches('li'))).map(start),
        'a control that is too small to tap': innerWidth > 500 ? [] : all('button, summary, select, input:not([type=checkbox])')
            .filter((of) => Math.min(of.getBoundingClientRect().height, of.getBoundingClientRect().width) < 24).map(start),
        'scrolls and is out of reach': all('*').filter((of) => /auto|scroll/.test(getComputedStyle(of).overflowX + getComputedStyle(of).overflowY)
            && (of.scrollWidth > of.clientWidth + 1 || of.scrollHeight > of.clientHeight + 1) && of.tabIndex < 0
            && !of.querySelector('a, button, input, select, summary')).map(start),
        'letters that are too faint': all('body *').filter(faint).map(start),
    };
}
