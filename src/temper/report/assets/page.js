"use strict";
// Figures in the colours of the theme with their keys, a table that sorts, details on hover and focus.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const printing = window.matchMedia("print");

  const recoloured = (value, map) => {
    if (Array.isArray(value)) return value.map((part) => recoloured(part, map));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, recoloured(part, map)]));
    }
    return typeof value === "string" && map.has(value) ? map.get(value) : value;
  };

  const hidden = new Set();
  const several = charts.columns.length > 1;
  const drawnOf = (section) => [...section.querySelectorAll(".chart")].flatMap((chart) => charts.figures[chart.id].data);

  const wrapped = (text, most) => {
    const lines = [""];
    for (const word of text.split(" ")) {
      if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    return lines;
  };
  // On a narrow screen long labels would leave no room for what they name.
  const narrow = (layout, data, width) => {
    if (width > 800) return;
    const room = (layout.yaxis.type === "category" ? 0.35 : 0.8) * width;
    const title = wrapped(layout.xaxis.title?.text ?? "", Math.max(12, room / 7));
    if (title.length > 1) {
      layout.xaxis.title.text = title.join("<br>");
      layout.margin.b += 16 * (title.length - 1);
      layout.height += 16 * (title.length - 1);
    }
    if (layout.yaxis.type !== "category" || width > 560) return;
    const values = [...new Set(data.flatMap((trace) => trace.y))];
    const labels = values.map((text) => wrapped(text, 20));
    const most = Math.max(...labels.map((lines) => lines.length));
    Object.assign(layout.yaxis, { tickvals: values, ticktext: labels.map((lines) => lines.join("<br>")) });
    layout.height = Math.max(layout.height, 130 + values.length * (16 * most + 8));
  };

  const draw = () => {
    const night = dark.matches && !printing.matches;
    const { light, dark: shades } = charts.palettes;
    const map = new Map(night ? light.map((colour, place) => [colour, shades[place]]) : []);
    const ink = night ? "#d5dae1" : "#2b3440";
    const rule = night ? "#343d49" : "#dfe4ea";
    const back = night ? "#1b222b" : "#ffffff";
    const family = getComputedStyle(document.body).fontFamily;
    for (const [name, figure] of Object.entries(charts.figures)) {
      const layout = structuredClone(figure.layout);
      const chart = document.getElementById(name);
      layout.font = { family, size: 13, color: ink };
      layout.hoverlabel = { ...layout.hoverlabel, bgcolor: back, bordercolor: rule, font: { family, size: 13, color: ink } };
      for (const axis of [layout.xaxis, layout.yaxis]) {
        Object.assign(axis, { gridcolor: rule, linecolor: rule, tickcolor: rule, fixedrange: true });
      }
      const keyed = figure.data.some((trace) => trace.legendgroup);
      if (keyed) {
        // The section has keys of its own, or one column alone.
        layout.showlegend = false;
        layout.height -= 36;
        layout.margin.b = Math.min(layout.margin.b, 48);
      }
      narrow(layout, figure.data, chart.clientWidth);
      // Paper is as wide as it is: Plotly would measure it only after it was printed.
      if (printing.matches) layout.width = chart.clientWidth;
      const traces = recoloured(figure.data, map).map((trace) =>
        keyed && hidden.has(trace.legendgroup) ? { ...trace, visible: false } : trace
      );
      Plotly.react(name, traces, layout, { displayModeBar: false, responsive: true });
    }
    for (const key of document.querySelectorAll(".keys button")) {
      const { color, group } = charts.columns[Number(key.dataset.column)];
      key.setAttribute("aria-pressed", String(!hidden.has(group)));
      key.style.color = map.get(color) ?? color;
    }
  };

  const DASHES = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };
  const SYMBOLS = {
    circle: "M15 2a4 4 0 1 1 0 8a4 4 0 1 1 0 -8z", square: "M11 2h8v8h-8z", diamond: "M15 1l5 5l-5 5l-5 -5z",
    "triangle-up": "M15 1l5 9h-10z", cross: "M13.5 1h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    x: "M11 1l4 3.5l4 -3.5l1.5 1.5l-3.5 3.5l3.5 3.5l-1.5 1.5l-4 -3.5l-4 3.5l-1.5 -1.5l3.5 -3.5l-3.5 -3.5z",
    star: "M15 0l1.6 4h4.2l-3.4 2.6l1.3 4.2l-3.7 -2.5l-3.7 2.5l1.3 -4.2l-3.4 -2.6h4.2z",
  };
  const sample = (column, kinds) => {
    const made = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      return element;
    };
    const svg = made("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true", fill: "currentColor" });
    if (kinds.has("line")) svg.append(made("path", { d: "M0 6h30", stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": DASHES[column.dash] }));
    if (kinds.has("bar")) svg.append(made("path", { d: "M9 0h12v12h-12z" }));
    else if (kinds.has("mark")) svg.append(made("path", { d: SYMBOLS[column.symbol] }));
    return svg;
  };
  const keys = (section) => {
    const traces = drawnOf(section).filter((trace) => trace.legendgroup);
    const groups = new Set(traces.map((trace) => trace.legendgroup));
    const kinds = new Set(traces.flatMap((trace) => trace.type === "bar" ? ["bar"]
      : [trace.mode.includes("lines") ? "line" : "", trace.mode.includes("markers") ? "mark" : ""]));
    const box = section.querySelector(".keys");
    box.append(...charts.columns.flatMap((column, place) => {
      if (!groups.has(column.group)) return [];
      const key = document.createElement("button");
      const name = document.createElement("span");
      key.type = "button";
      key.dataset.column = place;
      key.title = "show or hide in all figures";
      name.textContent = column.name;
      // Strokes that tell something else apart are no sign of the column.
      const own = traces.filter((trace) => trace.legendgroup === column.group && trace.line);
      const dash = own.every((trace) => trace.line.dash === column.dash) ? column.dash : "solid";
      key.append(sample({ ...column, dash }, kinds), name);
      key.addEventListener("click", () => {
        if (!hidden.delete(column.group)) hidden.add(column.group);
        draw();
      });
      return [key];
    }));
    box.hidden = !groups.size;
  };

  if (Object.keys(charts.figures).length) {
    if (several) new Set([...document.querySelectorAll(".chart")].map((chart) => chart.closest("section"))).forEach(keys);
    draw();
    dark.addEventListener("change", draw);
    printing.addEventListener("change", draw);
  }

  const table = document.getElementById("scores");
  if (table) {
    const bodies = [...table.tBodies];
    const homes = bodies.map((body) => [...body.rows]);
    const lines = homes.flat().filter((row) => row.classList.contains("line"));
    const heads = [...table.tHead.rows[0].cells];
    const restore = () => {
      bodies.forEach((body, place) => body.append(...homes[place]));
      table.classList.remove("sorted");
    };
    heads.forEach((head, place) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
        heads.filter((other) => other.hasAttribute("aria-sort")).forEach((other) => { other.ariaSort = "none"; });
        head.ariaSort = next;
        restore();
        if (next === "none") return;
        const sign = next === "descending" ? -1 : 1;
        const number = (row) => {
          const order = row.cells[place].dataset.order;
          return order === undefined ? null : Number(order);
        };
        const sorted = [...lines].sort((one, other) => {
          const [first, second] = [number(one), number(other)];
          // Rows without a number stay last, whichever way the table is sorted.
          if (first === null || second === null) return (first === null) - (second === null);
          return sign * (first - second);
        });
        bodies[0].append(...sorted);
        table.classList.add("sorted");
      });
    });
  }

  const controls = document.getElementById("scores-controls");
  if (controls) {
    const bodies = [...table.tBodies];
    const lines = bodies.flatMap((body, place) =>
      [...body.querySelectorAll(".line")].map((row) => ({
        row,
        group: String(place),
        text: `${bodies[place].rows[0].textContent} ${row.cells[0].textContent}`.toLowerCase(),
        verdicts: [...row.querySelectorAll(".verdict")].map((mark) => mark.classList[1]),
      }))
    );
    const heads = bodies.map((body) => body.rows[0]);
    const status = document.getElementById("scores-status");
    const value = (name) => document.getElementById(`scores-${name}`)?.value.trim().toLowerCase() ?? "";
    const filter = () => {
      const [which, group, verdict, wanted] = ["which", "group", "verdict", "search"].map(value);
      const filled = new Set();
      let shown = 0;
      for (const line of lines) {
        const fits = (!which || "leads" in line.row.dataset) && (!group || line.group === group) &&
          (!verdict || line.verdicts.includes(verdict)) && line.text.includes(wanted);
        line.row.hidden = !fits;
        if (fits) filled.add(line.group);
        shown += fits;
      }
      heads.forEach((head, place) => { head.hidden = !filled.has(String(place)); });
      status.textContent = shown === lines.length ? `${shown} scores` : `${shown} of ${lines.length} scores`;
    };
    controls.addEventListener("input", filter);
    controls.hidden = false;
    filter();
  }

  const detail = document.getElementById("detail");
  let shown = null;
  const hide = () => {
    detail.hidden = true;
    if (shown) shown.removeAttribute("aria-describedby");
    shown = null;
  };
  const show = (entry) => {
    hide();
    shown = entry;
    detail.replaceChildren(...entry.dataset.detail.split("; ").map((text) => {
      const part = document.createElement("div");
      part.textContent = text;
      return part;
    }));
    detail.hidden = false;
    entry.setAttribute("aria-describedby", "detail");
    place();
  };
  const place = () => {
    if (!shown) return;
    const box = shown.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(box.left, width - detail.offsetWidth - 8));
    const below = box.bottom + 6;
    const fits = below + detail.offsetHeight < window.innerHeight;
    detail.style.left = `${left}px`;
    detail.style.top = `${fits ? below : Math.max(8, box.top - detail.offsetHeight - 6)}px`;
  };
  for (const entry of document.querySelectorAll(".entry")) {
    // Without scripts the title is the detail; with them it would show twice.
    entry.dataset.detail = entry.title;
    entry.removeAttribute("title");
    entry.addEventListener("mouseenter", () => show(entry));
    entry.addEventListener("mouseleave", hide);
    entry.addEventListener("focus", () => show(entry));
    entry.addEventListener("blur", hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // A focus that scrolls the page must not lose its detail, so the detail moves along.
  document.addEventListener("scroll", place, { capture: true, passive: true });
})();
