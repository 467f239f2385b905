"use strict";
(() => {
  const $ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const element = (name, text = "", attributes = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // The address holds the chosen head and the filters, such as #head=L2H9&label=nsubj&task=dep.
  const inAddress = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const toAddress = (key, value) => {
    const words = inAddress();
    if (value === "") words.delete(key);
    else words.set(key, value);
    if (String(words) === String(inAddress())) return;
    // No entry in the history; a page that may not change its address keeps the old one.
    try { history.replaceState(null, "", `#${words}`); } catch {}
  };
  const onAddress = [];
  addEventListener("hashchange", () => { if (location.hash.includes("=")) onAddress.forEach((read) => read()); });

  // Parts that scroll sideways can be reached by the keyboard.
  const reach = () => {
    for (const wide of $(".wide")) {
      if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
      else wide.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", reach);
  addEventListener("toggle", reach, true);
  reach();

  byId("theme").addEventListener("click", () => {
    const root = document.documentElement.classList;
    const dark = root.contains("dark") || (!root.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    root.toggle("dark", !dark);
    root.toggle("light", dark);
    // Pages from files have no storage in some browsers.
    try { localStorage.setItem("mtl-theme", dark ? "light" : "dark"); } catch {}
  });

  // Sorting: numbers by data-v, texts by the text of the cell; undefined values stay last.
  for (const table of $("table.sortable")) {
    $("thead th", table).forEach((th, column) => {
      const button = element("button", "", { type: "button" });
      button.append(...th.childNodes);
      th.replaceChildren(button);
      th.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const falls = th.getAttribute("aria-sort") === "ascending" ||
          (th.getAttribute("aria-sort") === "none" && th.classList.contains("n"));
        for (const other of $("thead th", table)) other.setAttribute("aria-sort", "none");
        th.setAttribute("aria-sort", falls ? "descending" : "ascending");
        const key = (row) => {
          const cell = row.cells[column];
          if (cell.dataset.v === undefined) return cell.textContent.trim().toLowerCase();
          return cell.dataset.v === "" ? null : Number(cell.dataset.v);
        };
        const rows = $("tbody tr", table).map((row) => [key(row), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          const order = typeof a === "number" && typeof b === "number"
            ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
          return falls ? -order : order;
        });
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  // Filters: pairs of masks by words; labels by words, task, number of items and loss.
  const has = (text, words) => words.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
  for (const input of $("input.filter")) {
    const apply = () => {
      for (const row of $("tbody tr", byId(input.dataset.table))) row.hidden = !has(row.textContent, input.value);
      toAddress(input.dataset.table, input.value);
    };
    const read = () => {
      input.value = inAddress().get(input.dataset.table) ?? "";
      if (input.value) input.closest("details").open = true;
      apply();
    };
    input.addEventListener("input", apply);
    onAddress.push(read);
    read();
  }
  const filters = byId("filters");
  if (filters) {
    const rows = $("#label-table tbody tr");
    const apply = () => {
      let shown = 0;
      for (const row of rows) {
        const { task, label, count, change } = row.dataset;
        const wanted = has(label, byId("filter-label").value) &&
          (!byId("filter-task").value || byId("filter-task").value === task) &&
          Number(count) >= Number(byId("filter-count").value) &&
          (!byId("filter-worse")?.checked || Number(change ?? 0) < 0);
        row.hidden = !wanted;
        shown += wanted;
      }
      byId("filter-shown").textContent = `${shown} of ${rows.length} labels`;
    };
    const fields = $("input, select", filters);
    const read = () => {
      for (const field of fields) {
        const given = inAddress().get(field.name) ?? "";
        if (field.type === "checkbox") field.checked = given !== "";
        else field.value = given || (field.type === "number" ? "0" : "");
      }
      if (byId("filter-task").selectedIndex < 0) byId("filter-task").value = "";
      apply();
    };
    filters.addEventListener("input", (event) => {
      const { name, type, checked, value } = event.target;
      toAddress(name, type === "checkbox" ? (checked ? "yes" : "") : type === "number" && !Number(value) ? "" : value);
      apply();
    });
    filters.addEventListener("submit", (event) => event.preventDefault());
    onAddress.push(read);
    read();
  }
  // What is folded away is printed, too.
  let folded = [];
  addEventListener("beforeprint", () => { folded = $("details:not([open])"); folded.forEach((part) => { part.open = true; }); });
  addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));

  if (!byId("data")) return;
  const data = JSON.parse(byId("data").textContent);
  const layers = data.sites.length;
  const size = layers * data.heads;
  const several = new Set(data.sites.map(([kind]) => kind)).size > 1;
  const starts = data.sites.flatMap(([kind], place) => (place && kind !== data.sites[place - 1][0] ? [place] : []));
  const at = (packed, cell) => {
    const digits = packed.slice(2 * cell, 2 * cell + 2);
    return digits === "--" ? NaN : parseInt(digits, 36);
  };
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const names = { pretrained: "Pretrained: before training", stl: "STL: alone", pair: "MTL-2: in pairs", joint: "MTL: jointly" };
  let held = null;
  let from = null; // what had the focus before the panel
  let shown = null;

  const show = (cell) => {
    if (cell === shown) return;
    shown = cell;
    const [layer, head] = [Math.floor(cell / data.heads), cell % data.heads];
    for (const mark of $(".map .mark")) {
      mark.toggleAttribute("hidden", cell === null);
      mark.setAttribute("x", head);
      mark.setAttribute("y", layer);
    }
    for (const named of $("[data-cell]")) named.classList.toggle("lit", named.dataset.cell === String(cell));
    const lit = cell !== null && document.querySelector(`circle[data-cell="${cell}"]`);
    if (lit) lit.parentNode.append(lit);
    explain(cell);
  };
  const hold = (cell) => {
    held = cell;
    byId("unpin").hidden = byId("head-link").hidden = cell === null;
    const name = cell === null ? "" : data.names[cell];
    byId("head-link").href = `#${new URLSearchParams({ head: name })}`;
    toAddress("head", name);
    show(cell);
    byId("explorer-head").textContent = title(cell);
  };
  const title = (cell) => {
    if (cell === null) return "No head chosen";
    return `${data.names[cell]}${cell === held ? " · held" : ""}`;
  };

  const table = (caption, head, rows) => {
    const made = element("table");
    made.append(element("caption", caption, { class: "sr" }));
    const first = made.createTHead().insertRow();
    for (const text of head) first.append(element("th", text, { scope: "col" }));
    const body = made.createTBody();
    for (const cells of rows) {
      const row = body.insertRow();
      for (const cell of cells) row.append(cell instanceof Node ? cell : element("td", cell));
    }
    return made;
  };

  const explain = (cell) => {
    const body = byId("explorer-body");
    byId("explorer").classList.toggle("filled", cell !== null);
    byId("explorer-head").textContent = title(cell);
    body.replaceChildren();
    if (cell === null) return;
    const tasks = Object.keys(data.claims);
    const claiming = tasks.filter((task) => at(data.claims[task], cell) > 0);
    byId("explorer-said").textContent = `${title(cell)}, ${tasks.length ? `claimed by ${claiming.length} of ${tasks.length} tasks` : ""}`;
    if (tasks.length) {
      body.append(element("h3", `Claimed by ${claiming.length} of ${tasks.length} task${tasks.length === 1 ? "" : "s"}`));
      const chips = element("div");
      for (const task of tasks) chips.append(element("span", task, { class: claiming.includes(task) ? "chip yes" : "chip" }));
      body.append(chips);
    }
    if (data.means.loss) {
      const points = (name) => data.means[name] ? (100 * data.means[name][cell]).toFixed(1) : "–";
      body.append(element("h3", "Mean skill above chance"));
      body.append(table("Mean skill above chance", ["pretrained", "STL", "MTL", "loss, points"], [["pretrained", "stl", "joint", "loss"].map(points)]));
    }
    best(body, cell);
    measures(body, cell);
    if (data.masks.length) {
      body.append(element("h3", "Gates"));
      const rows = data.masks.map((mask) => {
        const gates = mask.gates.map((gate) => at(gate, cell));
        const bar = element("td", (mean(gates) / 100).toFixed(2), { class: "gate", style: `--g:${mean(gates).toFixed(0)}` });
        const forced = mask.forced.map((cells) => (cells[cell] === "x" ? "*" : ""));
        return [mask.setup, mask.task, bar, gates.map((gate, seed) => (gate / 100).toFixed(2) + forced[seed]).join(" ")];
      });
      body.append(table("Gates", ["setup", "task", "mean", "seeds"], rows));
      if (data.masks.some(({ forced }) => forced.some((cells) => cells[cell] === "x"))) body.append(element("p", "* opened or closed by a target", { class: "hint" }));
    }
  };

  // A value as a text: `2.1 points [0.4, 3.9], q 0.010`, with its chance level in parentheses. The numbers are
  // rounded already.
  const minus = (text) => text.replaceAll("-", "\u2212");
  const threeDigits = (value) => {
    const [digits, power] = value.toExponential(2).split("e").map(Number);
    if (power >= -4 && power < 3) return minus(String(Number(value.toPrecision(3))));
    return minus(`${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`);
  };
  const oneDecimal = (value) => minus(value.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }));
  const probability = (value) => {
    if (value >= 0.001) return value.toFixed(3);
    return value < 1e-12 ? "<1e-12" : value.toExponential(0);
  };
  const wordsOf = ({ unit, beside }, numbers) => {
    if (numbers === null) return "";
    const written = (value) => (value === null ? "–" : unit === "number" || unit === "nats" ? threeDigits(value) : oneDecimal(value));
    const [value, ...others] = [].concat(numbers);
    const { chance, low, high, ...further } = Object.fromEntries(others.flatMap((other, place) => (other === null ? [] : [[beside[place], other]])));
    let text = written(value);
    if (value !== null) text += { share: " %", points: " points", nats: " nats", number: "" }[unit];
    if (low !== undefined && high !== undefined) text += ` [${written(low)}, ${written(high)}]`;
    for (const [name, other] of Object.entries(further)) text += `, ${name} ${["p", "q"].includes(name) ? probability(other) : written(other)}`;
    return chance === undefined ? text : `${text} (${written(chance)})`;
  };

  // Every measure other than skill; a row for each task and label.
  const short = { pretrained: "pretrained", stl: "STL", pair: "MTL-2", joint: "MTL" };
  const measures = (body, cell) => {
    if (data.measures.some(({ heads }) => heads[cell].length)) body.append(element("h3", "Measures"));
    for (const measure of data.measures) {
      const { title, regimes, rows, heads } = measure;
      if (!heads[cell].length) continue;
      body.append(element("h4", title[0].toUpperCase() + title.slice(1)));
      const listed = heads[cell].map(([number, ...values]) => {
        const [task, label] = rows[number];
        return [task || "all tasks", label, ...values.map((numbers) => wordsOf(measure, numbers))];
      });
      body.append(table(title, ["task", "label", ...regimes.map((regime) => short[regime])], listed));
    }
  };

  // Only labels that count, since the others are easily hit by luck. Sorted by skill, not by accuracy.
  const best = (body, cell) => {
    if (data.labels.length) body.append(element("h3", "Best labels"));
    for (const text of data.skills) body.append(element("p", text, { class: "hint" }));
    for (const [setup, skills] of Object.entries(data.skill)) {
      const known = [];
      skills.forEach((skill, place) => {
        if (skill !== null && data.labels[place][3]) known.push([at(skill, cell), at(data.value[setup][place], cell), ...data.labels[place]]);
      });
      known.sort((a, b) => b[0] - a[0] || b[4] - a[4]);
      const top = known.filter(([skill]) => skill > 0).slice(0, 4);
      body.append(element("h4", names[setup]));
      body.append(top.length
        ? table(`Best labels: ${names[setup]}`, ["label", "task", "%", "above chance"], top.map(([skill, value, task, label]) => [label, task, String(value), `+${skill}`]))
        : element("p", "nothing above chance", { class: "hint" }));
    }
  };

  // Pointing and keys, for all maps at once.
  const cellOf = (target, event) => {
    const named = target.closest?.("[data-cell]");
    if (named) return Number(named.dataset.cell);
    const map = target.closest?.("svg.map");
    if (!map) return null;
    const box = map.getBoundingClientRect();
    const view = map.viewBox.baseVal;
    const head = Math.floor(view.x + ((event.clientX - box.left) / box.width) * view.width);
    const layer = Math.floor(view.y + ((event.clientY - box.top) / box.height) * view.height);
    return head < 0 || layer < 0 || head >= data.heads || layer >= layers ? null : layer * data.heads + head;
  };
  document.addEventListener("pointermove", (event) => {
    const cell = cellOf(event.target, event);
    if (cell !== null) show(cell);
    else if (shown !== held && !byId("explorer").contains(event.target) && !document.activeElement?.matches(".group, .head")) show(held);
  });
  document.addEventListener("click", (event) => {
    const cell = cellOf(event.target, event);
    if (cell !== null) hold(cell === held ? null : cell);
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches("button.head")) show(Number(event.target.dataset.cell));
    if (event.target.matches(".group")) show(shown ?? held ?? 0);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hold(null);
    const panel = byId("explorer");
    if (event.key === "i" && shown !== null && !event.target.matches?.("input, select")) {
      if (document.activeElement === panel) {
        from?.focus();
      } else {
        from = document.activeElement;
        hold(shown);
        panel.focus();
      }
      return;
    }
    if (!event.target.matches?.(".group")) return;
    const cell = shown ?? 0;
    const [layer, head] = [Math.floor(cell / data.heads), cell % data.heads];
    const steps = {
      ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head], Home: [layer, 0], End: [layer, data.heads - 1],
    };
    if (event.key === "Enter" || event.key === " ") {
      hold(cell === held ? null : cell);
    } else if (event.key in steps) {
      const [down, across] = steps[event.key];
      if (down >= 0 && across >= 0 && down < layers && across < data.heads) show(down * data.heads + across);
    } else {
      return;
    }
    event.preventDefault();
  });
  byId("unpin").addEventListener("click", () => hold(null));
  const readHead = () => {
    const cell = data.names.indexOf(inAddress().get("head") ?? "");
    hold(cell < 0 ? null : cell);
  };
  onAddress.push(readHead);
  if (inAddress().has("head")) readHead();

  // One label over all heads, a map per setup.
  const draw = (values, most) => {
    const space = "http://www.w3.org/2000/svg";
    const make = (name, attributes) => {
      const made = document.createElementNS(space, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    const map = make("svg", { class: "map", viewBox: `0 0 ${data.heads} ${layers}`, style: `--columns:${data.heads}` });
    map.append(make("path", { class: "ground", d: `M0 0h${data.heads}v${layers}h-${data.heads}z` }));
    for (let cell = 0; cell < size; cell += 1) {
      const value = at(values, cell) / most;
      if (value > 0) map.append(make("rect", { class: "up", x: cell % data.heads, y: Math.floor(cell / data.heads), width: 1.02, height: 1.02, "fill-opacity": value }));
    }
    if (several) map.append(make("path", { class: "kinds", d: starts.map((start) => `M0 ${start}h${data.heads}`).join("") }));
    const mark = make("rect", { class: "mark", width: 1, height: 1, x: (shown ?? 0) % data.heads, y: Math.floor((shown ?? 0) / data.heads) });
    mark.toggleAttribute("hidden", shown === null);
    map.append(mark);
    return map;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button.label");
    if (!button) return;
    const place = Number(button.dataset.place);
    const panel = byId("label-maps");
    for (const row of $("#label-table tbody tr")) row.classList.toggle("chosen", row.contains(button));
    // One scale for all setups of a label.
    const known = Object.values(data.value).map((values) => values[place]).filter((values) => values !== null);
    const most = Math.max(1, ...known.flatMap((values) => Array.from({ length: size }, (_, cell) => at(values, cell) || 0)));
    panel.hidden = false;
    panel.replaceChildren(element("b", `${data.labels[place][0]} ${data.labels[place][1]}: accuracy of every head; empty is 0, full colour is ${most} %`));
    const maps = element("div", "", { class: "maps" });
    for (const [setup, values] of Object.entries(data.value)) {
      const figure = element("figure");
      figure.append(values[place] === null ? element("p", "not probed", { class: "hint" }) : draw(values[place], most), element("figcaption", names[setup]));
      maps.append(figure);
    }
    panel.append(maps);
  });
})();
