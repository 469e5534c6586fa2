// Search over the index that the page has loaded: pages that contain all words, those with
// words in the title first.
"use strict";
(() => {
	const base = document.body.dataset.base;
	const input = document.getElementById("q");
	const box = document.getElementById("results");
	const all = (window.searchIndex || []).map((p) => ({ ...p, low: p.text.toLowerCase(), head: p.title.toLowerCase() }));

	// On a phone the menu is closed until it is asked for.
	const menu = document.querySelector("nav details");
	if (window.matchMedia("(max-width: 60rem)").matches) menu.open = false;

	const search = () => {
		const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
		box.replaceChildren();
		box.hidden = words.length === 0;
		if (words.length === 0) return;
		const found = all
			.filter((p) => words.every((w) => p.low.includes(w) || p.head.includes(w)))
			.map((p) => ({ p, score: words.reduce((n, w) => n + (p.head.includes(w) ? 100 : 0) + Math.min(p.low.split(w).length - 1, 20), 0) }))
			.sort((a, b) => b.score - a.score)
			.slice(0, 12);
		if (found.length === 0) {
			const none = document.createElement("p");
			none.textContent = "No page has all these words.";
			box.append(none);
		}
		for (const { p } of found) {
			const a = document.createElement("a");
			a.href = base + p.path;
			const title = document.createElement("b");
			title.textContent = p.title;
			const at = Math.max(p.low.indexOf(words[0]) - 40, 0);
			const part = document.createElement("span");
			part.textContent = (at > 0 ? "…" : "") + p.text.slice(at, at + 140) + "…";
			a.append(title, part);
			box.append(a);
		}
	};
	input.addEventListener("input", search);
	document.addEventListener("keydown", (e) => {
		if (e.key === "Escape") box.hidden = true;
		if (e.key === "/" && document.activeElement !== input) {
			e.preventDefault();
			input.focus();
		}
	});
})();
