// Tables that sort by a click on a heading.
"use strict";
(() => {
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }

  function sortBy(head) {
    const table = head.closest("table"), body = table.tBodies[0];
    const place = [...head.parentElement.children].indexOf(head);
    // Numbers start with the largest, words with A; a second click reverses the order.
    const isNumber = !head.classList.contains("word");
    const before = head.getAttribute("aria-sort");
    const order = before ? (before === "descending" ? "ascending" : "descending") : isNumber ? "descending" : "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => row.cells[place].dataset.value ?? row.cells[place].textContent;
    const compare = isNumber
      ? (a, b) => Number(value(a)) - Number(value(b))
      : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
    const sorted = [...body.rows].map((row, index) => [row, index]);
    sorted.sort(([a, i], [b, j]) => sign * compare(a, b) || i - j);
    body.append(...sorted.map(([row]) => row));
  }
})();
