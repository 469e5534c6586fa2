// Package audit attacks a client's updates. It shows the client's host what a server
// could compute from them, next to the truth.
//
// An attack guesses one number at a time, such as the load of one hour. The attacker is given
// everything else: the plan, the weights, the personal layers, and all other readings. It
// trains the client once with a low number and once with a high one, and measures where the
// client's updates lie between the two results. The attacker lacks only the secret from which
// the agent
// draws examples, so it draws its own. The same attack with the agent's draws shows what the
// secret protects. A real server knows fewer readings, but it can choose the plan and the
// weights. An audit therefore proves nothing about a hostile server.
package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/fed/client"
	"loadstar/fed/setup"
	"loadstar/metric"
	"loadstar/nn/kernel"
	"loadstar/series"
)

const (
	readings      = 64 // number of single readings that are guessed
	turnsPerGuess = 5  // number of times that each update is trained for a guess
)

// Subject is a client and its updates, as its agent has them.
type Subject struct {
	Setup  *setup.Setup // setup of the agent, including its draws
	Kernel *kernel.Set
	Meter  series.Meter
	// Examples returns the examples of a meter with the client's scaling.
	Examples func(series.Meter) series.Examples
	// Kept is the client's stored state. First means that the client has not trained yet.
	Kept  []float32
	First bool
	// Tasks are the tasks of the updates, newest first.
	Tasks []fed.Task
	// Time limits the audit. If it is too short for all updates, the audit attacks fewer, but
	// always the newest. 0 means no limit.
	Time time.Duration
	// Progress is called before each guess.
	Progress func(done, of int)
}

// The attacks.
const (
	Profile  = "profile"  // the mean load of each hour of the day
	Readings = "readings" // single readings
)

// Attack is the result of an attack.
type Attack struct {
	Name    string `json:"name"`
	Updates int    `json:"updates"` // number of the newest updates that were attacked together
	// Meaning describes in words how much the guesses reveal.
	Meaning string `json:"meaning"`
	// Labels contains the hour of the day or the local time of each number.
	Labels []string  `json:"labels"`
	Truth  []float64 `json:"truth_kw"`
	// Guess is the attacker's guess, and Known is the guess of an attacker that knew the
	// agent's draws.
	Guess Guess `json:"guess"`
	Known Guess `json:"guess_with_known_draws"`
	// Empty is the attacker's guess from updates in which the mean of all numbers replaces
	// the client's number. It uses only the other readings, so only a better guess shows
	// that the updates reveal something.
	Empty Guess `json:"guess_without_updates"`
}

// Guess is what an attacker computes, and its correlation with the truth.
type Guess struct {
	Load        []float64 `json:"kw"`
	Correlation float64   `json:"correlation"`
}

// judge compares the guesses with the truth. In 19 of 20 cases, the correlation due to chance
// alone is below 2/√n.
func (a *Attack) judge() {
	for _, g := range []*Guess{&a.Guess, &a.Known, &a.Empty} {
		g.Correlation = metric.Correlation(g.Load, a.Truth)
	}
	switch c := a.Guess.Correlation; {
	case c >= 0.9:
		a.Meaning = "almost exactly"
	case c >= 0.6:
		a.Meaning = "well"
	case c < 2/math.Sqrt(float64(len(a.Truth))):
		a.Meaning = "no better than by chance"
	case c < a.Empty.Correlation+0.1:
		a.Meaning = "no better than without the updates"
	default:
		a.Meaning = "roughly"
	}
}

// Run attacks the newest update of a client, and all its updates together.
func Run(ctx context.Context, s Subject) ([]Attack, error) {
	if len(s.Tasks) == 0 {
		return nil, errors.New("audit: there are no updates")
	}
	l := newLab(s)
	profile, single := l.profile(), l.readings()
	began := time.Now()
	if _, err := l.updates(ctx, s.Meter, s.Setup.Job.Draws); err != nil {
		return nil, err
	}
	if turn := time.Since(began) / time.Duration(len(s.Tasks)); s.Time > 0 {
		turns := turnsPerGuess * (len(profile) + len(single))
		s.Tasks = s.Tasks[:min(max(int(s.Time/max(turn, 1))/turns, 1), len(s.Tasks))]
		l.Tasks = s.Tasks
	}
	seen, err := l.updates(ctx, s.Meter, s.Setup.Job.Draws)
	if err != nil {
		return nil, err
	}
	of := len(profile) + len(single)
	attack := func(name string, targets []target, done int) ([]Attack, error) {
		all := []Attack{{Name: name, Updates: 1}, {Name: name, Updates: len(s.Tasks)}}
		for i, t := range targets {
			s.Progress(done+i, of)
			if err := l.guess(ctx, t, seen, all); err != nil {
				return nil, err
			}
		}
		for k := range all {
			all[k].judge()
		}
		return all[:min(len(s.Tasks), 2)], nil
	}
	all, err := attack(Profile, profile, 0)
	if err != nil {
		return nil, err
	}
	more, err := attack(Readings, single, len(profile))
	return append(all, more...), err
}

// lab trains a client as an attacker does.
type lab struct {
	Subject
	worker *client.Worker
	draws  *fed.Draws // draws of the worker
	kept   []float32
	update fed.Update
	train  int // number of steps in the training split
	// The attacker knows the readings' range, mean and standard deviation.
	least, most, mean, deviation float64
}

func newLab(s Subject) *lab {
	own := *s.Setup
	l := &lab{
		Subject: s, worker: own.NewWorker(s.Kernel), draws: &own.Job.Draws, kept: make([]float32, len(s.Kept)),
		train: own.Problem.Framer.Train(s.Meter), least: math.Inf(1), most: math.Inf(-1),
	}
	var n, squares float64
	for _, v := range s.Meter.Load[:l.train] {
		if x := float64(v); !series.Missing(v) {
			l.least, l.most = min(l.least, x), max(l.most, x)
			n, l.mean, squares = n+1, l.mean+x, squares+x*x
		}
	}
	l.mean /= n
	l.deviation = math.Sqrt(max(squares/n-l.mean*l.mean, 0))
	return l
}

// target is a number that an attacker guesses, such as the mean load of some steps.
type target struct {
	label string
	steps []int
	mean  float64
}

func (l *lab) target(label string, steps ...int) target {
	t := target{label: label, steps: steps}
	for _, i := range steps {
		t.mean += float64(l.Meter.Load[i]) / float64(len(steps))
	}
	return t
}

// profile returns the hours of the day as targets.
func (l *lab) profile() (all []target) {
	var hours [24][]int
	for i, v := range l.Meter.Load[:l.train] {
		if !series.Missing(v) {
			h := l.Setup.Problem.Framer.Time(l.Meter, i).Hour()
			hours[h] = append(hours[h], i)
		}
	}
	for h, steps := range hours {
		if len(steps) > 0 {
			all = append(all, l.target(fmt.Sprintf("%02d:00", h), steps...))
		}
	}
	return all
}

// readings returns random readings as targets. Guesses for neighbouring readings would be
// similar, so their correlation would mean little.
func (l *lab) readings() (all []target) {
	framer := l.Setup.Problem.Framer
	order := rand.New(rand.NewPCG(1, uint64(l.train))).Perm(l.train)
	order = slices.DeleteFunc(order, func(i int) bool { return series.Missing(l.Meter.Load[i]) })
	order = order[:min(len(order), readings)]
	slices.Sort(order)
	for _, i := range order {
		all = append(all, l.target(framer.Time(l.Meter, i).Format("2006-01-02 15:04"), i))
	}
	return all
}

// sums contains the newest update, and the sum of all updates.
type sums [2][]float32

// updates trains a meter's readings for all tasks, with the given draws. It returns the newest
// update and the sum of all updates.
func (l *lab) updates(ctx context.Context, m series.Meter, draws fed.Draws) (all sums, err error) {
	*l.draws = draws
	data := []series.Examples{l.Examples(m)}
	for k, task := range l.Tasks {
		copy(l.kept, l.Kept)
		c := client.Client{ID: fed.ClientID(m.ID), Data: data, Kept: l.kept, First: l.First}
		if err := l.worker.Train(ctx, &c, task, &l.update); err != nil {
			return all, err
		}
		if k == 0 {
			all = sums{slices.Clone(l.update.Delta), slices.Clone(l.update.Delta)}
			continue
		}
		for i, v := range l.update.Delta {
			all[1][i] += v
		}
	}
	return all, nil
}

// guess attacks one number, and appends the guesses to the attacks on the newest update and
// on the sum.
func (l *lab) guess(ctx context.Context, t target, seen sums, attacks []Attack) error {
	with := func(level float64, draws fed.Draws) (sums, error) {
		m := l.Meter
		m.Load = slices.Clone(m.Load)
		for _, i := range t.steps {
			m.Load[i] += float32(level - t.mean)
		}
		return l.updates(ctx, m, draws)
	}
	known, public := l.Setup.Job.Draws, fed.Seeded(l.Setup.Plan.Seed)
	low, high := l.mean-l.deviation, l.mean+l.deviation
	var x [turnsPerGuess]sums
	for i, train := range []struct {
		level float64
		draws fed.Draws
	}{{low, public}, {high, public}, {low, known}, {high, known}, {l.mean, known}} {
		var err error
		if x[i], err = with(train.level, train.draws); err != nil {
			return err
		}
	}
	for k := range attacks {
		a := &attacks[k]
		find := func(g *Guess, update, from, to []float32) {
			g.Load = append(g.Load, max(min(low+share(update, from, to)*(high-low), l.most), l.least))
		}
		a.Labels, a.Truth = append(a.Labels, t.label), append(a.Truth, t.mean)
		find(&a.Guess, seen[k], x[0][k], x[1][k])
		find(&a.Known, seen[k], x[2][k], x[3][k])
		find(&a.Empty, x[4][k], x[0][k], x[1][k])
	}
	return nil
}

// share projects an update onto the line between two others and returns its position, 0 at
// the beginning and 1 at the end.
func share(update, from, to []float32) float64 {
	along, length := 0.0, 0.0
	for i, v := range update {
		line := float64(to[i]) - float64(from[i])
		along += line * (float64(v) - float64(from[i]))
		length += line * line
	}
	if length == 0 {
		return 0.5
	}
	return along / length
}
