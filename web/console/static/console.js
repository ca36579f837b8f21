// What pages can do more with scripts: "/" goes to the search box, which finds as one types, buttons copy, selects filter at once
// and in place.
// All else works without.
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

  // What is found as one types: arrows go through it, Escape and leaving close it.
  const typed = () => document.getElementById("typed");
  document.addEventListener("keydown", (e) => {
    const form = e.target.closest(".search");
    if (!form || !typed().firstElementChild || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape") {
      typed().replaceChildren();
      form.q.focus();
    } else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      const stops = [form.q, ...typed().querySelectorAll("a")];
      const next = stops.indexOf(document.activeElement) + (e.key === "ArrowDown" ? 1 : -1);
      stops[Math.min(Math.max(next, 0), stops.length - 1)].focus();
    } else return;
    e.preventDefault();
  });
  document.addEventListener("focusout", (e) => {
    const form = e.target.closest(".search");
    if (form && e.relatedTarget && !form.contains(e.relatedTarget)) typed().replaceChildren();
  });
  document.addEventListener("click", (e) => {
    if (typed() && !e.target.closest(".search")) typed().replaceChildren();
  });
  document.addEventListener("htmx:afterSwap", (e) => {
    if (e.detail.target.id === "main") say(document.querySelector("#main .count")?.textContent || document.title);
    if (e.detail.target !== typed()) return;
    if (!document.activeElement.closest(".search")) return typed().replaceChildren();
    const hits = typed().querySelector("[data-said]");
    if (hits) say(hits.dataset.said);
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
