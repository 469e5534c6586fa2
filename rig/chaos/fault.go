package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"loadstar/rig/faultfs"
	"loadstar/rig/patroni"
)

// injector injects faults into a system while it trains.
type injector interface {
	// run injects n faults, or fewer if ctx ends. It returns when the system is fully
	// repaired.
	run(ctx context.Context, n int)
	// count returns the number of faults so far.
	count() int
	// problems lists the events that happened although they must not happen while the injector
	// breaks or repairs parts.
	problems() []string
	// print writes a table of the faults and of the times until the system recovered.
	print(out io.Writer)
}

// fault is a kind of fault that the flag -fault selects.
type fault struct {
	about string
	// plural is the word for the faults in the last line of the output.
	plural  string
	cluster bool
	// keeper means that the fault requires a keeper.
	keeper bool
	// disks means that each process has a disk that can fail.
	disks bool
	// available returns why the fault cannot be injected on this machine. It may be nil.
	available func() error
	// alone is a complete test that needs no injector. It may be nil.
	alone func(ctx context.Context, o options, out io.Writer) error
	// explains reports whether the fault explains why a process ended by itself. If it is
	// nil, no process may end by itself.
	explains func(exit string) bool
	// arrange changes the layout before the system starts. It may be nil.
	arrange func(*layout)
	// inject returns the injector. It writes its log to log.
	inject func(t *trial, log io.Writer) injector
}

// faults lists the kinds of faults by their names.
var faults = map[string]fault{
	"kills": {about: "kill processes", plural: "kills", inject: func(t *trial, log io.Writer) injector {
		k := newKiller(t.system, t.watcher, kills{}, t.seed, log)
		if t.fedsim {
			k.share, k.most, k.aim = map[string]int{kindServer: 1, kindCoordinator: 1}, 3, true
		}
		return k
	}},
	"corruption": {about: "damage files of a stopped fleet and read them", plural: "flips", alone: corruption},
	"foreign": {
		about: "kill the server and let other programs use its SQLite ledger before it starts again", plural: "uses by other programs", explains: refusesLedger,
		inject: func(t *trial, log io.Writer) injector { return newForeign(t, log) },
	},
	"disk": {about: "make disks full or read-only for a while", plural: "full disks", disks: true, available: faultfs.Available, explains: saysFull, inject: func(t *trial, log io.Writer) injector {
		k := newKiller(t.system, t.watcher, fullDisks{}, t.seed, log)
		k.share = storeShare
		return k
	}},
	"power": {about: "cut the power of machines: kill their processes and lose what was not synced", plural: "cuts", disks: true, available: faultfs.Available, inject: func(t *trial, log io.Writer) injector {
		return newKiller(t.system, t.watcher, cuts{}, t.seed, log)
	}},
	"outage": {
		about: "stop PostgreSQL for the time of -for", plural: "outages", cluster: true,
		inject: func(t *trial, log io.Writer) injector { return newOutage(t, log) },
	},
	"keeper": {
		about: "stop the keeper for the time of -for", plural: "times without keeper", keeper: true,
		inject: func(t *trial, log io.Writer) injector { return newKeeperAway(t, log) },
	},
	"links": {
		about: "make links slow, cut them, and let them die without a word", plural: "bad links", cluster: true,
		arrange: func(l *layout) { l.links = true },
		inject:  func(t *trial, log io.Writer) injector { return newBadLinks(t, log) },
	},
	"s3": {
		about: "let the S3 store fail: errors, silence, slow answers, connections that end in the middle of a blob", plural: "S3 faults", cluster: true,
		arrange: func(l *layout) { l.s3 = true },
		inject:  func(t *trial, log io.Writer) injector { return newBadStore(t, log) },
	},
	"clocks": {
		about: "set the clocks of servers, agents and PostgreSQL by an hour and a year, and back", plural: "jumps", cluster: true,
		// A jump of the database's clock ends leases, and agents count as silent until they
		// check in again. Both times are longer than a year here, so that the weights equal the
		// simulator's.
		arrange: func(l *layout) {
			l.clocks, l.serve = true, []string{"--set", "rounds.lease=20000h", "--set", "agents.seen=20000h"}
		},
		inject: func(t *trial, log io.Writer) injector { return newJumps(t, log) },
	},
	"failover":              replicated("", patroni.Options{}),
	"failover-asynchronous": replicated(", without synchronous standbys, which loses updates", patroni.Options{Asynchronous: true}),
	"failover-etcd3":        replicated(", with the third interface of etcd, with which Patroni before 3.0.3 loses updates", patroni.Options{V3: true}),
}

// replicated is the fault that breaks a replicating PostgreSQL.
func replicated(how string, o patroni.Options) fault {
	return fault{
		about: "break the primary of PostgreSQL under Patroni: kill, pause and cut off PostgreSQL, Patroni, machines and etcd" + how, plural: "failovers", cluster: true, available: patroni.Available,
		arrange: func(l *layout) { l.standbys, l.replication = true, o },
		inject:  func(t *trial, log io.Writer) injector { return newFailover(t, log) },
	}
}

// faultNames describes all kinds of faults, for the help text.
func faultNames() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		all = append(all, name+": "+faults[name].about)
	}
	return strings.Join(all, "; ")
}

// recoveries writes the columns of recovery times of a kind of fault into a table. They
// are empty if none was measured.
func (w *watcher) recoveries(out io.Writer, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.times[kind]
	if x == nil {
		fmt.Fprint(out, strings.Repeat("\t", 6))
		return
	}
	for _, all := range [][]time.Duration{x.receipt, x.round} {
		for _, q := range []float64{0.5, 0.99, 1} {
			fmt.Fprintf(out, "%.2f s\t", quantile(all, q).Seconds())
		}
	}
}

// table returns a writer that aligns the columns of a table. The first row has the given
// columns, followed by those of recoveries.
func table(out io.Writer, columns ...string) *tabwriter.Writer {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t%s\tnext receipt after: median\tp99\tmax\tnext round after: median\tp99\tmax\t\n", strings.Join(columns, "\t"))
	return w
}
