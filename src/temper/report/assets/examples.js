"use strict";
// The table of examples: it filters, searches, sorts and pages through what the page holds.
(() => {
  const { columns, attacks, labels, outcomes, texts, entries } = JSON.parse(
    document.getElementById("examples-data").textContent
  );
  const size = 20;
  const section = document.getElementById("examples");
  const body = section.querySelector("tbody");
  const status = document.getElementById("examples-status");
  const [previous, next, copy] = section.querySelectorAll(".pages button");
  const fields = [...section.querySelectorAll("[data-field]")];
  const search = document.getElementById("examples-search");
  const heads = [...section.querySelectorAll("thead th")];
  const kinds = ["span", "del", "ins"];
  const marks = ["worse", "better", "noise"];
  const percent = (value) => (100 * value).toFixed(1);
  const named = (index) => labels[String(index)];
  // Both forms of a text are searched, as a reader may know either.
  const whole = (parts, kept) =>
    parts.map((part) => part.filter(([kind]) => kept.includes(kind)).map(([, words]) => words).join(""));
  const searched = texts.map((parts) =>
    [[0, 1], [0, 2]].map((kept) => whole(parts, kept).join(" ")).join("\n").toLowerCase()
  );
  let page = 0;
  let order = { key: null, sign: 0 };

  const element = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const prediction = (label, sure) => {
    const cell = element("td", "prediction-cell");
    cell.append(element("span", "class", named(label)), " ", element("span", "muted", `${percent(sure)}%`));
    return cell;
  };
  // Letters of another alphabet and signs without a width: a reader would see no change at all.
  const lookalikes = (part) => {
    const before = new Set(part.filter(([kind]) => kind !== 2).flatMap(([, text]) => [...text]));
    const added = new Set(part.filter(([kind]) => kind === 2).flatMap(([, text]) => [...text]));
    return [...added]
      .filter((letter) => letter > "~" && !before.has(letter))
      .map((letter) => `${letter} U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`)
      .join(", ");
  };
  const words = (parts) => {
    const cell = element("td", "text");
    for (const part of parts) {
      const line = element("p");
      for (const [kind, text] of part) line.append(element(kinds[kind], "", text));
      cell.append(line);
      const foreign = lookalikes(part);
      if (foreign) cell.append(element("p", "muted note", `added and easily overlooked: ${foreign}`));
    }
    return cell;
  };
  const row = (entry) => {
    const line = element("tr");
    line.append(words(texts[entry.text]));
    if (columns.length > 1) line.append(element("td", "", columns[entry.column]));
    const outcome = element("td");
    outcome.append(element("span", `verdict ${marks[entry.outcome]}`, outcomes[entry.outcome]));
    line.append(
      element("td", "attack", `${attacks[entry.attack]}, ${entry.set}`),
      element("td", "", named(entry.label)),
      prediction(entry.before, entry.confidence_before),
      prediction(entry.after, entry.confidence_after),
      outcome,
      element("td", "right", entry.changed === null ? "–" : `${percent(entry.changed)}%`),
      element("td", "right", entry.queries === null ? "–" : String(entry.queries))
    );
    return line;
  };

  const chosen = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = entries.filter(
      (entry) =>
        fields.every((field) => field.value === "" || entry[field.dataset.field] === Number(field.value)) &&
        (!wanted || searched[entry.text].includes(wanted))
    );
    if (!order.key) return found;
    const value = (entry) => entry[order.key];
    // Rows without a number stay last, whichever way the table is sorted.
    return found.sort((one, other) =>
      value(one) === null || value(other) === null
        ? (value(one) === null) - (value(other) === null)
        : order.sign * (value(one) - value(other))
    );
  };
  const show = () => {
    const found = chosen();
    const pages = Math.max(1, Math.ceil(found.length / size));
    page = Math.min(page, pages - 1);
    const first = page * size;
    const shown = found.slice(first, first + size);
    body.replaceChildren(...shown.map(row));
    const which = shown.length ? `${first + 1}–${first + shown.length} of ${found.length}` : "none";
    status.textContent = `Examples shown: ${which}; page ${page + 1} of ${pages}`;
    previous.disabled = page === 0;
    next.disabled = page === pages - 1;
  };
  const restart = () => {
    page = 0;
    show();
  };

  for (const field of [...fields, search]) field.addEventListener("input", restart);
  const turn = (by, other) => (event) => {
    page += by;
    show();
    // A button that is switched off loses the focus, and a keyboard its place on the page.
    if (event.currentTarget.disabled) other.focus();
  };
  previous.addEventListener("click", turn(-1, next));
  next.addEventListener("click", turn(1, previous));
  copy.addEventListener("click", () => {
    const found = chosen();
    const lines = found.map((entry) => JSON.stringify({
      column: columns[entry.column],
      attack: attacks[entry.attack],
      set: entry.set,
      label: named(entry.label),
      before: named(entry.before),
      after: named(entry.after),
      outcome: outcomes[entry.outcome],
      text: whole(texts[entry.text], [0, 1]),
      attacked: whole(texts[entry.text], [0, 2]),
    }));
    // A page that lies in a file may write to the clipboard only so.
    const put = (event) => {
      event.clipboardData.setData("text/plain", lines.join("\n"));
      event.preventDefault();
    };
    document.addEventListener("copy", put, { once: true });
    const done = document.execCommand("copy");
    document.removeEventListener("copy", put);
    status.textContent = done ? `${found.length} examples copied, a JSON line each` : "The browser refused to copy.";
  });
  for (const head of heads) {
    const button = head.querySelector("button");
    if (!button) continue;
    button.addEventListener("click", () => {
      const to = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
      heads.filter((other) => other.hasAttribute("aria-sort")).forEach((other) => { other.ariaSort = "none"; });
      head.ariaSort = to;
      order = { key: to === "none" ? null : head.dataset.key, sign: to === "descending" ? -1 : 1 };
      restart();
    });
  }
  show();
})();
