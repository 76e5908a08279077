"use strict";
// Three things: figures in the colours of the theme, a table that sorts, details on hover and focus.
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

  const draw = () => {
    const night = dark.matches && !printing.matches;
    const { light, dark: shades } = charts.palettes;
    const map = new Map(night ? light.map((colour, place) => [colour, shades[place]]) : []);
    const ink = night ? "#d5dae1" : "#2b3440";
    const rule = night ? "#343d49" : "#dfe4ea";
    const back = night ? "#1b222b" : "#ffffff";
    for (const [name, figure] of Object.entries(charts.figures)) {
      const layout = structuredClone(figure.layout);
      const family = getComputedStyle(document.body).fontFamily;
      layout.font = { family, size: 13, color: ink };
      layout.hoverlabel = { ...layout.hoverlabel, bgcolor: back, bordercolor: rule, font: { family, size: 13, color: ink } };
      for (const axis of [layout.xaxis, layout.yaxis]) {
        Object.assign(axis, { gridcolor: rule, linecolor: rule, tickcolor: rule, fixedrange: true });
      }
      // Paper is as wide as it is: Plotly would measure it only after it was printed.
      if (printing.matches) layout.width = document.getElementById(name).clientWidth;
      const traces = recoloured(figure.data, map);
      Plotly.react(name, traces, layout, { displayModeBar: false, responsive: true });
    }
  };

  if (Object.keys(charts.figures).length) {
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
