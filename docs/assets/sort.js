// A click on a table's heading sorts its rows: by number where a cell starts with one, else by text.
document.addEventListener("click", (event) => {
  const heading = event.target.closest(".md-typeset table:not([class]) th")
  if (!heading) return
  const table = heading.closest("table")
  const column = [...heading.parentNode.children].indexOf(heading)
  const down = heading.getAttribute("aria-sort") !== "descending"
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort")
  heading.setAttribute("aria-sort", down ? "descending" : "ascending")
  const value = (row) => row.children[column].textContent.trim()
  const order = (first, second) => {
    const [a, b] = [value(first), value(second)]
    if (!a || !b) return Number(!a) - Number(!b)
    const difference = parseFloat(b) - parseFloat(a) || a.localeCompare(b)
    return down ? difference : -difference
  }
  const body = table.tBodies[0]
  body.append(...[...body.rows].sort(order))
})
