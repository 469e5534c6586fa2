package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series"
	"loadstar/server/blob"
	"loadstar/server/sqlstore"
)

// town is a server and agents that make forecasts, each in its own process.
type town struct {
	*testing.T
	dir    string
	agents []*forecaster
}

// forecaster is an agent that makes forecasts.
type forecaster struct {
	fleet   *town
	name    string
	address string
	clients []string
	cmd     *exec.Cmd // nil while it is not running
}

// patience limits every wait of the test. On an idle machine, no wait takes longer than two
// seconds.
const patience = time.Minute

// loadstar runs a command and returns its standard output.
func (f *town) loadstar(args ...string) string {
	f.Helper()
	cmd := exec.CommandContext(f.Context(), "loadstar", args...)
	cmd.Dir = f.dir
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		f.Fatalf("loadstar %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), said.String())
	}
	return strings.TrimSpace(out.String())
}

// start starts a command whose output goes to a file. The command is ended when the test ends.
func (f *town) start(log string, args ...string) *exec.Cmd {
	f.Helper()
	file, err := os.OpenFile(filepath.Join(f.dir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	cmd := exec.CommandContext(context.WithoutCancel(f.Context()), "loadstar", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = f.dir, file, file
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		if f.Failed() {
			f.Logf("%s:\n%s", log, f.read(log))
		}
	})
	return cmd
}

func (f *town) read(name string) string {
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		f.Error(err)
	}
	return string(b)
}

// newFleet starts a server and agents. Every agent has two clients, whose generated readings
// end with the last full hour.
func newFleet(t *testing.T, agents, days int) *town {
	t.Helper()
	f := &town{T: t, dir: t.TempDir()}
	f.start("server.log", "serve", "--dir", "server", "--listen", "127.0.0.1:0", "--watch", "", "--set", "agents.poll=50ms", "--log-level", "warn")
	const meters = 2
	first := time.Now().UTC().AddDate(0, 0, -days)
	f.loadstar("data", "generate", "--meters", fmt.Sprint(agents*meters), "--days", fmt.Sprint(days+2), "--start", first.Format(time.DateOnly), "--no-faults", "-o", "site")
	f.loadstar("data", "prepare", "site", "-o", "site.prepared")
	d, closer, err := series.OpenPrepared(filepath.Join(f.dir, "site.prepared"))
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	var address string
	testkit.Within(f, patience, "the server has an address", func() bool {
		found := regexp.MustCompile(`agents and operators: (https://\S+)`).FindStringSubmatch(f.read("server.log"))
		if found != nil {
			address = found[1]
		}
		return found != nil
	})
	t.Setenv("LOADSTAR_SERVER", address)
	t.Setenv("LOADSTAR_OPERATOR", filepath.Join(f.dir, "server", "operator"))
	token := f.loadstar("token", "create", "--uses", fmt.Sprint(agents))
	now := time.Now().Unix() / 3600 * 3600
	for i := range agents {
		a := &forecaster{fleet: f, name: fmt.Sprintf("agent%d", i+1), address: testkit.AddressFor(t)}
		var own []series.Meter
		for k := range meters {
			m := d.Meter(meters*i + k)
			m.Load = m.Load[:(now-m.Start)/3600]
			own = append(own, m)
			a.clients = append(a.clients, m.ID)
		}
		slices.Sort(a.clients)
		part, err := d.With(own)
		if err != nil {
			t.Fatal(err)
		}
		if err := series.WritePrepared(filepath.Join(f.dir, a.name+".prepared"), part); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("dir: %s\nsite: {name: %s, zone: America/Chicago}\nserver: required\nhistory: %s.prepared\nhttp: {listen: %q}\nforecast: {drop: %s.csv, fallback: week}\n"+
			"policy: {least_examples: 16, least_client_examples: 0, whole_blocks: false, least_cohort: 1, least_merge: 1, least_fleet: 1}\n",
			a.name, a.name, a.name, a.address, a.name)
		if err := os.WriteFile(filepath.Join(f.dir, a.name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.loadstar("agent", "join", address, token, "--dir", a.name, "--name", a.name)
		f.agents = append(f.agents, a)
		a.start()
	}
	return f
}

func (a *forecaster) start() {
	a.cmd = a.fleet.start(a.name+".log", "agent", "run", "--config", a.name+".yaml")
}

// kill kills the agent's process with kill -9.
func (a *forecaster) kill() {
	a.fleet.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		a.fleet.Fatal(err)
	}
	a.cmd.Wait() // the error shows that it was killed
}

// stop stops the agent in an orderly way.
func (a *forecaster) stop() {
	a.fleet.Helper()
	if err := a.cmd.Process.Signal(os.Interrupt); err != nil {
		a.fleet.Fatal(err)
	}
	if err := a.cmd.Wait(); err != nil {
		a.fleet.Errorf("%s: %v", a.name, err)
	}
}

func (a *forecaster) status() string {
	return a.fleet.loadstar("agent", "status", "--config", a.name+".yaml")
}

// answer calls the HTTP interface, and returns false if the agent is not listening yet.
func (a *forecaster) answer(method, path string, into any) bool {
	a.fleet.Helper()
	r, err := http.NewRequestWithContext(a.fleet.Context(), method, "http://"+a.address+path, nil)
	if err != nil {
		a.fleet.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		a.fleet.Fatalf("%s %s: %s, %v\n%s", method, path, resp.Status, err, b)
	}
	if err := json.Unmarshal(b, into); err != nil {
		a.fleet.Fatalf("%s: %v\n%s", path, err, b)
	}
	return true
}

// which contains the clients that use a model and the clients that refuse it.
type which struct {
	Release          string
	Run              string
	Serving, Refused []string
}

func (a *forecaster) model(name string) which {
	a.fleet.Helper()
	var list struct{ Models []which }
	a.answer(http.MethodGet, "/v1/models", &list)
	for _, m := range list.Models {
		if m.Release == name {
			return m
		}
	}
	return which{}
}

// said is a forecast from the HTTP interface.
type said struct {
	Cutoff string
	Model  struct {
		Release, Run string
		Version      int
	}
	Values struct {
		Time          []string
		P10, P50, P90 []float64
		Source        []string
	}
}

// forecast requests a forecast now.
func (a *forecaster) forecast(client string) (s said) {
	a.fleet.Helper()
	if !a.answer(http.MethodPost, "/v1/forecasts/"+client, &s) {
		a.fleet.Fatalf("%s does not answer", a.name)
	}
	return s
}

// all waits until all clients of the agents use a model, and checks that their forecasts name
// the model.
func (f *town) all(agents []*forecaster, release, run string) (out map[string]said) {
	f.Helper()
	out = map[string]said{}
	for _, a := range agents {
		testkit.Within(f, patience, a.name+" serves "+release, func() bool { return slices.Equal(a.model(release).Serving, a.clients) })
		for _, c := range a.clients {
			s := a.forecast(c)
			if s.Model.Release != release || s.Model.Run != run || len(s.Values.Source) != 48 || s.Values.Source[0] != "model" || s.Values.Source[23] != "model" {
				f.Errorf("%s: model %+v, sources %v; want %s of run %s", c, s.Model, s.Values.Source, release, run)
			}
			out[c] = s
		}
		if text := a.status(); strings.Count(text, "model "+release+" (personal layers of ") != len(a.clients) {
			f.Errorf("status of %s, which should use %s:\n%s", a.name, release, text)
		}
	}
	return out
}

// spoil multiplies the weights of a finished run on the server by a factor, as a fault or an
// intruder could.
func (f *town) spoil(run string, factor float32) {
	f.Helper()
	blobs, err := blob.Files(filepath.Join(f.dir, "server", "blobs"))
	if err != nil {
		f.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(f.dir, "server", "ledger.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	var hash string
	newest := " FROM versions WHERE run = $1 ORDER BY version DESC LIMIT 1"
	if err := db.QueryRow("SELECT weights"+newest, run).Scan(&hash); err != nil {
		f.Fatal(err)
	}
	data, err := blobs.Get(f.Context(), hash)
	if err != nil || len(data)%4 != 0 {
		f.Fatalf("%d bytes of weights, %v", len(data), err)
	}
	for i := 0; i < len(data); i += 4 {
		w := math.Float32frombits(binary.LittleEndian.Uint32(data[i:]))
		binary.LittleEndian.PutUint32(data[i:], math.Float32bits(w*factor))
	}
	spoiled, err := blobs.Put(f.Context(), data)
	if err != nil {
		f.Fatal(err)
	}
	tx, err := db.Begin()
	if err != nil {
		f.Fatal(err)
	}
	r, err := tx.Exec("UPDATE versions SET weights = $2 WHERE run = $1 AND version = (SELECT version"+newest+")", run, spoiled)
	if err != nil {
		f.Fatal(err)
	}
	if n, err := r.RowsAffected(); n != 1 || err != nil {
		f.Fatalf("%d rows, %v", n, err)
	}
	if err := sqlstore.SumRows(f.Context(), tx); err != nil {
		f.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		f.Fatal(err)
	}
}
