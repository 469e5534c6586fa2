package demo

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// story prints what happens in the demo.
type story struct {
	mu    sync.Mutex
	out   io.Writer
	show  func(done, total int, note string) // nil without a terminal
	began time.Time
}

func newStory(out io.Writer, show func(done, total int, note string)) *story {
	if out == nil {
		out = io.Discard
	}
	return &story{out: out, show: show, began: time.Now()}
}

// print writes a line. It ignores errors, because if writing fails, nobody reads the output.
func (s *story) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.show != nil {
		s.show(0, 0, "") // removes the bar
	}
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *story) title(clients int, seed uint64) {
	s.print("Loadstar demo: %d GENERATED buildings (no meter measured them), seed %d", clients, seed)
	s.print("")
}

// say prints an event with the time since the start.
func (s *story) say(format string, args ...any) {
	s.print("%5.1f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// note prints a line that continues the last event.
func (s *story) note(format string, args ...any) { s.print("         "+format, args...) }

func (s *story) bar(done, total int, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.show != nil {
		s.show(done, total, note)
	}
}

// stop removes the bar.
func (s *story) stop() {
	if s.show != nil {
		s.show(0, 0, "")
	}
}

// summary prints the results.
func (s *story) summary(r *Result, x *show) {
	s.print("\nThe next 24 hours, on %d days that no method was fitted to:\n", r.TestDays)
	s.print("%-24s %9s %18s", "", "error, %", "relative to")
	s.print("%-24s %9s %18s %10s %10s", "", "of load", "last week: mean", "median", "best for")
	for _, m := range r.Methods {
		s.print("%-24s %9.1f %18.3f %10.3f %10s", m.Name, m.ErrorPercent, m.RelativeMAE, m.MedianRelativeMAE, fmt.Sprintf("%d of %d", m.BestFor, r.Clients))
	}
	s.print("error, %% of load: a building's mean absolute error divided by its mean load, as a mean over buildings")
	s.print("\n%s", verdict(r.Methods))
	s.print("%.0f %% of the loads are between P10 and P90; 80 %% would be ideal.", 100*r.Coverage)
	found := "none"
	if r.RawReadingsFound > 0 {
		found = fmt.Sprint(r.RawReadingsFound)
	}
	s.print("\nraw readings sent: %s found in the %.0f MB that agents sent;", found, float64(r.Searched)/1e6)
	s.print("updates still reveal something about readings: docs/privacy.md")
	s.print("sent per building: %.1f MB in %d rounds", r.SentMB, r.Rounds)
	s.print("%.0f s, %.0f s of CPU time", r.Seconds, r.CPUSeconds)
	s.print("\ntomorrow, for each building, with its interval:")
	for i, page := range r.AgentPages {
		s.print("  %-9s %s", x.sites[i].name, page)
	}
	if r.Folder != "" {
		s.print("\nkept: %s\nto continue with it after the demo, with the first of %d agents:", r.Folder, r.Agents)
		s.print("  %s", strings.Replace(r.Continue[0], " --web", " \\\n      --web", 1))
		s.print("  %s", r.Continue[1])
	}
	s.print(`
next, with your own data:
  loadstar data init export    (the folder of your files)
  loadstar simulate plans/day-ahead.yaml --data export --out runs/tomorrow
  loadstar forecast runs/tomorrow --data export --h 24 -o tomorrow.csv --chart`)
}

// verdict returns a sentence about the federated model's result.
func verdict(m []Method) string {
	f := m[federated].RelativeMAE
	against := func(other int, name string) string {
		d := 100 * (1 - f/m[other].RelativeMAE)
		if d < 0 {
			return fmt.Sprintf("%.1f %% worse than %s", math.Abs(d), name)
		}
		return fmt.Sprintf("%.1f %% better than %s", d, name)
	}
	return fmt.Sprintf("Federated is %s,\n%s and\n%s (means of the relative errors).",
		against(week, "last week's profile"), against(ridge, "ridge regression"), against(alone, "each building alone"))
}
