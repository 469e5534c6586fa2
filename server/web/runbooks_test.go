package web

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestRunbooksAreServed checks that every runbook_url of an alert links to a heading on a page
// that the dashboard serves.
func TestRunbooksAreServed(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	runbooks(mux)
	urls := regexp.MustCompile(`runbook_url: "\{\{ \$externalLabels\.loadstar_dashboard \}\}(/docs/\w+)#(\w+)"`).FindAllStringSubmatch(string(rules), -1)
	if len(urls) < 30 || len(urls) != strings.Count(string(rules), "runbook_url:") {
		t.Fatalf("%d addresses", len(urls))
	}
	for _, u := range urls {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", u[1], nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), `id="`+u[2]+`"`) {
			t.Errorf("%s#%s: %d", u[1], u[2], w.Code)
		}
	}
}

func TestDocument(t *testing.T) {
	got := document("# A & B\n\nSee **this**, `x <y>` and [that](alerts.md#c), not [there](../x.md).\n- one\n- two\n\n## HeadLine\n\n    a < b\n")
	for _, want := range []string{
		"<title>A &amp; B</title>", `<h1 id="a & b">A &amp; B</h1>`, `See <strong>this</strong>, <code>x &lt;y&gt;</code> and <a href="/docs/alerts#c">that</a>, not there.`,
		"<li>one</li>\n<li>two</li>", `<h2 id="headline">HeadLine</h2>`, "a &lt; b</pre>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}
