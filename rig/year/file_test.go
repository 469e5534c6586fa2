package year

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/agent/live"
	"loadstar/forecast/issue"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
)

// TestFileEqualsAgent checks that a forecast from files has the same bytes as the forecast
// of an agent that received the same readings over time.
func TestFileEqualsAgent(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	d, model := fixture(t)
	cutoff := start + 9*86400 + 7*3600 // not a recorded issue
	newest := map[string]issue.Forecast{}
	var log bytes.Buffer
	_, err := Run(t.Context(), Config{
		Data: d, Model: model, Start: start, End: cutoff + 3600, H: 48, Settled: start, Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Each: func(all []*live.Issued) {
			for _, x := range all {
				newest[x.Client] = x.Forecast
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	m, err := outlook.Open(model, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	write := func(name string, each func(w outlook.Writer)) []byte {
		w, err := outlook.Create(filepath.Join(dir, name), nil, outlook.About{Levels: []float64{0.1, 0.5, 0.9}})
		if err != nil {
			t.Fatal(err)
		}
		each(w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// A client for which other weights were fitted, because the run's weights were worse, uses
	// a different model than the file.
	var names []string
	for i := range d.Len() {
		if name := d.Meter(i).ID; !strings.Contains(log.String(), "fitted personal layers\" client="+name) {
			names = append(names, name)
		}
	}
	slices.Sort(names) // the order in the file
	if len(names) < 4 {
		t.Fatalf("only %v have the weights of the run\n%s", names, log.String())
	}
	agent := write("agent.csv", func(w outlook.Writer) {
		for _, name := range names {
			f := newest[name]
			if f.Cutoff != cutoff || f.Rows[0].Source != issue.Model {
				t.Errorf("%s: cutoff %d, %+v", name, f.Cutoff, f.Rows[0])
			}
			if err := w.Write(f); err != nil {
				t.Fatal(err)
			}
		}
	})
	file := write("file.csv", func(w outlook.Writer) {
		_, err := outlook.Run(context.Background(), outlook.Config{
			Model: m, Dataset: d, At: cutoff, H: 48, Workers: 1, Clients: names, Now: time.Unix(cutoff, 0),
		}, w.Write)
		if err != nil {
			t.Fatal(err)
		}
	})
	if !bytes.Equal(agent, file) {
		a, b := bytes.Split(agent, []byte("\n")), bytes.Split(file, []byte("\n"))
		n := 0
		for i := range min(len(a), len(b)) {
			if !bytes.Equal(a[i], b[i]) {
				if n++; n < 6 {
					t.Errorf("agent %s\nfile  %s", a[i], b[i])
				}
			}
		}
		t.Errorf("%d of %d lines differ", n, len(a))
	}
	if bytes.Count(agent, []byte("\n")) != 1+48*len(names) {
		t.Errorf("%d lines", bytes.Count(agent, []byte("\n")))
	}
}
