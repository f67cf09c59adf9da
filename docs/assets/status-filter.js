// Filters the tables of a compatibility page by status and by words. Without this script, the page
// shows all rows, and no controls.
(() => {
  const place = document.getElementById("status-filter");
  if (place === null) {
    return;
  }
  // Tables of features end with the column of the tests. Those of settings have no status.
  const tables = [...document.querySelectorAll("article table")].flatMap((table) => {
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    if (heads.at(-1) !== "test") {
      return [];
    }
    const column = heads.indexOf("status");
    const rows = [...table.querySelectorAll("tbody tr")].map((row) => ({
      element: row,
      status: column < 0 ? "" : row.cells[column].textContent.trim(),
      words: row.textContent.toLowerCase(),
    }));
    const empty = Object.assign(document.createElement("p"), {
      className: "status-filter-empty",
      textContent: "No row of this table matches.",
      hidden: true,
    });
    table.after(empty);
    return [{ element: table, rows, empty }];
  });
  const rows = tables.flatMap((table) => table.rows);
  const present = new Set(rows.map((row) => row.status));
  const order = ["works", "translated", "differs", "no effect", "absent", "added"];

  const fields = document.createElement("fieldset");
  const legend = Object.assign(document.createElement("legend"), { textContent: "Show only" });
  fields.append(legend);
  const boxes = order.filter((status) => present.has(status)).map((status) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: status });
    label.append(box, ` ${status}`);
    fields.append(label);
    return box;
  });
  const label = Object.assign(document.createElement("label"), { textContent: "with the words " });
  const search = Object.assign(document.createElement("input"), { type: "search" });
  label.append(search);
  const count = document.createElement("output");
  fields.append(label, count);
  place.append(fields);

  const apply = () => {
    const chosen = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const table of tables) {
      let left = 0;
      for (const row of table.rows) {
        const matches =
          (chosen.size === 0 || chosen.has(row.status)) &&
          words.every((word) => row.words.includes(word));
        row.element.hidden = !matches;
        left += matches ? 1 : 0;
      }
      table.element.hidden = left === 0;
      table.empty.hidden = left > 0;
      shown += left;
    }
    count.value = `${shown} of ${rows.length} rows`;
  };
  fields.addEventListener("input", apply);
  // A browser keeps what was entered when the reader comes back to the page.
  window.addEventListener("pageshow", apply);
  apply();
})();
