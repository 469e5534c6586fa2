package report

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// browser is a headless Chromium that the test controls over a pipe.
type browser struct {
	t        *testing.T
	out      *os.File
	replies  chan message
	next     int
	session  string
	problems []string // console messages, exceptions and requests of the page
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
}

// openBrowser starts Chromium. If Chromium is not installed, it skips the test or, in CI,
// fails.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no Chromium, which CI requires")
		}
		t.Skip("there is no Chromium")
	}
	fromUs, toBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromBrowser, toUs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// The sandbox needs privileges that containers rarely have. The page under test is trusted.
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
		"--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{fromUs, toUs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fromUs.Close()
	toUs.Close()
	b := &browser{t: t, out: toBrowser, replies: make(chan message, 1024)}
	go func() {
		defer close(b.replies)
		in := bufio.NewReader(fromBrowser)
		for {
			text, err := in.ReadBytes(0)
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) == nil {
				b.replies <- m
			}
		}
	}()
	t.Cleanup(func() {
		b.session = ""
		b.call("Browser.close", nil, nil)
		toBrowser.Close()
		cmd.Wait()
		fromBrowser.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Runtime", "Log", "Network", "Page"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call sends a command to the browser and waits for the response.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.next++
	ask := map[string]any{"id": b.next, "method": method}
	if params != nil {
		ask["params"] = params
	}
	if b.session != "" {
		ask["sessionId"] = b.session
	}
	text, err := json.Marshal(ask)
	if err == nil {
		_, err = b.out.Write(append(text, 0))
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for limit := time.After(60 * time.Second); ; {
		select {
		case m, ok := <-b.replies:
			switch {
			case !ok:
				b.t.Fatalf("%s: the browser has exited", method)
			case m.ID == b.next && m.Error != nil:
				b.t.Fatalf("%s: %s", method, m.Error)
			case m.ID == b.next:
				if result != nil {
					if err := json.Unmarshal(m.Result, result); err != nil {
						b.t.Fatalf("%s: %v", method, err)
					}
				}
				return
			default:
				b.note(m)
			}
		case <-limit:
			b.t.Fatalf("%s: no response", method)
		}
	}
}

// note records a message from the browser if it reports an event that a page must not
// cause.
func (b *browser) note(m message) {
	switch m.Method {
	case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
		b.problems = append(b.problems, string(m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if json.Unmarshal(m.Params, &p) != nil || !strings.HasPrefix(p.Request.URL, "file:") && !strings.HasPrefix(p.Request.URL, "data:") {
			b.problems = append(b.problems, "requested "+p.Request.URL)
		}
	}
}

// eval evaluates a JavaScript expression and stores the result in *to. If the result is a
// promise, eval waits for its value.
func (b *browser) eval(expression string, to any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if err := json.Unmarshal(r.Result.Value, to); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// waitUntilDrawn waits until all charts are drawn and two more frames have been rendered.
func (b *browser) waitUntilDrawn() {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var done bool
		b.eval(`document.readyState === "complete" && !document.querySelector("figure[data-kind]:not([data-drawn])")`, &done)
		if done {
			break
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("not all figures are drawn: %s", b.problems)
		}
	}
	var ok bool
	b.eval(`new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))`, &ok)
}

func (b *browser) open(path string, width int, theme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}}, nil)
	b.call("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	b.waitUntilDrawn()
}

// screenshot saves a screenshot under LOADSTAR_SHOTS, for visual review.
func (b *browser) screenshot(name string) {
	dir := os.Getenv("LOADSTAR_SHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	b.keep(dir, name+".png", shot.Data)
}

func (b *browser) keep(dir, name, data string) {
	text, err := base64.StdEncoding.DecodeString(data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// TestInChromium checks a report in a browser. LOADSTAR_PAGES lists other pages to check,
// and LOADSTAR_SHOTS is a folder for screenshots.
func TestInChromium(t *testing.T) {
	b := openBrowser(t)
	pages := filepath.SplitList(os.Getenv("LOADSTAR_PAGES"))
	if len(pages) == 0 {
		path := filepath.Join(t.TempDir(), "report.html")
		if err := os.WriteFile(path, everything(t), 0o644); err != nil {
			t.Fatal(err)
		}
		pages = []string{path}
	}
	for _, path := range pages {
		t.Run(filepath.Base(path), func(t *testing.T) {
			b.t = t
			checkPage(t, b, path)
		})
	}
	b.t = t
}

func checkPage(t *testing.T, b *browser, path string) {
	name := strings.TrimSuffix(filepath.Base(path), ".html")
	for _, width := range []int{1280, 390, 360} {
		for _, theme := range []string{"light", "dark"} {
			b.problems = nil
			b.open(path, width, theme)
			var got struct {
				Figures, Empty, Scroll, Tables, Captions int
				Wide                                     []string
				Paper                                    string
			}
			b.eval(`(() => {
				const figures = [...document.querySelectorAll("figure[data-kind]")];
				const shown = f => [...f.querySelectorAll(".picture svg")].filter(s => !s.closest(".legend"));
				return {
					figures: figures.length,
					empty: figures.filter(f => !shown(f).length || shown(f).some(s => s.getBoundingClientRect().height < 100 || /NaN|undefined/.test(s.outerHTML)) || !f.querySelector("[role=img]").getAttribute("aria-label")).length,
					scroll: document.documentElement.scrollWidth,
					wide: [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll") && !e.closest("svg") && !e.closest("pre") && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className).slice(0, 5),
					tables: document.querySelectorAll("table").length,
					captions: document.querySelectorAll("table > caption").length,
					paper: getComputedStyle(document.body).backgroundColor,
				};
			})()`, &got)
			at := fmt.Sprintf("at %d px, %s", width, theme)
			if got.Figures == 0 || got.Empty > 0 {
				t.Errorf("%s: %d of %d figures are missing or broken", at, got.Empty, got.Figures)
			}
			if got.Scroll > width || len(got.Wide) > 0 {
				t.Errorf("%s: the page is %d px wide: %v", at, got.Scroll, got.Wide)
			}
			if got.Tables == 0 || got.Captions != got.Tables {
				t.Errorf("%s: %d tables with %d captions", at, got.Tables, got.Captions)
			}
			if dark := got.Paper == "rgb(20, 23, 28)"; dark != (theme == "dark") {
				t.Errorf("%s: the background is %s", at, got.Paper)
			}
			for _, x := range b.problems {
				t.Errorf("%s: %s", at, x)
			}
			b.axe(t, at)
			if width != 360 {
				b.screenshot(fmt.Sprintf("%s-%d-%s", name, width, theme))
			}
		}
	}

	// The theme button has the keyboard focus and cycles through system, light and dark.
	b.open(path, 1280, "light")
	var themes []string
	b.eval(`(() => { const b = document.getElementById("theme"); b.focus(); const t = () => document.documentElement.dataset.theme; const all = [document.activeElement === b && !b.hidden ? t() : "no focus"]; b.click(); all.push(t()); b.click(); all.push(t(), getComputedStyle(document.body).backgroundColor); b.click(); return all; })()`, &themes)
	if got := strings.Join(themes, ", "); got != "auto, light, dark, rgb(20, 23, 28)" {
		t.Errorf("the theme button cycles through %s", got)
	}

	var pdf struct{ Data string }
	b.call("Page.printToPDF", map[string]any{"preferCSSPageSize": true, "paperWidth": 8.27, "paperHeight": 11.69, "printBackground": true}, &pdf)
	if len(pdf.Data) < 10000 {
		t.Errorf("the PDF has %d bytes", len(pdf.Data))
	}
	if dir := os.Getenv("LOADSTAR_SHOTS"); dir != "" {
		b.keep(dir, name+".pdf", pdf.Data)
	}

	// Charts show values under the pointer, and another method can be selected.
	var silent []string
	b.eval(`(async () => {
		const silent = [];
		for (const figure of document.querySelectorAll("figure[data-kind]")) {
			const svg = [...figure.querySelectorAll(".picture svg")].find(s => !s.closest(".legend"));
			const r = svg.getBoundingClientRect();
			const tip = () => figure.querySelector("[aria-label=tip] text, [data-mark=tip] text");
			for (let i = 0; i < 100 && !tip(); i++) {
				const at = {clientX: r.left + r.width * (0.05 + 0.1 * (i % 10)), clientY: r.top + r.height * (0.05 + 0.1 * Math.floor(i / 10)), pointerType: "mouse", bubbles: true};
				svg.dispatchEvent(new PointerEvent("pointermove", at));
				await new Promise(requestAnimationFrame);
			}
			if (!tip()) silent.push(figure.id + " " + figure.dataset.kind);
		}
		return silent;
	})()`, &silent)
	if len(silent) > 0 {
		t.Errorf("no tooltip in %v", silent)
	}
	b.checkFan(t)
	b.checkSave(t)
	for _, x := range b.problems {
		t.Error(x)
	}
}
