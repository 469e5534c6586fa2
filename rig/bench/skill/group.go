package skill

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// Group is a dataset with the runs of one plan, one run for each seed, and the uses of
// their forecasts.
type Group struct {
	Dataset *series.Dataset
	Runs    []string // folders
	// Weather contains the weather errors with which the first run is also scored.
	Weather []outlook.WeatherError
	// Peers and Measure have the same meaning as in [Rivals].
	Peers   string
	Measure bool
	Kernel  *kernel.Set
	Workers int

	model  string
	seeds  []*outlook.Scores
	rivals []Uses
	wrong  []*outlook.Scores // by weather
}

// Score scores the runs and their rivals.
func (g *Group) Score(ctx context.Context) error {
	for i, dir := range g.Runs {
		m, err := outlook.Open(dir, g.Dataset, g.Kernel)
		if err != nil {
			return err
		}
		defer m.Close()
		b := outlook.Backtest{Model: m, Dataset: g.Dataset, Workers: g.Workers}
		s, err := b.Run(ctx)
		if err != nil {
			return err
		}
		if s.Energy == nil || s.Sum == nil || s.Peak == nil {
			return fmt.Errorf("%s has no daily energies, sums or peaks, because the test split is too short or there is only one client", dir)
		}
		g.model, g.seeds = s.Model, append(g.seeds, s)
		for _, b.Weather = range g.Weather {
			if i > 0 || len(g.Dataset.Weather.Names) == 0 {
				break
			}
			s, err := b.Run(ctx)
			if err != nil {
				return err
			}
			g.wrong = append(g.wrong, s)
		}
	}
	var err error
	g.rivals, err = Rivals(ctx, g.Dataset, g.seeds[0], g.Peers, g.Measure)
	return err
}

// WriteUses writes Markdown tables with a column for each group.
func WriteUses(w io.Writer, groups []Group) error {
	t := &usesTables{w: w, groups: groups}
	for _, q := range []struct {
		title string
		of    func(*outlook.Scores) *outlook.SumScore
		rival func(Uses) *outlook.SumScore
	}{
		{"Energy of a day", func(s *outlook.Scores) *outlook.SumScore { return s.Energy }, func(u Uses) *outlook.SumScore { return u.Energy }},
		{"Sum of all clients by hour", func(s *outlook.Scores) *outlook.SumScore { return s.Sum }, func(u Uses) *outlook.SumScore { return u.Sum }},
		{"Highest hour of a day", func(s *outlook.Scores) *outlook.SumScore { return s.Peak }, func(u Uses) *outlook.SumScore { return u.Peak }},
	} {
		t.title(q.title + ": error relative to last week's, bias.")
		t.row(t.model(), func(g *Group) string { return cell(mean(g.seeds, q.of)) })
		if len(groups[0].Runs) > 1 {
			t.row("lowest and highest seed", func(g *Group) string {
				var x []float64
				for _, s := range g.seeds {
					x = append(x, q.of(s).RelativeMAE)
				}
				return fmt.Sprintf("%.3f-%.3f", slices.Min(x), slices.Max(x))
			})
		}
		t.row("P10 to P90 covers", func(g *Group) string { return fmt.Sprintf("%.1f %%", 100*mean(g.seeds, q.of).Coverage) })
		for _, method := range t.rivals() {
			t.row(method, func(g *Group) string {
				u := g.rival(method)
				if u == nil {
					return ""
				}
				return cell(*q.rival(*u))
			})
		}
	}
	peak := func(s *outlook.Scores) *outlook.SumScore { return s.Peak }
	t.title("Hour of the highest load: right, and at most one hour off; share of days above P90 of the peak.")
	t.row(t.model(), func(g *Group) string {
		s := mean(g.seeds, peak)
		return fmt.Sprintf("%.0f %%, %.0f %%; %.1f %%", 100*s.Hit, 100*s.Near, 100*s.Above)
	})
	for _, method := range t.rivals() {
		t.row(method, func(g *Group) string {
			u := g.rival(method)
			if u == nil || u.Peak.Near == 0 {
				return ""
			}
			return fmt.Sprintf("%.0f %%, %.0f %%", 100*u.Peak.Hit, 100*u.Peak.Near)
		})
	}
	if len(groups[0].Weather) > 0 {
		t.title("Error of the loads with wrong weather, relative to that with the weather that was measured: median client, and the one at 90 %.")
		for i, weather := range groups[0].Weather {
			name := fmt.Sprintf("error of %g °C 24 hours ahead", weather.Degrees)
			if weather.Yesterday {
				name = "weather of the day before"
			}
			t.row(name, func(g *Group) string {
				if i >= len(g.wrong) {
					return ""
				}
				var ratios []float64
				for k, c := range g.wrong[i].Clients {
					ratios = append(ratios, c.MAE/g.seeds[0].Clients[k].MAE)
				}
				slices.Sort(ratios)
				return fmt.Sprintf("%.3f, %.3f", ratios[len(ratios)/2], ratios[len(ratios)*9/10])
			})
		}
	}
	return t.err
}

// cell formats the error of the median client, the mean over clients, and the bias.
func cell(s outlook.SumScore) string {
	text := fmt.Sprintf("%.3f", s.RelativeMAE)
	if s.RelativeMAE != s.RelativeMean {
		text += fmt.Sprintf(" (%.3f)", s.RelativeMean)
	}
	if bias := math.Round(1000*s.Bias) / 10; bias != 0 {
		return text + fmt.Sprintf(", %+.1f %%", bias)
	}
	return text + ", 0 %"
}

func mean(seeds []*outlook.Scores, of func(*outlook.Scores) *outlook.SumScore) (m outlook.SumScore) {
	n := float64(len(seeds))
	for _, s := range seeds {
		x := of(s)
		m.N, m.Clients = x.N, x.Clients
		for _, v := range []struct{ to, from *float64 }{
			{&m.MAE, &x.MAE},
			{&m.RelativeMAE, &x.RelativeMAE},
			{&m.RelativeMean, &x.RelativeMean},
			{&m.Bias, &x.Bias},
			{&m.Coverage, &x.Coverage},
			{&m.Above, &x.Above},
			{&m.Hit, &x.Hit},
			{&m.Near, &x.Near},
		} {
			*v.to += *v.from / n
		}
	}
	return m
}

// usesTables writes tables until the first error.
type usesTables struct {
	w      io.Writer
	groups []Group
	err    error
}

func (t *usesTables) model() string { return t.groups[0].model }

func (t *usesTables) title(title string) {
	head := "| |"
	for _, g := range t.groups {
		head += " " + g.Dataset.Name
		if g.Dataset.Generated {
			head += " (synthetic)"
		}
		head += " |"
	}
	t.print("\n%s\n\n%s\n|---|%s\n", title, head, strings.Repeat("---|", len(t.groups)))
}

// row writes a row, unless all of its cells are empty.
func (t *usesTables) row(name string, cell func(*Group) string) {
	text, some := "| "+name+" |", false
	for i := range t.groups {
		c := cell(&t.groups[i])
		text, some = text+" "+c+" |", some || c != ""
	}
	if some {
		t.print("%s\n", text)
	}
}

// rivals returns the rivals that some group has.
func (t *usesTables) rivals() (methods []string) {
	for _, g := range t.groups {
		for _, u := range g.rivals {
			if !slices.Contains(methods, u.Method) {
				methods = append(methods, u.Method)
			}
		}
	}
	return methods
}

// rival returns the scores of a rival, or nil if the group does not have it.
func (g *Group) rival(method string) *Uses {
	i := slices.IndexFunc(g.rivals, func(u Uses) bool { return u.Method == method })
	if i < 0 {
		return nil
	}
	return &g.rivals[i]
}

func (t *usesTables) print(format string, a ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, a...)
	}
}
