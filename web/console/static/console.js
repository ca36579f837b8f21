// What pages can do more with scripts: "/" goes to the search box, buttons copy, selects filter at once. All else works without.
(() => {
  "use strict";
  document.documentElement.classList.add("script");
  const say = (words) => { document.getElementById("said").textContent = words; };

  document.addEventListener("keydown", (e) => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select, [contenteditable]")) return;
    const box = document.querySelector(".search input");
    if (!box) return;
    e.preventDefault();
    box.focus();
    box.select();
  });

  document.addEventListener("click", async (e) => {
    const button = e.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      const text = button.parentElement.querySelector("code");
      if (text) getSelection().selectAllChildren(text);
      say("Press Ctrl-C to copy");
      return;
    }
    button.classList.add("done");
    say("Copied");
    setTimeout(() => button.classList.remove("done"), 1500);
  });

  // A live list keeps its newest rows.
  document.addEventListener("htmx:sseMessage", () => {
    const rows = document.getElementById("events");
    while (rows && rows.children.length > 200) rows.lastElementChild.remove();
  });

  // Relative times go on while a page is open.
  const units = [[86400 * 365, "y"], [86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  setInterval(() => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const seconds = Math.round((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (!(seconds >= 0) || !time.textContent.endsWith(" ago")) continue;
      const [size, unit] = units.find(([size]) => seconds >= 2 * size) || [1, "s"];
      time.textContent = Math.floor(seconds / size) + unit + " ago";
    }
  }, 15000);

  document.addEventListener("change", (e) => {
    if (e.target.matches(".filters select")) e.target.form.requestSubmit();
  });
})();
