// Command attack carries out the attacks of the security review against a built server, and
// says of each whether it was repelled.
//
//	go run ./internal/attack -bin bin/loadstar
//	go run ./internal/attack -bin bin/loadstar -only C1,H3
//
// Every attack starts a server of its own from the binary. Its criterion is in the doc
// comment of its function. The last line of the output is the result. The exit code is 1 if
// an attack succeeds, or with -before if one is repelled: the binary of a commit without the
// defences must fall to every attack, otherwise the attack proves nothing.
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
	ID   string // in the review, with a letter if the review has several in one entry
	Name string
	// Alone runs the attack while no other one runs, because it measures times. If it succeeds,
	// it is carried out again, three times in all: on a machine that others use too, a pause
	// of a second is not the server's fault.
	Alone bool
	// Run carries the attack out. An error means that the attack could not be carried out,
	// which is neither success nor defence.
	Run func(ctx context.Context, f *Fleet) (Result, error)
}

// Result says what came of an attack.
type Result struct {
	Repelled bool
	Detail   string // what was observed, in a few words
}

func repelled(format string, a ...any) Result { return Result{true, fmt.Sprintf(format, a...)} }

func succeeded(format string, a ...any) Result { return Result{false, fmt.Sprintf(format, a...)} }

// attacks lists all attacks in the order of the table.
func attacks() []Attack {
	return slices.Concat(spies(), models(), crowds(), identities(), stores(), buses(), clocks(), retentions(), rotations(), floods())
}

// unattempted lists the entries of the review, or parts of them, that no program here carries
// out, with the reason.
var unattempted = map[string]string{
	"M10": "needs a failover of PostgreSQL between machines; docs/how-to/backup.md says which replication loses no counts, and make failover tests it",
	"M12": "is about names and losses by client, which are stored for operators on purpose; docs/privacy.md says which",
}

// options contains the values of the command-line flags.
type options struct {
	bin, dir, only string
	before, keep   bool
	postgres       bool
	parallel       int
}

// limit is the longest time of one attack.
const limit = 3 * time.Minute

// attempts is how often an attack that measures times must succeed.
const attempts = 3

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/loadstar", "binary under attack")
	flag.StringVar(&o.dir, "dir", "", "working folder (default: a temporary one)")
	flag.StringVar(&o.only, "only", "", "only the attacks whose IDs begin with one of these, separated by commas")
	flag.BoolVar(&o.before, "before", false, "the binary lacks the defences: expect every attack to succeed")
	flag.BoolVar(&o.postgres, "postgres", false, "let the servers of the floods use PostgreSQL instead of SQLite")
	flag.BoolVar(&o.keep, "keep", false, "keep the working folder")
	flag.IntVar(&o.parallel, "parallel", 3, "number of attacks at a time, except those that measure times")
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
		return fmt.Errorf("no attack begins with %s", o.only)
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

// carryOut runs first the attacks that may run side by side, then the others one by one.
func carryOut(ctx context.Context, o options, s *ground, list []Attack) []row {
	rows := make([]row, len(list))
	one := func(i int) {
		a := list[i]
		begun := time.Now()
		r := row{Attack: a}
		r.Result, r.err = s.attack(ctx, a, a.ID)
		for i := 2; i <= attempts && a.Alone && !o.before && r.err == nil && !r.Repelled; i++ {
			earlier := r.Detail
			r.Result, r.err = s.attack(ctx, a, fmt.Sprintf("%s-%d", a.ID, i))
			r.Detail += "; at an earlier attempt: " + earlier
		}
		r.took = time.Since(begun)
		rows[i] = r
		fmt.Fprintf(os.Stderr, "%s %s in %.1f s\n", a.ID, r.word(), r.took.Seconds())
	}
	var side errgroup.Group
	side.SetLimit(o.parallel)
	for i, a := range list {
		if !a.Alone {
			side.Go(func() error { one(i); return nil })
		}
	}
	_ = side.Wait() // the rows have the errors
	for i, a := range list {
		if a.Alone && ctx.Err() == nil {
			one(i)
		}
	}
	return rows
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

// judge prints the table and returns an error if the outcome is not the wanted one.
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
		if r.err != nil || r.Repelled == o.before {
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
