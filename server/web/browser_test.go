package web

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/server/access"
)

// browser is a real Chromium, which a test controls through a pair of pipes.
type browser struct {
	*testing.T
	to      *os.File
	from    *bufio.Reader
	number  int
	session string
}

// patient is the time for which a test waits for the browser. It is long enough for a machine
// under heavy load.
const patient = 3 * time.Minute

func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if testing.Short() || err != nil {
		t.Skip("needs Debian's chromium, and takes several seconds")
	}
	read, write, err := os.Pipe() // to the browser
	testkit.Must(t, err)
	answers, out, err := os.Pipe() // from the browser
	testkit.Must(t, err)
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir())
	cmd.ExtraFiles = []*os.File{read, out}
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	testkit.Must(t, cmd.Start())
	read.Close()
	out.Close()
	b := &browser{T: t, to: write, from: bufio.NewReaderSize(answers, 1<<20)}
	t.Cleanup(func() {
		b.session = ""
		_, _ = fmt.Fprint(b.to, `{"id":0,"method":"Browser.close"}`+"\x00") // the process is killed below if this fails
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }() // its exit code is not needed
		select {
		case <-ended:
		case <-time.After(patient):
			_ = cmd.Process.Kill()
			<-ended
		}
		b.to.Close()
		answers.Close()
	})
	testkit.Must(t, answers.SetReadDeadline(time.Now().Add(2*patient)))
	var made struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	return b
}

// call sends a command of the Chrome DevTools Protocol and waits for its result.
func (b *browser) call(method string, params, result any) {
	b.Helper()
	b.number++
	text, err := json.Marshal(map[string]any{"id": b.number, "method": method, "params": params, "sessionId": b.session})
	testkit.Must(b, err)
	if b.session == "" {
		text = []byte(strings.Replace(string(text), `,"sessionId":""`, "", 1))
	}
	_, err = b.to.Write(append(text, 0))
	testkit.Must(b, err)
	for {
		line, err := b.from.ReadBytes(0)
		testkit.Must(b, err)
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		testkit.Must(b, json.Unmarshal(line[:len(line)-1], &answer))
		if answer.ID != b.number {
			continue // an event
		}
		if answer.Error != nil {
			b.Fatalf("%s: %s", method, answer.Error.Message)
		}
		if result != nil {
			testkit.Must(b, json.Unmarshal(answer.Result, result))
		}
		return
	}
}

// text returns the value of a JavaScript expression in the page as a string.
func (b *browser) text(expression string) string {
	b.Helper()
	var answer struct {
		Result struct{ Value any }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": "(async () => String(await (" + expression + ")))()", "awaitPromise": true}, &answer)
	return fmt.Sprint(answer.Result.Value)
}

// soon waits until a JavaScript expression is true.
func (b *browser) soon(expression string) {
	b.Helper()
	for end := time.Now().Add(patient); b.text(expression) != "true"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%s is not true at %s:\n%s", expression, b.text("location.href"), b.text("document.body.innerText"))
		}
	}
}

// TestOIDCInBrowser signs a person in with a provider on another site, in a real browser and
// with the real page. It checks that the session's strict cookie works.
func TestOIDCInBrowser(t *testing.T) {
	b := startBrowser(t)
	s := newSigning(t, nil)
	const button = `document.querySelector('a[href$="api/oidc/start"]')`
	s.user("1", "Anna", "grid")
	b.call("Page.navigate", map[string]any{"url": s.page + "/"}, nil)
	b.soon("!!" + button)
	b.text(button + ".click()")
	b.soon(fmt.Sprintf("location.origin == %q && document.body.innerText.includes('oidc:anna')", s.page))
	if got := b.text("document.cookie"); got != "" {
		t.Errorf("scripts see the cookie %q", got)
	}
	b.call("Page.reload", map[string]any{}, nil)
	b.soon("document.body?.innerText.includes('oidc:anna')")
	// A removed user has to sign in again.
	testkit.Must(t, s.ledger.Users.RemoveUser(t.Context(), "oidc:anna", "test", time.Now()))
	b.call("Page.reload", map[string]any{}, nil)
	b.soon("!!" + button)
	// A person without a role gets a page that gives the reason.
	s.user("2", "eve", "guests")
	b.text(button + ".click()")
	b.soon("document.body?.innerText.includes('eve has no access')")
	// A login link signs in once.
	code, _, err := s.gate.CreateLogin(t.Context(), "local", time.Minute, "test", time.Now())
	testkit.Must(t, err)
	b.call("Page.navigate", map[string]any{"url": s.page + "/#/login?code=" + code}, nil)
	b.soon("fetch('/api/info').then(r => r.json()).then(x => x.signed_in)")
	b.soon("!location.href.includes('code=')")
	if at := b.text("location.href"); strings.Contains(at, code) {
		t.Errorf("the code stays in the address: %s", at)
	}
	if all, err := s.ledger.Users.Sessions(t.Context(), "local", 10, time.Now()); err != nil || len(all) != 1 {
		t.Error(all, err)
	}
}

// TestLostRoleInBrowser checks that an open page cannot change anything once its user has lost
// the role.
func TestLostRoleInBrowser(t *testing.T) {
	b := startBrowser(t)
	f := newFixture(t, nil)
	b.call("Page.navigate", map[string]any{"url": f.url + "#/login?code=" + f.code("anna", access.Operator)}, nil)
	b.soon("fetch('/api/info').then(r => r.json()).then(x => x.signed_in)")
	stop := func() string {
		return b.text(`fetch('/api/loadstar.v1.OperatorService/StopRun', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"run":"none"}'}).then(r => r.json()).then(x => x.code)`)
	}
	if got := stop(); got != "not_found" {
		t.Errorf("an operator: %s", got)
	}
	_, err := f.ledger.Users.PutUser(t.Context(), "anna", string(access.Viewer), "test", time.Now())
	testkit.Must(t, err)
	if got := stop(); got != "permission_denied" {
		t.Errorf("an operator who became a viewer: %s", got)
	}
}
