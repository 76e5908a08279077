"use strict";
// Keys that hide a column in all figures, a table that sorts, details on hover and focus.
(() => {
  for (const key of document.querySelectorAll("button[data-key]")) {
    key.addEventListener("click", () => {
      const shown = String(key.ariaPressed !== "true");
      const named = (selector, name) =>
        [...document.querySelectorAll(selector)].filter((element) => element.dataset[name] === key.dataset.key);
      for (const same of named("button[data-key]", "key")) same.ariaPressed = shown;
      for (const drawn of named("[data-column]", "column")) drawn.classList.toggle("off", shown === "false");
    });
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
