// Command chaos is the chaos test. It checks that no result is lost or counted twice,
// whichever process crashes. It runs a real fleet of the built binary on this machine,
// kills its processes at random and restarts them. Then it compares the trained weights
// with the simulator's, byte by byte, and the verdicts in the agents' logs with the ledger.
//
//	go -C rig run ./chaos -form cluster -kills 200 -seed 7
//
// With -fedsim the coordinator computes with its own data, and only the coordinator is
// killed.
//
//	go -C rig run ./chaos -fedsim -kills 100
//
// With -fault it injects another kind of fault instead of kills; -help lists them.
//
// The last line of its output is the result. If a check fails, the exit code is 1 and the
// folder with all logs is not deleted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"loadstar/rig/product"

	"loadstar/rig/faultfs"
)

// options contains the values of the command-line flags.
type options struct {
	form, bin, dir string
	fault          string
	kills, rounds  int
	fedsim         bool
	seed           uint64
	patience       time.Duration
	away           time.Duration
	keep           bool
}

func (o *options) cluster() bool { return o.form == "cluster" || o.form == "private" }
func (o *options) private() bool { return strings.HasPrefix(o.form, "private") }

// Each agent of the fleet hosts ten clients. A round asks a fifth of all clients, which is
// two per agent on average, so that some agents send sums and others individual updates.
const (
	meters = 200
	agents = 20
	cohort = 40
	late   = 5 // agents that join after the first kills
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == faultfs.Child {
		if err := faultfs.Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "chaos: serving disks:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.form, "form", "one", "one: a single server; cluster: PostgreSQL, three gateways, two coordinators; private: a cluster with a keeper that trains private plans; private-one: the same with a single server")
	flag.StringVar(&o.bin, "bin", "", "binary under test (default: build it)")
	flag.StringVar(&o.dir, "dir", "", "working folder (default: a temporary one)")
	flag.BoolVar(&o.fedsim, "fedsim", false, "train only plans that compute with data on the server, and kill only what has the role coordinator")
	flag.StringVar(&o.fault, "fault", "kills", faultNames())
	flag.IntVar(&o.kills, "kills", 40, "number of kills or other faults")
	flag.IntVar(&o.rounds, "rounds", 20, "rounds per run")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "seed that determines which process is killed when")
	flag.DurationVar(&o.away, "for", 20*time.Second, "how long each outage takes")
	flag.DurationVar(&o.patience, "patience", 90*time.Second, "fail after this time without progress")
	flag.BoolVar(&o.keep, "keep", false, "keep the working folder")
	clock := flag.String("build-clock", "", "only build a binary whose clock follows the file in TEST_CLOCK, in this folder")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *clock != "" {
		path, err := buildWithClock(ctx, *clock)
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos:", err)
			os.Exit(1)
		}
		fmt.Println(path)
		return
	}
	if err := execute(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// check checks the flags. In missing, it returns the reason why the fault cannot be injected on
// this machine.
func (o *options) check() (missing, err error) {
	if flag.NArg() > 0 || o.kills < 0 || o.rounds < 1 || !slices.Contains([]string{"one", "cluster", "private", "private-one"}, o.form) || o.fedsim && o.private() {
		return nil, errors.New("invalid flags or arguments; see -help")
	}
	f, ok := faults[o.fault]
	switch {
	case !ok:
		return nil, fmt.Errorf("unknown fault %q; the faults are: %s", o.fault, faultNames())
	case f.cluster && !o.cluster():
		return nil, fmt.Errorf("the fault %s needs -form cluster", o.fault)
	case f.keeper && !o.private():
		return nil, fmt.Errorf("the fault %s needs -form private", o.fault)
	case f.disks && o.private():
		return nil, fmt.Errorf("the fault %s needs another form, because a keeper has no disk that can fail", o.fault)
	case f.available != nil:
		return f.available(), nil
	}
	return nil, nil
}

// execute runs the test in a folder, which it removes on success.
func execute(ctx context.Context, o options, out io.Writer) (err error) {
	switch reason, err := o.check(); {
	case err != nil:
		return err
	case reason != nil:
		fmt.Fprintln(out, "skipped:", reason)
		return nil
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "chaos"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(o.dir, 0o755); err != nil { // PostgreSQL runs as a different user
		return err
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if o.bin == "" {
		make := build
		if o.fault == "clocks" {
			make = buildWithClock
		}
		if o.bin, err = make(ctx, o.dir); err != nil {
			return err
		}
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if o.fault == "keeper" {
		o.patience += o.away // rounds wait for the outage to end
	}
	fmt.Fprintf(out, "chaos -form %s -fault %s -kills %d -seed %d\n", o.form, o.fault, o.kills, o.seed)
	run := chaos
	if alone := faults[o.fault].alone; alone != nil {
		run = alone
	}
	if err := run(ctx, o, out); err != nil {
		return fmt.Errorf("%w\nall logs are in %s", err, o.dir)
	}
	if o.keep {
		return nil
	}
	return os.RemoveAll(o.dir)
}

// build builds the binary under test.
func build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "loadstar")
	return path, product.Build(ctx, path)
}

// planOf returns the plan of run i. The plans alternate between algorithms that need sums,
// individual updates and control variates. All have limits. Those of the last kind clip
// about half of the updates, so the weights show if a kill changes a limit.
func planOf(i int, seed uint64, rounds, cohort int) plan {
	kinds := []string{
		"algorithm: fedadam\npartition: head\n",
		"algorithm: fedavgadaptive\npartition: head\nserver: {lr: 0.001}\n",
		"algorithm: scaffold\npartition: head\nclient: {lr: 0.05, steps: 1, batch: 16}\n",
		"algorithm: scaffold\npartition: head\nserver: {clip: 1}\nclient: {lr: 0.05, steps: 1, batch: 16}\n",
	}
	text := kinds[i%len(kinds)]
	if !strings.Contains(text, "client:") {
		text += "client: {steps: 1, batch: 16}\n"
	}
	name := fmt.Sprintf("run-%03d", i)
	return plan{name, fmt.Sprintf("name: %s\nseed: %d\n%smodel: {name: bose2023}\nrounds: %d\nschedule: {cohort: %d}\nevaluate: {every: 2, clients: 2, windows: 8}\n",
		name, seed+uint64(i), text, rounds, cohort)}
}

// fedsimOf returns the plan of run i with data on the server. The plans alternate between
// no personal layers, personal layers, and moments that clients and server keep. The
// server's batch is so large that many kills hit a merge.
func fedsimOf(i int, seed uint64, rounds, cohort int) plan {
	kinds := []string{
		"client: {steps: 1, batch: 16}\n",
		"partition: head\nclient: {steps: 2, batch: 16}\n",
		"partition: head\nclient: {steps: 1, batch: 16, optimizer: proxadam, moments: kept}\n",
	}
	name := fmt.Sprintf("fedsim-%03d", i)
	return plan{name, fmt.Sprintf("name: %s\nseed: %d\nalgorithm: fedsim\n%sserver: {batch: 256}\nmodel: {name: bose2023}\nrounds: %d\nschedule: {cohort: %d}\nevaluate: {every: 2, clients: 2, windows: 8}\n",
		name, seed+uint64(i), kinds[i%len(kinds)], rounds, cohort)}
}

// chaos starts a system, trains while processes are killed, and checks the result.
func chaos(ctx context.Context, o options, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begun := time.Now()
	data, err := generate(ctx, o.bin, o.dir, meters)
	if err != nil {
		return err
	}
	l := layout{cluster: o.cluster(), private: o.private(), agents: agents, data: data}
	if o.fedsim {
		if l.own, err = generateOwn(ctx, o.bin, o.dir); err != nil {
			return err
		}
	}
	kind := faults[o.fault]
	l.faulty = kind.disks
	if kind.arrange != nil {
		kind.arrange(&l)
	}
	s, err := start(ctx, o.bin, o.dir, l)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // the test is over
	log, err := os.Create(filepath.Join(o.dir, "logs", "faults.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	w := newWatcher(s.ledger)
	t := &trial{options: o, system: s, watcher: w, out: out}
	t.injector = kind.inject(t, log)
	go w.run(ctx)
	err = t.run(ctx)
	if err == nil {
		err = t.judge(ctx)
	} else {
		err = fmt.Errorf("%w\n%s", err, s.logs(1500))
	}
	fmt.Fprintf(out, "%.0f s\n", time.Since(begun).Seconds())
	if t.findings != nil {
		fmt.Fprintln(out, t.line())
	}
	if f, ok := t.injector.(*foreign); ok {
		fmt.Fprintln(out, f.line())
	}
	return err
}

// trial is one chaos test.
type trial struct {
	options
	system   *system
	watcher  *watcher
	injector injector
	out      io.Writer
	trained  int // number of runs that were trained
	differ   []string
	findings *findings
}

// run trains one run after the other until the injector is done.
func (t *trial) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// An earlier attempt may also have created a token, which does no harm.
	token, err := t.system.insist(ctx, t.patience, "token", "create", "--uses", "1000")
	if err != nil {
		return err
	}
	for i := range agents - late {
		if err := t.system.join(ctx, token, i, t.patience); err != nil {
			return err
		}
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		t.injector.run(ctx, t.kills)
	}()
	for i := agents - late; i < agents; i++ {
		go func() {
			if err := t.system.join(ctx, token, i, t.patience); err != nil {
				cancel(err)
			}
		}()
	}
	if t.private() {
		if err := t.system.auditor.enrolled(ctx, t.patience); err != nil {
			cancel(err)
			<-over
			return err
		}
	}
	for i := 0; ; i++ {
		select {
		case <-over:
			if i > 0 {
				return t.system.settle(ctx, t.patience)
			}
		default:
		}
		if err := t.one(ctx, i); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			cancel(err)
			<-over
			return err
		}
	}
}

// one trains run number i and compares its weights with the simulator's.
func (t *trial) one(ctx context.Context, i int) error {
	p := planOf(i, t.seed, t.rounds, cohort)
	switch {
	case t.private():
		p = privateOf(i, t.seed, t.rounds, cohort)
	case t.fedsim:
		p = fedsimOf(i, t.seed, t.rounds, cohort)
	}
	ref := reference{p, t.bin, t.system.data, t.system.own}
	begun := time.Now()
	if err := t.system.submit(ctx, t.dir, p, meters, t.patience); err != nil {
		return err
	}
	all, err := t.system.finish(ctx, p.name, t.patience)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	for _, r := range all {
		same, err := t.system.same(ctx, r, ref, t.patience)
		if err != nil {
			return err
		}
		verdict := "identical to the simulator's"
		if !same {
			verdict = "DIFFERENT from the simulator's"
			t.differ = append(t.differ, r.name+" "+r.id)
		}
		fmt.Fprintf(t.out, "%s, %d rounds in %.1f s, %d %s so far: weights %s\n", p.name, t.rounds, time.Since(begun).Seconds(), t.injector.count(), faults[t.fault].plural, verdict)
		t.trained++
	}
	return nil
}

// judge stops all processes and checks the ledger, the logs and the weights.
func (t *trial) judge(ctx context.Context) error {
	stopped := t.system.stop(t.patience)
	f, err := t.system.check(ctx, nil)
	if err != nil {
		return err
	}
	if t.private() {
		if err := t.system.auditor.addReleases(ctx, f); err != nil {
			return err
		}
	}
	t.findings = f
	if stopped != nil {
		f.fault("%v", stopped)
	}
	for _, x := range slices.Concat(t.injector.problems(), t.system.exits()) {
		if explains := faults[t.fault].explains; explains == nil || !explains(x) {
			f.fault("%s", x)
		}
	}
	fmt.Fprintf(t.out, "runs %d, rounds %d, receipts %d\n", f.runs, f.rounds, f.receipts)
	t.injector.print(t.out)
	if f.lost+f.twice+f.again+len(t.differ)+len(f.faults) == 0 {
		return nil
	}
	if len(t.differ) > 0 {
		f.faults = append(f.faults, "the weights differ in "+strings.Join(t.differ, ", "))
	}
	return errors.New(strings.Join(f.faults, "\n"))
}

// line returns the last line of the output, which is the result of the test.
func (t *trial) line() string {
	weights := "identical"
	if len(t.differ) > 0 {
		weights = fmt.Sprintf("differ in %d of %d runs", len(t.differ), t.trained)
	}
	line := fmt.Sprintf("%s %d, counted %d, lost %d, twice %d, weights %s", faults[t.fault].plural, t.injector.count(), t.findings.receipts, t.findings.lost, t.findings.twice, weights)
	if t.private() {
		line += fmt.Sprintf(", released %d, twice %d", t.findings.released, t.findings.again)
	}
	return line
}
