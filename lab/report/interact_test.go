package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// axe checks the page against WCAG 2.1 AA with axe-core, if it is installed in web/report (npm
// ci). The page does not contain axe-core.
func (b *browser) axe(t *testing.T, at string) {
	t.Helper()
	code, err := os.ReadFile(filepath.FromSlash("../../web/report/node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Log("axe-core is not installed: run npm ci in web/report")
		return
	}
	var loaded bool
	b.eval(string(code)+"\n;true", &loaded) // by the debugger, to which the page's policy does not apply
	var found []string
	b.eval(`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).then(r => r.violations.map(v => v.id + ": " + v.nodes.length + " such as " + v.nodes[0].html.slice(0, 200)))`, &found)
	for _, v := range found {
		t.Errorf("%s: %s", at, v)
	}
}

// checkFan searches for a client, picks a date, zooms and changes all selections.
func (b *browser) checkFan(t *testing.T) {
	t.Helper()
	var got struct {
		None                     bool
		Named, Found, Lost, Away string
		From, Picked             string
		All, Zoomed, Out         string
	}
	b.eval(`(async () => {
		const figure = document.querySelector("figure[data-kind=fan]");
		if (!figure) return {none: true};
		const frame = () => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)));
		const change = async (e, v) => { e.value = v; e.dispatchEvent(new Event("change")); await frame(); };
		const search = figure.querySelector("input[type=search]"), date = figure.querySelector("input[type=date]"), length = figure.querySelector("select");
		const first = () => figure.querySelector(".fans p").textContent;
		const said = () => figure.querySelector("[role=status]").textContent;
		const out = {from: date.value};
		const data = JSON.parse(document.getElementById("data").textContent)[figure.id];
		out.named = data.clients[data.clients.length - 1].name;
		await change(search, out.named);
		out.found = first() + "|" + said();
		await change(search, "no such client");
		out.lost = said();
		const away = data.all.names.find(n => !data.clients.some(c => c.name === n));
		if (away) await change(search, away);
		out.away = away ? said() : "";
		await change(search, "");
		await change(date, date.max);
		await change(date, date.min);
		out.picked = date.value === date.min ? "" : date.value + ", not " + date.min;
		await change(length, "0");
		out.all = length.selectedOptions[0].textContent;
		const svg = figure.querySelector(".fans svg");
		const r = svg.getBoundingClientRect();
		const at = (type, x) => svg.dispatchEvent(new PointerEvent(type, {clientX: r.left + r.width * x, clientY: r.top + 50, button: 0, pointerType: "mouse", bubbles: true}));
		svg.setPointerCapture = () => {};
		at("pointerdown", 0.4); at("pointermove", 0.5); at("pointermove", 0.6); at("pointerup", 0.6);
		await frame();
		out.zoomed = length.selectedOptions[0].textContent + " from " + date.value;
		figure.querySelector(".fans svg").dispatchEvent(new MouseEvent("dblclick", {bubbles: true}));
		await frame();
		out.out = length.selectedOptions[0].textContent;
		for (const s of document.querySelectorAll(".controls select")) { s.selectedIndex = s.options.length - 2; s.dispatchEvent(new Event("change")); }
		await frame();
		return out;
	})()`, &got)
	if got.None {
		return
	}
	if !strings.Contains(got.Found, "chosen client "+got.Named) || !strings.Contains(got.Found, "% of mean load, relative MAE") {
		t.Errorf("the search for %q found %q", got.Named, got.Found)
	}
	if got.Lost != "No client is named no such client." {
		t.Errorf("the search for nobody says %q", got.Lost)
	}
	if got.Away != "" && !strings.Contains(got.Away, "Its curves are not in this page.") {
		t.Errorf("the search for a client without curves says %q", got.Away)
	}
	if got.Picked != "" {
		t.Errorf("after picking a date the chart starts at %s", got.Picked)
	}
	if got.All != "all" || !strings.HasPrefix(got.Zoomed, "zoomed from ") || got.Out != "all" {
		t.Errorf("all: %q, after a drag: %q, after a double click: %q", got.All, got.Zoomed, got.Out)
	}
	b.waitUntilDrawn()
}

// checkSave saves every figure as SVG and CSV.
func (b *browser) checkSave(t *testing.T) {
	t.Helper()
	var wrong []string
	b.eval(`(async () => {
		const wrong = [];
		const make = URL.createObjectURL;
		let saved = null;
		URL.createObjectURL = (blob) => { saved = blob; return "#"; };
		const click = HTMLAnchorElement.prototype.click;
		HTMLAnchorElement.prototype.click = function () { saved.name = this.download; };
		for (const figure of document.querySelectorAll("figure[data-kind]")) {
			const [svg, csv] = figure.querySelectorAll(".save button");
			svg.click();
			const picture = await saved.text();
			const doc = new DOMParser().parseFromString(picture, "image/svg+xml");
			if (doc.querySelector("parsererror") || !doc.querySelector("svg svg") || picture.includes("var(--") || !saved.name.endsWith(".svg")) wrong.push(figure.id + " " + saved.name + ": " + picture.slice(0, 300));
			if (figure.hasAttribute("data-generated") !== picture.includes("GENERATED data")) wrong.push(figure.id + ": the mark of generated data");
			csv.click();
			const rows = (await saved.text()).trim().split("\r\n");
			if (rows.length < 2 || !saved.name.endsWith(".csv") || !/\d/.test(rows[1])) wrong.push(figure.id + " " + saved.name + ": " + rows.slice(0, 3).join(" / "));
			if (rows.some(r => r.startsWith("="))) wrong.push(figure.id + ": a formula");
		}
		URL.createObjectURL = make;
		HTMLAnchorElement.prototype.click = click;
		return wrong;
	})()`, &wrong)
	for _, w := range wrong {
		t.Error(w)
	}
}
