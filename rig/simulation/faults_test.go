package simulation

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"loadstar/server/ledger"
)

// kind is a kind of fault.
type kind string

const (
	crash        kind = "crash"
	stop         kind = "stop"
	pause        kind = "pause of a process"
	wait         kind = "slow call"
	cut          kind = "partition"
	requestLost  kind = "request lost"
	requestTwice kind = "request twice"
	responseLost kind = "response lost"
	ledgerAway   kind = "ledger: no answer"
	rollBack     kind = "ledger: rolled back"
	commitAnswer kind = "ledger: answer to commit lost"
	blobFails    kind = "blobs: no answer"
	diskFull     kind = "agent: disk full"
	tornCache    kind = "agent: unsynced files torn"
	jump         kind = "clock jump"
	revoke       kind = "revocation"
	stopRun      kind = "run stopped"
	restore      kind = "restore from backup"
	forget       kind = "gateway: memory dropped"
	cutCall      kind = "call cut while it is served"
	keeperCrash  kind = "keeper: crash at a write"
	keeperAway   kind = "keeper: away for minutes"
	keeperLate   kind = "keeper: old request again"
	keeperClock  kind = "keeper: clock jump"
	keeperOld    kind = "keeper: restored from backup"
)

// usual contains the probability of each kind of fault at a call that it can hit, in
// ten-thousandths.
var usual = map[kind]int{
	crash: 100, stop: 20, pause: 40, wait: 150, cut: 15,
	requestLost: 250, requestTwice: 250, responseLost: 250,
	ledgerAway: 60, rollBack: 150, commitAnswer: 150, blobFails: 100, diskFull: 60, tornCache: 30,
	jump: 4, revoke: 2, stopRun: 1, restore: 4, forget: 60, cutCall: 60,
	keeperCrash: 300, keeperAway: 60, keeperLate: 200, keeperClock: 40, keeperOld: 40,
}

// keeperKinds are the kinds of faults of keepers. Only private seeds have them.
var keeperKinds = []kind{keeperAway, keeperClock, keeperCrash, keeperLate, keeperOld}

// kinds lists the kinds in a fixed order.
var kinds = slices.Sorted(maps.Keys(usual))

// applies contains the prefixes of the calls that a kind of fault can hit. Kinds without an
// entry can hit any call.
var applies = map[kind][]string{
	requestLost: {"request "}, requestTwice: {"request "}, responseLost: {"response "},
	ledgerAway: {"ledger read", "ledger begin"}, rollBack: {"ledger commit "}, commitAnswer: {"ledger committed"}, blobFails: {"blob "},
	diskFull: {"disk before"}, tornCache: {"disk "},
	keeperCrash: {"keeper "}, keeperClock: {"keeper "}, keeperAway: {"request k"}, keeperLate: {"request k"}, keeperOld: {"request k"},
}

// faults limits and records the injected faults.
type faults struct {
	only  map[string]bool // names of the faults that may happen; nil means all
	named []string        // names of all faults of the seed
	count map[kind]int
}

func newFaults(only map[string]bool) faults { return faults{only: only, count: map[kind]int{}} }

// fault decides whether a fault hits a call. It returns the kind of fault, and the random
// numbers with which the fault is carried out.
func (w *world) fault(c *call) (kind, *rand.Rand) {
	r := w.stream("fault", w.turn(c))
	x := r.IntN(10000)
	for _, k := range kinds {
		if p := applies[k]; p != nil && !slices.ContainsFunc(p, func(prefix string) bool { return strings.HasPrefix(c.what, prefix) }) {
			continue
		}
		if x -= w.odds[k]; x >= 0 {
			continue
		}
		name := string(k) + " at " + w.turn(c)
		if w.faults.only != nil && !w.faults.only[name] {
			return "", r
		}
		w.faults.named = append(w.faults.named, name)
		return k, r
	}
	return "", r
}

// inject carries out a fault. It reports whether the call continues to wait. Otherwise, v is
// the verdict on the call.
func (w *world) inject(k kind, c *call, r *rand.Rand) (v verdict, waits bool) {
	now := time.Now()
	happened := true
	switch k {
	case crash, tornCache:
		w.crashPart(c.part, now.Add(upTo(r, w.absent)))
		if k == tornCache {
			w.tear(c.part, r)
		}
		waits = true
	case stop:
		c.cancel() // the driver restarts the part when it has ended
		waits = true
	case pause:
		w.mu.Lock()
		c.paused = now.Add(upTo(r, 30*time.Second))
		w.mu.Unlock()
		waits = true
	case wait:
		d := upTo(r, time.Millisecond<<r.IntN(15))
		w.note("%s", k)
		time.Sleep(d)
		waits = true
	case cut:
		w.mu.Lock()
		c.cut = now.Add(upTo(r, min(w.absent, time.Minute)))
		w.mu.Unlock()
		waits = true
	case requestTwice:
		v = repeat
	case jump:
		happened, waits = w.jump(c.site, r), true
	case revoke:
		happened, waits = w.revokeAgent(r), true
	case stopRun:
		happened, waits = w.stopRun(), true
	case restore:
		happened, waits = w.restore(c.site, r), true
	case forget:
		happened, waits = w.forget(c.site, r), true
	case cutCall:
		happened, waits = w.cutCall(r), true
	case keeperCrash, keeperAway, keeperLate, keeperClock, keeperOld:
		happened, waits = w.keeperFault(k, c, r), true
	default:
		v = refuse
	}
	if happened {
		w.faults.count[k]++
		w.note("%s at %s", k, c.key)
	}
	return v, waits
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d) + 1)) }

// crashPart kills a part. The part restarts at the given time.
func (w *world) crashPart(p *part, again time.Time) {
	if p.kind == "keeper" {
		w.keeperOf(p.name).leave()
	}
	w.kill(p)
	w.mu.Lock()
	if p.site.writer == p {
		p.site.writer = nil
	}
	w.mu.Unlock()
	w.again[p.name] = again
}

// tear truncates files in the cache of an agent that lost power. The agent's state is not
// affected, because it is a bbolt file, which is synced with every write.
func (w *world) tear(p *part, r *rand.Rand) {
	dir := filepath.Join(w.dir, p.name, "blobs")
	files, err := os.ReadDir(dir)
	if err != nil {
		return // the agent has no cache yet
	}
	for _, f := range files {
		info, err := f.Info()
		if err == nil && r.IntN(2) == 0 {
			err = os.Truncate(filepath.Join(dir, f.Name()), r.Int64N(info.Size()+1))
		}
		if err != nil {
			w.t.Error(err)
		}
	}
}

// jump makes the clock of a site's database jump.
func (w *world) jump(at *site, r *rand.Rand) bool {
	by := []time.Duration{time.Hour, 365 * 24 * time.Hour, -time.Minute}[r.IntN(3)]
	w.mu.Lock()
	defer w.mu.Unlock()
	at.jumped += by
	return true
}

// revokeAgent revokes an agent, as an operator would.
func (w *world) revokeAgent(r *rand.Rand) bool {
	h := w.agents[r.IntN(len(w.agents))]
	if !h.revoked.IsZero() || h.site.locked() {
		return false
	}
	if err := h.site.ledger.Directory.RevokeAgent(context.Background(), h.name, "test", time.Now()); err != nil {
		w.violate("cannot revoke an agent: %v", err)
	}
	h.revoked = time.Now()
	if r.IntN(2) == 0 { // otherwise another process revokes it
		for _, d := range h.site.doors {
			d.gateway.Revoked(h.name)
		}
	}
	return true
}

// forget makes a gateway discard its cache of the ledger.
func (w *world) forget(at *site, r *rand.Rand) bool {
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(at.doors))
	w.mu.Unlock()
	if len(names) == 0 {
		return false
	}
	at.doors[names[r.IntN(len(names))]].gateway.Forget()
	return true
}

// cutCall breaks the connection of a call that a gateway is serving or delaying.
func (w *world) cutCall(r *rand.Rand) bool {
	w.mu.Lock()
	names := slices.Sorted(maps.Keys(w.served))
	w.mu.Unlock()
	if len(names) == 0 {
		return false
	}
	w.served[names[r.IntN(len(names))]]()
	return true
}

func (w *world) stopRun() bool {
	hub := w.sites[0]
	if hub.locked() {
		return false
	}
	if err := hub.ledger.StopRun(context.Background(), runID, "test", time.Now()); err != nil {
		return false // the call has ended
	}
	return true
}

// locked reports whether a transaction is in progress.
func (at *site) locked() bool {
	at.w.mu.Lock()
	defer at.w.mu.Unlock()
	return at.writer != nil
}

// backup is a copy of a site's ledger and blobs.
type backup struct {
	ledger []byte
	blobs  map[string][]byte
}

// restore takes a backup of a site. If there is a backup already, it simulates the loss of the
// machine with the site's ledger and blobs, and restores the backup.
func (w *world) restore(at *site, r *rand.Rand) bool {
	if at.locked() || at.name != hubName || !w.begun { // a region has no runs of its own
		return false
	}
	path := filepath.Join(w.dir, "backup.db")
	if at.backup == nil {
		if err := at.ledger.Store.Backup(context.Background(), path); err != nil {
			w.violate("cannot back up: %v", err)
			return false
		}
		data, err := os.ReadFile(path)
		if err != nil {
			w.t.Error(err)
		}
		at.backup = &backup{data, maps.Clone(at.blobs)}
		return false
	}
	for _, name := range w.names {
		if p := w.parts[name]; p.site == at && p.kind != "agent" && p.kind != "keeper" && !p.dead {
			w.crashPart(p, time.Now().Add(upTo(r, w.absent)))
		}
	}
	if err := at.close(); err != nil {
		w.t.Error(err)
	}
	for _, suffix := range []string{"-wal", "-shm", "-counted"} {
		_ = os.Remove(at.file + suffix) // SQLite has removed them if it could
	}
	if err := os.WriteFile(at.file, at.backup.ledger, 0o600); err != nil {
		w.t.Error(err)
	}
	at.blobs = maps.Clone(at.backup.blobs)
	if err := at.openLedger(); err != nil {
		w.violate("cannot open the restored ledger: %v", err)
	}
	for _, h := range w.agents { // the list of revocations is not part of the backup
		if !h.revoked.IsZero() && h.site == at {
			if err := at.ledger.Directory.RevokeAgent(context.Background(), h.name, "test", time.Now()); err != nil && !errors.Is(err, ledger.ErrNotFound) {
				w.violate("cannot revoke an agent again: %v", err)
			}
		}
	}
	w.marks.restored(at)
	return true
}
