package compose

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.yaml.in/yaml/v3"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/rig/product"
)

// patience is the time limit of each wait. A busy machine is slow.
const patience = 6 * time.Minute

// service is a service in the Compose file.
type service struct {
	Image               string
	Command, Entrypoint []string
	Environment         map[string]string
	Volumes, Secrets    []string
	Profiles            []string
}

// world runs the services.
type world struct {
	*testing.T
	repository, dir, programs string
	text                      string // content of the Compose file
	services                  map[string]service
	secrets                   map[string]string // files by name, relative to the file
	variables                 map[string]string
	ports                     map[string]int // ports of this machine, by SERVICE:PORT
	running                   map[string]*product.Process
	last                      time.Time // time of the latest step
}

func open(t *testing.T) *world {
	repository, err := product.Folder(t.Context())
	must(t, err)
	w := &world{T: t, repository: repository, dir: t.TempDir(), programs: t.TempDir(), services: map[string]service{}, secrets: map[string]string{}, ports: map[string]int{}, running: map[string]*product.Process{}, last: time.Now()}
	text, err := os.ReadFile(filepath.Join(repository, "deploy/compose.yaml"))
	must(t, err)
	w.text = string(text)
	var file struct {
		Services map[string]service
		Secrets  map[string]struct{ File string }
	}
	must(t, yaml.Unmarshal(text, &file))
	w.services = file.Services
	for name, s := range file.Secrets {
		w.secrets[name] = s.File
	}
	w.variables = map[string]string{"LOADSTAR_DB_PASSWORD": "db", "LOADSTAR_S3_SECRET": "secret of the store", "LOADSTAR_GRAFANA_PASSWORD": "grafana", "LOADSTAR_HOST": "127.0.0.1"}
	// Without debugging information, linking takes half the time.
	cmd := exec.Command("go", "build", "-ldflags=-w", "-o", w.programs, "./cmd/loadstar", "./cmd/loadstar-agent")
	cmd.Dir = repository
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.step("the programs are built")
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// address returns the address on this machine of a service's port.
func (w *world) address(service, port string) string {
	key := service + ":" + port
	if w.ports[key] == 0 {
		var err error
		w.ports[key], err = testkit.FreePort()
		must(w, err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(w.ports[key]))
}

// root is the folder that contains the paths of a service's container.
func (w *world) root(name string) string { return filepath.Join(w.dir, name) }

var (
	variable = regexp.MustCompile(`\$\{(\w+)(:[-?])?([^}]*)\}`)
	listens  = regexp.MustCompile(`(^|[="])(?:0\.0\.0\.0)?:(\d{4,5})\b`)
)

// here converts text for a service's container to text for this machine.
func (w *world) here(name, text string) string {
	text = variable.ReplaceAllStringFunc(text, func(v string) string {
		m := variable.FindStringSubmatch(v)
		value, ok := w.variables[m[1]]
		if !ok && m[2] == ":?" {
			w.Fatalf("the file needs the variable %s, which docs/how-to/kubernetes.md does not set", m[1])
		}
		return cmp.Or(value, map[bool]string{true: m[3]}[m[2] == ":-"])
	})
	for other := range w.services {
		port := regexp.MustCompile(`\b` + other + `:(\d+)\b`)
		text = port.ReplaceAllStringFunc(text, func(s string) string { return w.address(other, port.FindStringSubmatch(s)[1]) })
	}
	text = strings.ReplaceAll(text, "@database/", "@"+w.address("database", "5432")+"/")
	text = listens.ReplaceAllStringFunc(text, func(s string) string {
		m := listens.FindStringSubmatch(s)
		return m[1] + w.address(name, m[2])
	})
	for _, path := range w.paths(name) {
		text = regexp.MustCompile(`(^|[="\s])`+regexp.QuoteMeta(path)+`($|[/"\s,}])`).ReplaceAllString(text, "${1}"+w.root(name)+path+"${2}")
	}
	return text
}

// paths returns the paths of volumes and secrets in a service's container.
func (w *world) paths(name string) (all []string) {
	for _, v := range w.services[name].Volumes {
		all = append(all, strings.Split(v, ":")[1])
	}
	return append(all, "/run/secrets")
}

// furnish creates the folders of a service's container, with their files. change maps strings
// in these files to their replacements; each string must occur.
func (w *world) furnish(name string, change map[string]string) {
	deploy := filepath.Join(w.repository, "deploy")
	for _, v := range w.services[name].Volumes {
		parts := strings.Split(v, ":")
		to := filepath.Join(w.root(name), parts[1])
		info, err := os.Stat(filepath.Join(deploy, parts[0]))
		if !strings.HasPrefix(parts[0], "./") {
			must(w, os.MkdirAll(to, 0o755))
			continue
		}
		must(w, err)
		must(w, os.MkdirAll(filepath.Dir(to), 0o755))
		if info.IsDir() {
			must(w, os.CopyFS(to, os.DirFS(filepath.Join(deploy, parts[0]))))
			continue
		}
		data, err := os.ReadFile(filepath.Join(deploy, parts[0]))
		must(w, err)
		text := string(data)
		for old, replacement := range change {
			if strings.Contains(text, old) {
				text = strings.ReplaceAll(text, old, replacement)
				delete(change, old)
			}
		}
		must(w, os.WriteFile(to, []byte(w.here(name, text)), 0o600))
	}
	for old := range change {
		w.Fatalf("no file of the service %s has %q", name, old)
	}
	for _, s := range w.services[name].Secrets {
		if w.secrets[s] == "" {
			w.Fatalf("the service %s has a secret %s, which the file does not define", name, s)
		}
		data, err := os.ReadFile(filepath.Join(w.dir, "secrets", w.secrets[s]))
		if s == "join" || s == "http" && err == nil {
			must(w, err)
			must(w, os.MkdirAll(filepath.Join(w.root(name), "run/secrets"), 0o755))
			must(w, os.WriteFile(filepath.Join(w.root(name), "run/secrets", s), data, 0o600))
		}
	}
}

// secret writes the file of a secret.
func (w *world) secret(file, text string) {
	path := filepath.Join(w.dir, "secrets", file)
	must(w, os.MkdirAll(filepath.Dir(path), 0o755))
	must(w, os.WriteFile(path, []byte(text), 0o600))
}

// command returns a command in a service's container.
func (w *world) command(ctx context.Context, name, program string, args ...string) *exec.Cmd {
	for i := range args {
		args[i] = w.here(name, args[i])
	}
	if own := filepath.Join(w.programs, program); exists(own) {
		program = own
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = w.root(name)
	// In the container, the server has the address that commands use by default.
	cmd.Env = append(os.Environ(), "LOADSTAR_SERVER=https://"+w.address("server", "7443"), "LOADSTAR_SERVE_LISTEN="+w.address("server", "7443"))
	for key, value := range w.services[name].Environment {
		cmd.Env = append(cmd.Env, key+"="+w.here(name, value))
	}
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// start runs a service's program until the test ends. image contains the arguments that the
// image adds.
func (w *world) start(name, program string, image ...string) {
	cmd := w.command(context.Background(), name, program, append(slices.Clone(w.services[name].Command), image...)...)
	p, err := product.Start(cmd, filepath.Join(w.dir, name+".log"))
	must(w, err)
	w.running[name] = p
	w.Cleanup(func() {
		if err := p.Stop(syscall.SIGTERM, 30*time.Second); err != nil {
			w.Errorf("%s: %v", name, err)
		}
		if text := p.Log(); w.Failed() {
			w.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

// step prints the completed step and its duration.
func (w *world) step(what string) {
	w.Helper()
	w.Logf("%5.1f s  %s", time.Since(w.last).Seconds(), what)
	w.last = time.Now()
}

// soon waits until a function returns no error, or a service ends.
func (w *world) soon(what string, try func() error) {
	w.Helper()
	defer w.step(what)
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%s: %v", what, err)
		}
		for name, p := range w.running {
			select {
			case <-p.Done():
				w.Fatalf("%s: %v; %s has ended: %s", what, err, name, p.State())
			default:
			}
		}
	}
}

func (w *world) get(address string) ([]byte, error) {
	r, err := http.Get(address)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", r.Status, data)
	}
	return data, err
}

// startDatabase runs PostgreSQL with the user and the database in the service's environment.
func (w *world) startDatabase() {
	s := pgtest.Single(w)
	_, port, err := net.SplitHostPort(s.Addr())
	must(w, err)
	w.ports["database:5432"], err = strconv.Atoi(port)
	must(w, err)
	env := w.services["database"].Environment
	bin, _, err := pgtest.Installed()
	must(w, err)
	for _, sql := range []string{
		fmt.Sprintf("CREATE ROLE %s SUPERUSER LOGIN PASSWORD '%s'", env["POSTGRES_USER"], w.here("database", env["POSTGRES_PASSWORD"])),
		fmt.Sprintf("CREATE DATABASE %s OWNER %s", env["POSTGRES_DB"], env["POSTGRES_USER"]),
	} {
		if out, err := exec.Command(filepath.Join(bin, "psql"), s.URL("postgres"), "-c", sql).CombinedOutput(); err != nil {
			w.Fatalf("%s: %v\n%s", sql, err, out)
		}
	}
}

// startStore serves S3 from memory, with the bucket that the service's entrypoint creates.
func (w *world) startStore() {
	m := regexp.MustCompile(`mkdir -p /data/(\w+)`).FindStringSubmatch(strings.Join(w.services["store"].Entrypoint, " "))
	if m == nil {
		w.Fatal("the service store creates no bucket")
	}
	memory := s3mem.New()
	must(w, memory.CreateBucket(m[1]))
	l, err := net.Listen("tcp", w.address("store", "9000"))
	must(w, err)
	server := &http.Server{Handler: gofakes3.New(memory).Server(), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }() // the server ends with the test
	w.Cleanup(func() { _ = server.Close() })
}

// TestCompose starts all services, joins the agent with a token file, trains a run, and
// sends the queries of Grafana's dashboards to Prometheus.
func TestCompose(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs and starts six services")
	}
	if _, err := exec.LookPath("prometheus"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs Debian's prometheus")
	}
	w := open(t)
	for _, name := range []string{"database", "store", "server", "agent", "prometheus", "grafana"} {
		if _, ok := w.services[name]; !ok || len(w.services) != 6 {
			t.Fatalf("the file has other services than this test knows: %v", w.services)
		}
	}
	const httpToken = "0123456789abcdef0123456789abcdef0123456789abcdef"
	w.secret(w.secrets["http"], httpToken)
	w.startDatabase()
	w.step("PostgreSQL runs")
	w.startStore()
	w.furnish("server", nil)
	w.start("server", "loadstar")
	w.soon("the server is ready", func() error { _, err := w.get("http://" + w.address("server", "7444") + "/readyz"); return err })
	if exists(filepath.Join(w.root("server"), "data/ledger.db")) {
		t.Error("the server does not use PostgreSQL")
	}

	w.furnish("prometheus", map[string]string{"scrape_interval: 15s": "scrape_interval: 1s"})
	w.start("prometheus", "prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus", "--web.listen-address="+w.address("prometheus", "9090"))

	// Create the token with the command in the file's comment.
	m := regexp.MustCompile(`(?m)^#.* exec (\w+) (\w+) (.*) >deploy/(\S+)$`).FindStringSubmatch(w.text)
	if m == nil {
		t.Fatal("the comment of the file has no command that creates the token")
	}
	token, err := w.command(t.Context(), m[1], m[2], strings.Fields(m[3])...).Output()
	if err != nil {
		t.Fatalf("%s: %v", m[0], err)
	}
	w.secret("./"+m[4], string(token))

	// The agents' policy declines rounds that may end with fewer than ten clients. The plan ends a
	// round with half of its clients.
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("home-%d", i))
	}
	w.furnish("agent", map[string]string{"boiler: }": strings.Join(names, ": , ") + ": }"})
	end := time.Now().UTC().Truncate(time.Hour)
	w.history(names, end.Add(-time.Hour))
	w.step("the agent has readings")
	w.start("agent", "loadstar-agent")
	// Prometheus must read counters before they increase, because rates of earlier events are
	// NaN.
	w.soon("both targets are scraped", func() error {
		n, err := ask(w, "http://"+w.address("prometheus", "9090"), "sum(up) == 2")
		if err == nil && n != 1 {
			err = errors.New("they are not up")
		}
		return err
	})
	w.soon("the agent takes readings", func() error { return w.push(rows(names, end, 2), httpToken) })

	operate := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := w.command(ctx, "server", "loadstar", append(args, "--operator", "/data/operator")...)
		var problems bytes.Buffer
		cmd.Stderr = &problems
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("loadstar %s: %v\n%s%s", strings.Join(args, " "), err, out, problems.String())
		}
		return strings.TrimSpace(string(out))
	}
	run := operate("run", "start", filepath.Join(w.repository, "plans/hour-ahead.yaml"), "--rounds", "5", "--wait-for", strconv.Itoa(len(names)))
	w.step("the run is started")
	operate("run", "watch", run)
	if text := operate("run", "show", run, "--json"); !strings.Contains(text, `"state":"finished"`) {
		t.Fatal(text)
	}
	w.step("the run is trained")
	operate("release", "create", run)
	w.dashboards()
	w.step("the dashboards have data")
}

// rows returns readings of the last hours as CSV.
func rows(names []string, end time.Time, hours int) string {
	var text strings.Builder
	text.WriteString("unique_id,ds,y\n")
	for i, name := range names {
		for h := range hours {
			at := end.Add(time.Duration(h-hours) * time.Hour)
			fmt.Fprintf(&text, "%s,%s,%.3f\n", name, at.Format(time.RFC3339), 1+math.Sin(float64(at.Hour()+i)/4)/2+float64((at.YearDay()*7+at.Hour()*3+i)%5)/10)
		}
	}
	return text.String()
}

// history gives the agent the readings of four months, as docs/agent.md describes.
func (w *world) history(names []string, end time.Time) {
	dir := w.TempDir()
	must(w, os.WriteFile(filepath.Join(dir, "readings.csv"), []byte(rows(names, end, 120*24)), 0o600))
	file := filepath.Join(dir, "site.prepared")
	for _, args := range [][]string{
		{"server", "loadstar", "data", "init", dir, "--zone", "Europe/Berlin", "--unit", "kW", "--yes"},
		{"server", "loadstar", "data", "prepare", dir, "-o", file},
		{"agent", "loadstar-agent", "import", "-config", "/etc/loadstar/agent.yaml", file},
	} {
		if out, err := w.command(w.Context(), args[0], args[1], args[2:]...).CombinedOutput(); err != nil {
			w.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
}

func (w *world) push(rows, token string) error {
	r, err := http.NewRequestWithContext(w.Context(), http.MethodPost, "http://"+w.address("agent", "7446")+"/v1/readings", strings.NewReader(rows))
	must(w, err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "text/csv")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && (a.StatusCode != http.StatusOK || !strings.Contains(string(text), `"refused":[]`)) {
		err = fmt.Errorf("%s: %.300s", a.Status, text)
	}
	return err
}

// without lists the metrics that have no data in the first minutes of a fleet without faults,
// and the reasons.
var without = map[string]string{
	"loadstar_finding":                  "the panel shows findings, and there are none",
	"loadstar_backup_timestamp_seconds": "the server backs up SQLite, and PostgreSQL has programs of its own",
	"loadstar_score":                    "the readings that a forecast is compared with come later",
	"loadstar_drift_alarms_total":       "drift is looked for in scores",
}

// dashboards queries Prometheus for the variables and the panels of all of Grafana's
// dashboards, at the address of Grafana's data source.
func (w *world) dashboards() {
	w.furnish("grafana", nil)
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	data, err := os.ReadFile(filepath.Join(w.root("grafana"), "etc/grafana/provisioning/datasources/loadstar.yaml"))
	must(w, err)
	must(w, yaml.Unmarshal(data, &sources))
	if len(sources.Datasources) != 1 || sources.Datasources[0].Type != "prometheus" {
		w.Fatalf("%+v", sources)
	}
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	data, err = os.ReadFile(filepath.Join(w.root("grafana"), "etc/grafana/provisioning/dashboards/loadstar.yaml"))
	must(w, err)
	must(w, yaml.Unmarshal(data, &providers))
	boards, err := filepath.Glob(filepath.Join(providers.Providers[0].Options.Path, "*.json"))
	must(w, err)
	if len(boards) < 2 {
		w.Fatalf("Grafana gets the dashboards %v", boards)
	}
	base := sources.Datasources[0].URL
	var report strings.Builder
	answered, empty := 0, 0
	patience := patience // for the first query, because the data for later queries has arrived by then
	for _, path := range boards {
		var board struct {
			Title      string
			Templating struct {
				List []struct{ Name, Query string }
			}
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		data, err := os.ReadFile(path)
		must(w, err)
		must(w, json.Unmarshal(data, &board))
		for _, p := range board.Panels {
			for _, q := range p.Targets {
				text := q.Expr
				for _, v := range board.Templating.List {
					text = strings.ReplaceAll(text, "$"+v.Name, ".*") // the choice "all"
				}
				name := board.Title + ", " + p.Title
				n := 0
				why := ""
				for metric, reason := range without {
					if regexp.MustCompile(`\b` + metric + `\b`).MatchString(text) {
						why = reason
					}
				}
				for end := time.Now().Add(map[bool]time.Duration{true: patience}[why == ""]); ; time.Sleep(time.Second) {
					if n, err = ask(w, base, text); err != nil {
						w.Errorf("%s: %s: %v", name, text, err)
						break
					}
					if n > 0 || time.Now().After(end) {
						break
					}
				}
				if n == 0 && why == "" {
					patience = 5 * time.Second
				}
				switch {
				case n > 0:
					answered++
				case why != "":
					empty++
				default:
					w.Errorf("%s has no data: %s", name, text)
				}
				fmt.Fprintf(&report, "%4d series  %s: %s%s\n", n, name, text, map[bool]string{true: " (" + why + ")"}[n == 0])
			}
		}
	}
	w.Logf("%d queries of %d dashboards have data, %d have none yet:\n%s", answered, len(boards), empty, report.String())
}

// ask returns the number of series with a value in Prometheus's answer.
func ask(w *world, base, query string) (int, error) {
	data, err := w.get(base + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, err
	}
	n := 0
	for _, r := range answer.Data.Result {
		if text, _ := r.Value[1].(string); text != "NaN" {
			n++
		}
	}
	return n, nil
}
