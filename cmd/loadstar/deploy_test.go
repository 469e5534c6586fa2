package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"loadstar/internal/testkit"
)

// metrics are the names of metrics with the names and values of their labels.
type metrics map[string]map[string][]string

// builtin contains labels and metrics that Prometheus itself adds.
var builtin = map[string]bool{"job": true, "instance": true, "le": true}

// TestDashboardsAndAlerts checks deploy/grafana and deploy/prometheus against the metrics of
// a real server and a real agent after a short run. A metric, a label or a label value that
// does not exist is an error. It also checks that docs/reference/metrics.md describes
// exactly the metrics that exist.
func TestDashboardsAndAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server and an agent")
	}
	server, agent := scrapeFleet(t)
	known := metrics{"up": {"job": {"loadstar", "loadstar-agent"}}}
	for _, m := range []metrics{server, agent} {
		for name, labels := range m {
			known[name] = labels
		}
	}
	root := filepath.Join("..", "..")
	documented := documentedLabels(t, filepath.Join(root, "docs/reference/metrics.md"))
	for name, labels := range known {
		if labels == nil { // there may be no sample after such a short time; package agent/api tests these rows
			known[name] = documented[name]
		}
	}
	for _, path := range []string{"deploy/grafana/fleet.json", "deploy/grafana/serving.json"} {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			UID        string
			Templating struct {
				List []struct{ Name, Query string }
			}
			Panels []struct {
				Title      string
				Datasource struct{ UID string }
				Targets    []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(data, &board); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if board.UID == "" || len(board.Panels) < 10 {
			t.Errorf("%s has the uid %q and %d panels", path, board.UID, len(board.Panels))
		}
		for _, p := range board.Panels {
			if p.Datasource.UID != "${datasource}" {
				t.Errorf("%s: %s does not use the variable for its data source", path, p.Title)
			}
			for _, q := range p.Targets {
				checkExpression(t, path+": "+p.Title, q.Expr, known)
			}
		}
		for _, v := range board.Templating.List {
			if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query); m != nil {
				checkExpression(t, path+": variable "+v.Name, m[1]+"{"+m[2]+`=~".+"}`, known)
			}
		}
	}
	checkAlerts(t, root, known)
	checkReference(t, filepath.Join(root, "docs/reference/metrics.md"), server, agent)
}

func checkAlerts(t *testing.T, root string, known metrics) {
	data, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	n := 0
	var all strings.Builder
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			n++
			all.WriteString(r.Expr + "\n")
			checkExpression(t, "alert "+r.Alert, r.Expr, known)
			page, anchor, _ := strings.Cut(strings.TrimPrefix(r.Annotations["runbook_url"], "{{ $externalLabels.loadstar_dashboard }}/docs/"), "#")
			page = "docs/how-to/" + page + ".md"
			text, err := os.ReadFile(filepath.Join(root, page))
			if err != nil || anchor != strings.ToLower(r.Alert) || !strings.Contains(string(text), "\n## "+r.Alert+"\n") {
				t.Errorf("alert %s: its runbook %s#%s has no heading: %v", r.Alert, page, anchor, err)
			}
			if r.For == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("alert %s lacks a duration, a severity or a summary", r.Alert)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d alerts", n)
	}
	checkCovered(t, all.String(), known)
	checkRunbooks(t, filepath.Join(root, "docs/how-to/runbooks.md"))
	checkSyntax(t, filepath.Join(root, "deploy/prometheus/alerts.yaml"))
}

// checkRunbooks checks that each runbook explains what an alert means, how to see it, what
// to do and when it is over.
func checkRunbooks(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		for _, part := range []string{"**Means:**", "**See:**", "**Do:**", "**Over:**"} {
			if !strings.Contains(section, part) {
				t.Errorf("%s: %s has no %s", path, strings.SplitN(section, "\n", 2)[0], part)
			}
		}
	}
}

// checkSyntax checks the rules with Prometheus's own tool.
func checkSyntax(t *testing.T, path string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Error(err)
		}
		return // Debian's package prometheus contains promtool
	}
	if out, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// checkCovered checks that an alert watches everything that a server limits, refuses or
// drops because of a possible attack.
func checkCovered(t *testing.T, expressions string, known metrics) {
	t.Helper()
	for name, label := range map[string]string{"loadstar_limited_total": "reason", "loadstar_gateway_declined_total": "code", "loadstar_gateway_refused_total": "reason"} {
		values := []string{""}
		if label != "" {
			if values = known[name][label]; len(values) == 0 {
				t.Errorf("the server has no counter of %s", name)
			}
		}
		for _, value := range values {
			if !slices.ContainsFunc(selector.FindAllStringSubmatch(expressions, -1), func(m []string) bool {
				return m[1] == name && (m[2] == "" || watches(m[2], label, value))
			}) {
				t.Errorf("no alert watches %s with the %s %q", name, label, value)
			}
		}
	}
}

// watches reports whether the matchers of a selector select a value of a label.
func watches(matchers, label, value string) bool {
	for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
		if m[1] != label {
			continue
		}
		if m[2] == "=~" {
			return regexp.MustCompile("^(?:" + m[3] + ")$").MatchString(value)
		}
		return (m[2] == "=") == (m[3] == value)
	}
	return true
}

var (
	selector = regexp.MustCompile(`\b((?:loadstar|process|go)_\w+|up)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on)\s*\(([^)]*)\)`)
)

// checkExpression reports metrics and labels of a PromQL expression that do not exist.
func checkExpression(t *testing.T, where, text string, known metrics) {
	t.Helper()
	all := selector.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		t.Errorf("%s: no metric in %s", where, text)
	}
	groups := map[string]bool{}
	for _, m := range all {
		labels, ok := known[m[1]]
		if !ok {
			t.Errorf("%s: the metric %s does not exist", where, m[1])
			continue
		}
		for name := range labels {
			groups[name] = true
		}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			values, ok := labels[l[1]]
			switch {
			case builtin[l[1]] || strings.HasPrefix(l[3], "$"):
			case !ok:
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			case l[2] == "=~" && len(values) > 0 && !slices.ContainsFunc(values, regexp.MustCompile("^(?:"+l[3]+")$").MatchString):
				t.Errorf("%s: no %s of %s matches %q, seen were %q", where, l[1], m[1], l[3], values)
			case l[2] == "=" && !slices.Contains(values, l[3]):
				t.Errorf("%s: %s of %s is %q, seen were %q", where, l[1], m[1], l[3], values)
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(text, -1) {
		for _, name := range strings.Split(g[1], ",") {
			if name = strings.TrimSpace(name); !groups[name] && !builtin[name] {
				t.Errorf("%s: no metric of %s has the label %s", where, text, name)
			}
		}
	}
}

// documentedLabels returns the labels and values on the page of metrics: `label` (`value`,
// `value`).
func documentedLabels(t *testing.T, path string) metrics {
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := metrics{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(loadstar_\\w+)` \\|[^|]*\\|(.*)\\|$").FindAllStringSubmatch(string(page), -1) {
		out[m[1]] = map[string][]string{}
		for _, l := range regexp.MustCompile("`(\\w+)`(?: \\(([^)]*)\\))?").FindAllStringSubmatch(m[2], -1) {
			out[m[1]][l[1]] = nil
			for _, v := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(l[2], -1) {
				out[m[1]][l[1]] = append(out[m[1]][l[1]], v[1])
			}
		}
	}
	return out
}

// checkReference compares the metrics on the page of metrics with those that were observed.
// Metrics of regions, keepers and failures need not have been observed.
func checkReference(t *testing.T, path string, all ...metrics) {
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(loadstar_\\w+)` \\|(.*)\\|").FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = true
	}
	part := regexp.MustCompile(`_(bucket|sum|count)$`)
	seen := map[string]bool{}
	for _, some := range all {
		for name, labels := range some {
			if !strings.HasPrefix(name, "loadstar_") {
				continue
			}
			if base := part.ReplaceAllString(name, ""); base != name && documented[base] {
				name = base
			}
			seen[name] = true
			if !documented[name] {
				t.Errorf("%s does not describe %s", path, name)
				continue
			}
			row := regexp.MustCompile("(?m)^\\| `" + name + "` \\|.*$").FindString(string(page))
			for label := range labels {
				if !builtin[label] && !strings.Contains(row, "`"+label+"`") {
					t.Errorf("%s does not describe the label %s of %s", path, label, name)
				}
			}
		}
	}
	for name := range documented {
		if !seen[name] && !strings.HasPrefix(name, "loadstar_keeper_") && !slices.Contains([]string{"loadstar_region_sendings_total", "loadstar_drift_alarms_total"}, name) {
			t.Errorf("%s describes %s, which neither a server nor an agent has", path, name)
		}
	}
}

// scrapeFleet runs two rounds with a real server and a real agent that makes forecasts, and
// returns the metrics of both.
func scrapeFleet(t *testing.T) (server, agent metrics) {
	dir := t.TempDir()
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	listen, watch, http := free(), free(), free()
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "loadstar", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("loadstar %q: %v\n%s", args, err, out)
		}
		return out
	}
	start := func(args ...string) {
		cmd := exec.Command("loadstar", args...)
		cmd.Dir = dir
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // fails only if the process has ended
			_ = cmd.Wait()         // the error of a killed process
			if t.Failed() {
				t.Log(said.String())
			}
		})
	}
	begin := time.Now().AddDate(0, 0, -39).UTC().Format(time.DateOnly)
	do("data", "generate", "--meters", "2", "--days", "40", "--start", begin, "-o", "data")
	do("data", "prepare", "data", "-o", "site.prepared")
	text := fmt.Sprintf("dir: agent\nsite: {zone: America/Chicago, interval: 1h}\nhistory: site.prepared\nhttp: {listen: %q}\npolicy: {full_passes: true, least_client_examples: 0, whole_blocks: false, least_cohort: 1, least_merge: 1, least_fleet: 1}\n", http)
	plan := "name: short\nalgorithm: fedavg\nrounds: 2\nmodel: {name: dense, targets: 24}\n"
	for name, text := range map[string]string{"agent.yaml": text, "plan.yaml": plan} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start("serve", "--dir", "server", "--listen", listen, "--watch", watch, "--web", "127.0.0.1:0", "--set", "agents.poll=100ms")
	operator := []string{"--server", "https://" + listen, "--operator", "server/operator"}
	var token string
	testkit.Eventually(t, "a token", func() bool {
		out, err := run(append([]string{"token", "create"}, operator...)...)
		token = regexp.MustCompile(`ls1-\S+`).FindString(out)
		return err == nil && token != ""
	})
	do("agent", "join", "https://"+listen, token, "--dir", "agent")
	if out, err := run("agent", "join", "https://"+listen, token, "--dir", "second"); err == nil {
		t.Fatalf("a token was used twice: %s", out)
	}
	start("agent", "run", "--config", "agent.yaml")
	do(append([]string{"run", "start", "plan.yaml", "--wait-for", "2"}, operator...)...)
	testkit.Eventually(t, "a run", func() bool {
		out, _ := run(append([]string{"run", "list"}, operator...)...)
		return strings.Contains(out, "finished")
	})
	testkit.Eventually(t, "forecasts", func() bool { return scrape(t, http)["loadstar_forecast_kilowatts"] != nil })
	return scrape(t, watch), scrape(t, http)
}

var sample = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? \S+$`)

func scrape(t *testing.T, address string) metrics {
	t.Helper()
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return metrics{}
	}
	defer r.Body.Close()
	out := metrics{}
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			if out[name] == nil {
				out[name] = nil // there may be no sample yet
			}
		}
		m := sample.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		if out[m[1]] == nil {
			out[m[1]] = map[string][]string{}
		}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(out[m[1]][l[1]], l[3]) {
				out[m[1]][l[1]] = append(out[m[1]][l[1]], l[3])
			}
		}
	}
	return out
}

// TestCompose checks deploy/compose.yaml. The files that it mounts must exist, the server must
// accept its command, and the agent its configuration. No container is started.
func TestCompose(t *testing.T) {
	root := filepath.Join("..", "..", "deploy")
	text, err := os.ReadFile(filepath.Join(root, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
			Volumes     []string
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	for name, s := range c.Services {
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(from, "./") {
				if _, err := os.Stat(filepath.Join(root, from)); err != nil {
					t.Errorf("%s mounts %s: %v", name, from, err)
				}
			} else if _, ok := c.Volumes[from]; !ok {
				t.Errorf("%s mounts the volume %s, which is not declared", name, from)
			}
		}
	}
	server := c.Services["server"]
	given := regexp.MustCompile(`\$\{([A-Z_0-9]+):[?-]([^}]*)\}`)
	args := append(slices.Clone(server.Command), "--print-config")
	for i := range args {
		args[i] = given.ReplaceAllString(args[i], "$2")
	}
	cmd := exec.Command("loadstar", args...)
	for k, v := range server.Environment {
		cmd.Env = append(cmd.Environ(), k+"="+given.ReplaceAllString(v, "secret"))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("loadstar %q: %v\n%s", args, err, out)
	}
	for _, want := range []string{"hosts: [localhost, server]", "watch: :7444", "blobs: s3+http://store:9000/loadstar"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the server's configuration has no %q:\n%s", want, out)
		}
	}
	own := t.TempDir()
	agent, err := os.ReadFile(filepath.Join(root, "compose", "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(own, "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("a", 48)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("/data", own, "/run/secrets/http", token, "server: required", "server: none").Replace(string(agent))
	path := filepath.Join(own, "agent.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("loadstar", "agent", "check", "--config", path).CombinedOutput(); err != nil {
		t.Errorf("agent check: %v\n%s", err, out)
	}
}
