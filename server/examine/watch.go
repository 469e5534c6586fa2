package examine

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/backoff"
	"loadstar/internal/disk"
	"loadstar/internal/finding"
	"loadstar/internal/mtls"
	"loadstar/server/pki"
)

const (
	// every is the time between two examinations of a running server.
	every = time.Minute
	// longest is the time limit of an examination, because a store that hangs must not prevent
	// the checks of other stores.
	longest = 45 * time.Second
	// checkEvery is the time between two checks of a SQLite ledger for damage, which read
	// the whole file.
	checkEvery   = 6 * time.Hour
	largestCheck = 2 << 30
)

// Watcher examines a running server at intervals.
type Watcher struct {
	Config
	Log *slog.Logger
	// Notify sends findings to people. It may be nil.
	Notify *Notifier
	// Unclean is set if the previous process did not end cleanly.
	Unclean bool

	known     map[string]finding.Finding // logged findings, by check
	checked   time.Time                  // time of the latest check of the ledger for damage
	findings  *prometheus.GaugeVec
	up        *prometheus.GaugeVec
	free      *prometheus.GaugeVec
	ends      *prometheus.GaugeVec
	agents    *prometheus.GaugeVec
	clients   *prometheus.GaugeVec
	offset    prometheus.Gauge
	timeline  prometheus.Gauge
	backupAt  prometheus.Gauge
	backupBad prometheus.Gauge
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// Register creates and registers the watcher's metrics.
func (w *Watcher) Register(r prometheus.Registerer) {
	w.known = map[string]finding.Finding{}
	w.findings = gauges("loadstar_finding", "1 if a check of this process found something at this level, otherwise 0.", "check", "level")
	w.up = gauges("loadstar_store_up", "1 if a store of this process answers.", "store")
	w.free = gauges("loadstar_disk_free_bytes", "Bytes that can still be written to a folder of this process.", "folder")
	w.ends = gauges("loadstar_certificate_expiry_timestamp_seconds", "Expiry time of a certificate of the server.", "certificate")
	w.agents = gauges("loadstar_agents", "Agents that are not revoked: all, those that are quiet, and those whose certificate expires within a day.", "state")
	w.clients = gauges("loadstar_client_findings", "Clients that report a problem with their readings, by code.", "code")
	for _, code := range wrongMeter {
		w.clients.WithLabelValues(code)
	}
	w.offset = prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_clock_offset_seconds", Help: "Time by which this machine's clock is ahead of the database's; 0 with SQLite."})
	w.timeline = prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_database_timeline", Help: "Number that PostgreSQL increments when a standby becomes the primary; 0 with SQLite."})
	w.backupAt = prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_backup_timestamp_seconds", Help: "Time of the newest backup of the server's folder; 0 if there is none."})
	w.backupBad = prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_backup_failed", Help: "1 if the newest backup of the server's folder failed."})
	unclean := prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_unclean_start", Help: "1 if the previous process did not end cleanly."})
	if w.Unclean {
		unclean.Set(1)
	}
	for _, check := range checks {
		for _, level := range levelNames {
			w.findings.WithLabelValues(check, level)
		}
	}
	r.MustRegister(w.findings, w.up, w.free, w.ends, w.agents, w.clients, w.offset, w.timeline, unclean)
	if w.Ledger.Store.SQLitePath() != "" { // other databases are backed up with their own tools
		r.MustRegister(w.backupAt, w.backupBad)
	}
}

// checks lists all checks that alerts watch. Their metrics exist before the first finding,
// even for stores that this server does not use.
var checks = []string{
	"database", "database's answer", "database's fsync", "database's full_page_writes", "database's synchronous_commit", "database's standbys",
	"database's checksums", "database's isolation", "database's connections", "database's journal", "database's file system", "database's integrity",
	"blobs", "blobs' file system", "clock and the database",
	"disk of the server", "disk of the database", "disk of the blobs", "writing for the server", "writing for the database", "writing for the blobs",
}

// levelNames are the values of the label level.
var levelNames = map[finding.Level]string{finding.Warn: "warn", finding.Fail: "fail"}

// Run examines the server until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		w.once(ctx)
		if backoff.Sleep(ctx, every) != nil {
			return nil
		}
	}
}

func (w *Watcher) once(ctx context.Context) {
	inner, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	found, err := w.Settings(inner)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		w.note(found, false)
	}
	state := append(w.State(inner), w.integrity(inner)...)
	if ctx.Err() != nil {
		return // a server that shuts down closes its stores
	}
	w.note(state, true)
	if w.Notify != nil {
		w.Notify.note(ctx, append(found, state...))
	}
	w.measure(inner, state)
}

// integrity checks a SQLite ledger for damage at intervals, unless it is large.
func (w *Watcher) integrity(ctx context.Context) finding.List {
	info, err := os.Stat(w.Ledger.Store.SQLitePath())
	if err != nil || info.Size() > largestCheck || time.Since(w.checked) < checkEvery {
		return nil
	}
	found, err := w.Ledger.Store.Integrity(ctx)
	if err != nil {
		w.Log.Warn("cannot check the ledger for damage", "error", err)
		return nil
	}
	w.checked = time.Now()
	return found
}

// note logs and counts findings that have begun or ended. The findings of Settings were already
// logged at the start.
func (w *Watcher) note(all finding.List, log bool) {
	for _, f := range all {
		for _, level := range []finding.Level{finding.Warn, finding.Fail} {
			value := 0.0
			if f.Level == level {
				value = 1
			}
			w.findings.WithLabelValues(f.Check, levelNames[level]).Set(value)
		}
		before, seen := w.known[f.Check]
		w.known[f.Check] = f
		switch {
		case seen && before.Level == f.Level, !seen && (f.Level == finding.OK || !log):
		case f.Level == finding.OK:
			w.Log.Info("a check is in order again", "check", f.Check, "text", f.Text)
		default:
			Log(w.Log, f)
		}
	}
}

// Log logs a finding.
func Log(log *slog.Logger, f finding.Finding) {
	level := slog.LevelInfo
	switch f.Level {
	case finding.Fail, finding.Warn:
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, f.Check+": "+f.Text, "do", f.Do)
}

// measure sets the numeric metrics.
func (w *Watcher) measure(ctx context.Context, state finding.List) {
	failed := func(check string) bool {
		return slices.ContainsFunc(state, func(f finding.Finding) bool { return f.Check == check && f.Level == finding.Fail })
	}
	for store, ok := range map[string]bool{"database": !failed("database's answer"), "blobs": !failed("blobs")} {
		w.up.WithLabelValues(store).Set(map[bool]float64{true: 1}[ok])
	}
	for _, f := range w.folders() {
		if s, err := disk.Of(f.dir); err == nil {
			w.free.WithLabelValues(f.name).Set(float64(s.Free))
		}
	}
	for name, at := range w.expiries() {
		w.ends.WithLabelValues(name).Set(float64(at.Unix()))
	}
	w.offset.Set(w.Ledger.Store.ClockOffset().Seconds())
	if n, err := w.Ledger.Store.Timeline(ctx); err == nil {
		w.timeline.Set(float64(n))
	}
	if b, err := LastBackup(w.Dir); err == nil {
		if !b.At.IsZero() {
			w.backupAt.Set(float64(b.At.Unix()))
		}
		w.backupBad.Set(map[bool]float64{true: 1}[b.Failed != ""])
	}
	if found, err := w.Ledger.Reports.FindingsNow(ctx); err == nil {
		w.clients.Reset()
		for _, code := range wrongMeter {
			w.clients.WithLabelValues(code)
		}
		for _, f := range found {
			w.clients.WithLabelValues(f.Code).Set(float64(f.Clients))
		}
	}
	n, err := w.Ledger.Directory.Agents(ctx)
	if err != nil {
		return
	}
	now := time.Now()
	if f, err := w.Ledger.Directory.CountFleet(ctx, now.Add(-w.Quiet(n)), now.Add(agentWarning)); err == nil {
		for state, n := range map[string]int64{"all": f.Agents, "away": f.Quiet, "expiring": f.Expiring} {
			w.agents.WithLabelValues(state).Set(float64(n))
		}
	}
}

// expiries returns the expiry times of the server's certificates.
func (w *Watcher) expiries() map[string]time.Time {
	all := map[string]time.Time{}
	if w.PKI == "" {
		return all
	}
	issuers, err := pki.Issuers(w.PKI)
	if err != nil {
		return all // the checks report this
	}
	for _, i := range issuers {
		if i.Signs {
			all["issuer"], all["root"] = i.Expires, i.RootExpires
		}
	}
	if own, err := mtls.ReadFolder(w.Operator); err == nil {
		all["operator"] = own.Leaf.NotAfter
	}
	return all
}
