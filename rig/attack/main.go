// Command attack carries out the attacks of the security reviews against a built server, and
// reports for each whether it was repelled.
//
//	go -C rig run ./attack -bin ../bin/loadstar
//	go -C rig run ./attack -bin ../bin/loadstar -only C1,H3
//
// Every attack starts its own server from the binary. Its criterion is in the doc comment of
// its function. The last line of the output is the result. The exit code is 1 if an attack
// succeeds. The attacks on readings (leaks.go) call the agent's code in this process, first
// without its defences, where they must succeed in every run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// Attack is one way to read, break or stall a fleet.
type Attack struct {
	ID   string // ID in the review, with a letter if one entry contains several attacks
	Name string
	// Alone runs the attack while no other attack runs, because it measures times. The attack
	// has up to three attempts. It succeeds if callers were turned away in two of them, because
	// an attack that works every other time works. It also succeeds if callers were not served
	// in time in all three. A single pause of a second on a shared machine is not the server's
	// fault.
	Alone bool
	// Long starts the attack before the others, because it waits for more than half a minute.
	Long bool
	// Run carries out the attack. An error, returned or passed to check, means that the attack
	// could not be carried out, so it neither succeeded nor was repelled.
	Run func(ctx context.Context, f *Fleet) (Result, error)
}

// Result is the outcome of an attack.
type Result struct {
	Repelled bool
	Detail   string // a short description of what was observed
	// Slow means that the attack succeeded only because answers were slow.
	Slow bool
}

func repelled(format string, a ...any) Result {
	return Result{Repelled: true, Detail: fmt.Sprintf(format, a...)}
}

func succeeded(format string, a ...any) Result { return Result{Detail: fmt.Sprintf(format, a...)} }

// attacks lists all attacks in the order of the table.
func attacks() []Attack {
	return slices.Concat(
		spies(), models(), crowds(), identities(), stores(), clocks(), retentions(), rotations(), floods(), dashboards(), devices(),
		denseSpies(), leaks(), traps(), probes(), outsiders(), regions(), modelFiles(), eavesdroppers(), privates(),
	)
}

// unattempted lists the entries of the review, or parts of them, that no program here carries
// out, and the reasons.
var unattempted = map[string]string{
	"M10": "needs a failover of PostgreSQL between machines; docs/how-to/backup.md says which replication loses no counts, and make failover tests it",
	"M12": "is about names and losses by client, which are stored for operators on purpose; docs/privacy.md says which",
	"S5":  "needs runs of hours; make robust trains with hostile clients in the simulator",
	"SL5": "is a sentence of docs/privacy.md, which was wrong",
	"SL6": "needs the tool minisign; TestSign in tools/package signs a release with it",
	"SL8": "is about files of one's own; TestLongExpression in rig/paper does it",
	"SL9": "needs an installed package; make package-test looks at the file",
}

// options contains the values of the command-line flags.
type options struct {
	bin, dir, only string
	keep, postgres bool
	parallel       int
}

// limit is the maximum duration of an attack.
const limit = 3 * time.Minute

// attempts is the maximum number of attempts at an attack that measures times.
const attempts = 3

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "../bin/loadstar", "binary under attack")
	flag.StringVar(&o.dir, "dir", "", "working folder (default: a temporary one)")
	flag.StringVar(&o.only, "only", "", "only the attacks whose IDs begin with one of these, separated by commas")
	flag.BoolVar(&o.postgres, "postgres", false, "let the servers of the floods use PostgreSQL instead of SQLite")
	flag.BoolVar(&o.keep, "keep", false, "keep the working folder")
	flag.IntVar(&o.parallel, "parallel", 3, "number of concurrent attacks, except those that measure times")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// row is a line of the table.
type row struct {
	Attack
	Result
	err  error
	took time.Duration
}

// execute runs the attacks in a folder, which it removes unless an attack could not be carried
// out.
func execute(ctx context.Context, o options, out io.Writer) (err error) {
	if flag.NArg() > 0 || o.parallel < 1 {
		return errors.New("invalid flags or arguments; see -help")
	}
	list := selected(o.only)
	if len(list) == 0 {
		return fmt.Errorf("no attack begins with %q", o.only)
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "attack"); err != nil {
			return err
		}
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(o.dir, 0o755); err != nil { // PostgreSQL runs as another user
		return err
	}
	shared, err := prepare(ctx, o.bin, o.dir)
	if err != nil {
		return err
	}
	shared.postgres = o.postgres
	rows := carryOut(ctx, o, shared, list)
	if err := ctx.Err(); err != nil {
		return err
	}
	err = judge(o, rows, out)
	if err == nil && !o.keep {
		return os.RemoveAll(o.dir)
	}
	if err != nil {
		err = fmt.Errorf("%w\nall logs are in %s", err, o.dir)
	}
	return err
}

func selected(only string) (list []Attack) {
	for _, a := range attacks() {
		if only == "" || slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(a.ID, p) }) {
			list = append(list, a)
		}
	}
	return list
}

// carryOut first runs the attacks that may run concurrently, then the others one after the
// other.
func carryOut(ctx context.Context, o options, s *ground, list []Attack) []row {
	rows := make([]row, len(list))
	one := func(i int) {
		a := list[i]
		begun := time.Now()
		r := row{Attack: a}
		r.Result, r.err = s.attack(ctx, a, a.ID)
		if a.Alone {
			all := []Result{r.Result}
			for i := 2; r.err == nil && !decided(all); i++ {
				r.Result, r.err = s.attack(ctx, a, fmt.Sprintf("%s-%d", a.ID, i))
				all = append(all, r.Result)
			}
			r.Result = verdict(all)
		}
		r.took = time.Since(begun)
		rows[i] = r
		fmt.Fprintf(os.Stderr, "%s %s in %.1f s\n", a.ID, r.word(), r.took.Seconds())
	}
	var side errgroup.Group
	side.SetLimit(o.parallel)
	for _, long := range []bool{true, false} {
		for i, a := range list {
			if !a.Alone && a.Long == long {
				side.Go(func() error { one(i); return nil })
			}
		}
	}
	_ = side.Wait() // the rows contain the errors
	for i, a := range list {
		if a.Alone && ctx.Err() == nil {
			one(i)
		}
	}
	return rows
}

// outcomes counts the attempts that were repelled, and the attempts in which callers were
// turned away.
func outcomes(all []Result) (held, hard int) {
	for _, r := range all {
		if r.Repelled {
			held++
		} else if !r.Slow {
			hard++
		}
	}
	return held, hard
}

// decided reports whether further attempts cannot change the verdict.
func decided(all []Result) bool {
	held, hard := outcomes(all)
	return held == 2 || hard == 2 || len(all) == attempts
}

// verdict returns the result of all attempts.
func verdict(all []Result) Result {
	held, hard := outcomes(all)
	var details []string
	for _, r := range all {
		if !r.Repelled || held == len(all) {
			details = append(details, r.Detail)
		}
	}
	return Result{Repelled: hard < 2 && held > 0, Detail: strings.Join(details, "; another attempt: ")}
}

func (r *row) word() string {
	switch {
	case r.err != nil:
		return "not carried out"
	case r.Repelled:
		return "repelled"
	default:
		return "succeeded"
	}
}

// judge prints the table and returns an error if an attack was not repelled.
func judge(o options, rows []row, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "attack\toutcome\twhat\tobserved")
	var held int
	var wrong []string
	for _, r := range rows {
		detail := r.Detail
		if r.err != nil {
			detail = strings.ReplaceAll(r.err.Error(), "\n", " | ")
		}
		const shown = 400
		fmt.Fprintf(w, "%s\t%s\t%s\t%.*s\n", r.ID, r.word(), r.Name, shown, detail)
		if r.err == nil && r.Repelled {
			held++
		}
		if r.err != nil || !r.Repelled {
			wrong = append(wrong, r.ID+" "+r.word())
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if o.only == "" {
		for _, id := range slices.Sorted(maps.Keys(unattempted)) {
			fmt.Fprintf(out, "%s is not counted: it %s\n", id, unattempted[id])
		}
	}
	fmt.Fprintf(out, "attacks %d, repelled %d\n", len(rows), held)
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, ", "))
	}
	return nil
}
