package round

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
)

var rewrite = flag.Bool("rewrite", false, "write what happened into the scripts")

// TestScripts runs the scripts under testdata, which show which clients are asked, when
// they return, and what the machine decides. A script is a list of commands, each followed
// by its output, indented:
//
//	synchronous fleet=5 cohort=3 asked=4 quorum=2 deadline=10s
//	buffered    fleet=5 running=3 buffer=2
//	periodic    fleet=5 running=3 period=1m
//	at 2s       sets the time of the commands below
//	ask         prints the clients; #0, #1 ... below refer to them in this order
//	return #0   prints counted or closed
//	lose #1
//	close       prints the outcome if the round ended
//	crash       continues with a new machine from the saved state
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.script")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, path := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".script"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s has another result (run the test with -rewrite to accept it):\n%s", path, got)
			}
		})
	}
}

type player struct {
	newMachine func() *Machine
	m          *Machine
	now        time.Duration
	asked      []Assignment
}

func play(t *testing.T, text string) string {
	var out strings.Builder
	var p player
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			continue // output of the previous command, which the test replaces
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if said := p.do(t, words); said != "" {
			out.WriteString("  " + said + "\n")
		}
	}
	return out.String()
}

func (p *player) do(t *testing.T, words []string) string {
	which := func() Assignment {
		i, err := strconv.Atoi(strings.TrimPrefix(words[1], "#"))
		if err != nil || i >= len(p.asked) {
			t.Fatalf("%v: no such client was asked", words)
		}
		return p.asked[i]
	}
	switch words[0] {
	case "synchronous", "buffered", "periodic":
		p.newMachine = machineConstructor(t, words)
		p.m = p.newMachine()
	case "at":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			t.Fatal(err)
		}
		p.now = d
	case "ask":
		var said []string
		for _, a := range p.m.Ask(p.now) {
			said = append(said, fmt.Sprintf("#%d client %d on version %d", len(p.asked), a.Client, a.Version))
			p.asked = append(p.asked, a)
		}
		return strings.Join(said, ", ")
	case "return":
		return map[Verdict]string{Counted: "counted", Closed: "closed"}[p.m.Return(which())]
	case "lose":
		p.m.Lose(which())
	case "close":
		o, ok := p.m.Close(p.now)
		if !ok {
			if at, set := p.m.Wake(p.now); set {
				return fmt.Sprintf("stays open until %s at the latest", at)
			}
			return "stays open"
		}
		how := "abandoned"
		if o.Merged {
			how = "merged"
		}
		var stale []int
		for _, a := range o.Counted {
			stale = append(stale, o.Version-a.Version)
		}
		return fmt.Sprintf("round %d %s: asked %d, counted %d, lost %d, late %d, staleness %v", o.Round, how, o.Asked, len(o.Counted), o.Lost, o.Late, stale)
	case "crash":
		b, err := p.m.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		p.m = p.newMachine()
		if err := p.m.UnmarshalJSON(b); err != nil {
			t.Fatal(err)
		}
	default:
		t.Fatalf("unknown command %q", words[0])
	}
	return ""
}

func machineConstructor(t *testing.T, words []string) func() *Machine {
	set := map[string]string{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		set[k] = v
	}
	number := func(k string) int { n, _ := strconv.Atoi(set[k]); return n }
	span := func(k string) time.Duration { d, _ := time.ParseDuration(set[k]); return d }
	var s fed.Scheduler
	switch words[0] {
	case "synchronous":
		s = recipe.Synchronous{Cohort: number("cohort"), Asked: number("asked"), Quorum: number("quorum"), Deadline: span("deadline")}
	case "buffered":
		s = recipe.Buffered{Running: number("running"), Buffer: number("buffer")}
	case "periodic":
		s = recipe.Periodic{Running: number("running"), Period: span("period")}
	}
	return func() *Machine { return NewMachine(s, 1, number("fleet")) }
}
