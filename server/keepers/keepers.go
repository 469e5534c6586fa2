// Package keepers calls the keepers of private plans. A keeper is a process of another
// organisation that holds the keys of agents' masks (see the package loadstar/fed/mask).
// Because a keeper can be unavailable for hours, callers get a reason that they can show, and
// calls that must succeed wait.
package keepers

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/backoff"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
)

// Config configures the keepers of a server.
type Config struct {
	Addresses []Address
	// Key is the server's key, by which keepers recognise the server.
	Key ed25519.PrivateKey
	// Epoch stores an epoch that a keeper has signed, and returns the newest epoch that the
	// keeper has ever signed.
	Epoch func(ctx context.Context, identity string, epoch int64) (newest int64, err error)
	// Answered returns the time of a keeper's last answer to any process of this server.
	Answered func(ctx context.Context, identity string) (time.Time, error)
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	// Client returns the HTTP client for a keeper. Rand returns a source of random numbers in
	// [0, n) for the retries of a call. Simulations set both. If they are nil, TLS with Key and
	// math/rand/v2 are used.
	Client func(Address) *http.Client
	Rand   func(call string) func(n int64) int64
}

const (
	stateEvery  = time.Minute
	watchEvery  = 10 * time.Second // while results of a round are checked
	planEvery   = 3 * time.Second  // while a run waits for the approval of its plan
	stateWithin = 10 * time.Second
	// answerWithin is the time limit for calls that need much computation. A keeper takes half a
	// minute for 100,000 results.
	answerWithin = 5 * time.Minute
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	answerBytes  = 64 << 20
)

// Set contains the keepers of a server. It is safe for concurrent use. A nil Set contains no
// keepers.
type Set struct {
	Config
	all     []*keeper
	silence *prometheus.GaugeVec
	calls   *prometheus.CounterVec
	back    *prometheus.CounterVec
}

// approval is the known state of a keeper's approval of a plan. Most keepers approve any plan.
type approval int

const (
	asked    approval = iota // the keeper has not answered yet
	withheld                 // its administrators have not approved the plan
	approved
)

// keeper is a keeper and its last known state.
type keeper struct {
	Address
	client v1.KeeperServiceClient
	set    *Set
	asks   chan struct{} // receives a value when the keeper has stopped answering, or must be asked at once

	mu         sync.Mutex
	statement  []byte               // signed
	revision   []byte               // revision of the list of members
	behind     map[string]int64     // members behind regions, by region
	says       *v1.KeeperStatement  // content of the keeper's statement
	directions map[string]mask.Seed // seeds by run
	plans      map[string]approval  // by SHA-256; an approval is never withdrawn
	asked      time.Time            // time of the last request for the keeper's state
	silent     time.Time            // time of the keeper's last answer, or zero if it answers now
	why        error                // reason why the keeper does not answer
}

// Away means that a keeper does not answer at present.
type Away struct {
	Name  string
	Since time.Time
	Why   error
}

func (a *Away) Error() string {
	return fmt.Sprintf("keeper %s has not answered since %s: %v", a.Name, a.Since.UTC().Format("2006-01-02 15:04:05 MST"), a.Why)
}

func (a *Away) Unwrap() error { return a.Why }

// Refused means that a keeper refuses a call because of one of its rules. Repeating the call
// does not help, unless Waits returns true.
type Refused struct{ Name, Rule, Reason string }

// Waits reports whether the keeper may allow the same call later, after its administrators have
// approved the plan, or on the next day.
func (r *Refused) Waits() bool { return r.Rule == "plan" || r.Rule == "daily" }

func (r *Refused) Error() string {
	return fmt.Sprintf("keeper %s refused: %s: %s", r.Name, r.Rule, r.Reason)
}

// New returns a set of keepers, or nil if there are no addresses.
func New(ctx context.Context, c Config) (*Set, error) {
	if len(c.Addresses) == 0 {
		return nil, nil
	}
	s := &Set{
		Config:  c,
		silence: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "loadstar_keeper_silent_seconds", Help: "Seconds for which a keeper has not answered; 0 if it answers."}, []string{"keeper"}),
		calls:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_keeper_calls_total", Help: "Calls of keepers, by outcome: answered, refused, failed."}, []string{"keeper", "call", "outcome"}),
		back:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_keeper_copies_total", Help: "Answers of a keeper with an outdated epoch, because its folder was copied or restored."}, []string{"keeper"}),
	}
	names := map[string]bool{}
	for _, a := range c.Addresses {
		if names[a.Name] {
			return nil, fmt.Errorf("there are two keepers %s", a.Name)
		}
		names[a.Name] = true
		k := &keeper{Address: a, set: s, asks: make(chan struct{}, 1), plans: map[string]approval{}, silent: time.Now(), why: errors.New("it has not been asked yet")}
		client, err := c.clientOf(a)
		if err != nil {
			return nil, fmt.Errorf("making the certificate for keepers: %w", err)
		}
		if last, err := c.Answered(ctx, hex.EncodeToString(a.Identity[:])); err == nil && !last.IsZero() {
			k.silent = last
		}
		k.client = v1.NewKeeperServiceClient(client, a.URL, connect.WithReadMaxBytes(answerBytes))
		s.all = append(s.all, k)
		s.silence.WithLabelValues(a.Name)
		s.back.WithLabelValues(a.Name)
	}
	if c.Metrics != nil {
		c.Metrics.MustRegister(s.silence, s.calls, s.back)
	}
	return s, nil
}

// clientOf returns the HTTP client for calls to a keeper.
func (c *Config) clientOf(a Address) (*http.Client, error) {
	if c.Client != nil {
		return c.Client(a), nil
	}
	pinned, err := mtls.Pinned(c.Key, func(sha [32]byte) bool { return sha == a.Identity })
	if err != nil {
		return nil, err
	}
	return mtls.Client(mtls.Transport(pinned)), nil
}

// retry returns the delays between the attempts of a call.
func (k *keeper) retry(call string) backoff.Backoff {
	b := backoff.Backoff{Base: firstPause, Cap: longestPause}
	if k.set.Rand != nil {
		b.Rand = k.set.Rand(k.Name + " " + call)
	}
	return b
}

// Fingerprint returns the SHA-256 of the server's key, which a keeper's administrators enter.
func Fingerprint(key ed25519.PrivateKey) string {
	return member.PinOf(key.Public().(ed25519.PublicKey)).String()
}

// Run asks all keepers for their statements, at once and then every minute, until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	var group sync.WaitGroup
	for _, k := range s.all {
		group.Go(func() { k.follow(ctx) })
	}
	group.Wait()
	return nil
}

func (k *keeper) follow(ctx context.Context) {
	retry := k.retry("state")
	for ctx.Err() == nil {
		pause, asks := stateEvery, k.asks
		if err := k.state(ctx); err != nil {
			pause, asks = retry.Next(), nil
		} else {
			retry.Reset()
			if k.unapproved() {
				pause = planEvery
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-asks: // callers wait until the keeper answers again, or approves a plan
		}
		timer.Stop()
	}
}

// unapproved reports whether any plan waits for the keeper's approval.
func (k *keeper) unapproved() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, is := range k.plans {
		if is != approved {
			return true
		}
	}
	return false
}

// ask makes follow ask the keeper at once.
func (k *keeper) ask() {
	select {
	case k.asks <- struct{}{}:
	default:
	}
}

// state asks the keeper for its statement, and whether it now approves the plans that it has
// not approved yet.
func (k *keeper) state(ctx context.Context) error {
	k.mu.Lock()
	k.asked = time.Now()
	plans := []string{""}
	for plan, is := range k.plans {
		if is != approved {
			plans = append(plans, plan)
		}
	}
	k.mu.Unlock()
	for _, plan := range plans {
		k.mu.Lock()
		q := &v1.KeeperStateRequest{Members: k.revision, Plan: plan}
		k.mu.Unlock()
		is := withheld
		if err := k.call(ctx, "state", stateWithin, func(ctx context.Context) (int64, error) {
			a, err := k.client.State(ctx, q)
			if err != nil {
				return 0, err
			}
			if a.Approved {
				is = approved
			}
			return k.read(q, a)
		}); err != nil {
			return err
		}
		if plan != "" {
			k.mu.Lock()
			k.plans[plan] = is
			k.mu.Unlock()
		}
	}
	return nil
}

// Approved returns nil if all the named keepers have approved a plan, and otherwise an error
// that names a keeper that has not. Without approval, agents would train rounds that are never
// released.
func (s *Set) Approved(names []string, plan string) error {
	these, err := s.find(names)
	if err != nil {
		return err
	}
	for _, k := range these {
		k.mu.Lock()
		is, known := k.plans[plan]
		if !known {
			if len(k.plans) >= maxPlans {
				clear(k.plans)
			}
			k.plans[plan] = asked
			k.ask()
		}
		k.mu.Unlock()
		switch is {
		case asked:
			return fmt.Errorf("keeper %s was asked whether it allows plan %s", k.Name, plan)
		case withheld:
			return fmt.Errorf("keeper %s has not approved plan %s yet; its administrators do this with 'loadstar keeper approve'", k.Name, plan)
		}
	}
	return nil
}

// maxPlans is the maximum number of plans for which a keeper's approval is stored.
const maxPlans = 64

// call makes one call, and records whether the keeper answers. do makes the call, and returns
// the epoch that the keeper has signed.
func (k *keeper) call(ctx context.Context, what string, within time.Duration, do func(context.Context) (epoch int64, err error)) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	epoch, err := do(limited)
	if err == nil {
		newest, failed := k.set.Epoch(ctx, hex.EncodeToString(k.Identity[:]), epoch)
		if failed != nil { // the keeper has answered, but this server cannot store its epoch
			return failed
		}
		err = k.current(epoch, newest)
	}
	if refused := k.refusal(err); refused != nil {
		k.answered()
		k.set.calls.WithLabelValues(k.Name, what, "refused").Inc()
		return refused
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.set.calls.WithLabelValues(k.Name, what, "failed").Inc()
		return k.failed(ctx, err)
	}
	k.answered()
	k.set.calls.WithLabelValues(k.Name, what, "answered").Inc()
	return nil
}

// current returns an error if the keeper has already signed a later epoch. In this case, two
// keepers have the same identity, or a keeper was restored from a backup, and a round could be
// released twice.
func (k *keeper) current(epoch, newest int64) error {
	if newest <= epoch {
		return nil
	}
	k.set.back.WithLabelValues(k.Name).Inc()
	k.set.Log.Error("a keeper with the same identity that started later has answered before: the folder was copied, or restored from a backup", "keeper", k.Name, "epoch", epoch, "newest", newest)
	return errors.New("its folder was copied, or restored from a backup: a keeper with its identity that started later has answered before")
}

// refusal returns a [Refused] error if err means that the keeper refuses, and otherwise nil.
func (k *keeper) refusal(err error) error {
	var said *connect.Error
	if !errors.As(err, &said) || said.Code() != connect.CodeFailedPrecondition {
		return nil
	}
	for _, d := range said.Details() {
		if m, err := d.Value(); err == nil {
			if r, ok := m.(*v1.KeeperRefusal); ok {
				return &Refused{k.Name, printable(r.Rule), printable(r.Reason)}
			}
		}
	}
	return &Refused{k.Name, "unknown", printable(said.Message())}
}

// printable returns a string from a keeper, shortened and without control characters, so that
// it can be displayed.
func printable(text string) string {
	if len(text) > 500 {
		text = text[:500]
	}
	clean := []rune(text)
	for i, r := range clean {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			clean[i] = '?'
		}
	}
	return string(clean)
}

func (k *keeper) answered() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.silent.IsZero() && k.statement != nil {
		k.set.Log.Info("the keeper answers", "keeper", k.Name)
	}
	k.silent, k.why = time.Time{}, nil
	k.set.silence.WithLabelValues(k.Name).Set(0)
}

func (k *keeper) failed(ctx context.Context, err error) error {
	var said *connect.Error
	if errors.As(err, &said) {
		err = said.Unwrap() // without the code
	}
	// Processes notice the silence at different times, but all must report the same start time.
	last, unread := k.set.Answered(ctx, hex.EncodeToString(k.Identity[:]))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.silent.IsZero() {
		k.silent = time.Now()
		k.ask()
	}
	if unread == nil && !last.IsZero() {
		k.silent = last
	}
	if k.why == nil || k.why.Error() != err.Error() {
		k.set.Log.Warn("a keeper does not answer", "keeper", k.Name, "error", err)
	}
	k.why = err
	k.set.silence.WithLabelValues(k.Name).Set(time.Since(k.silent).Seconds())
	return &Away{k.Name, k.silent, err}
}

// find returns the keepers with the given names.
func (s *Set) find(names []string) (all []*keeper, err error) {
	for _, name := range names {
		var found *keeper
		if s != nil {
			for _, k := range s.all {
				if k.Name == name {
					found = k
				}
			}
		}
		if found == nil {
			return nil, fmt.Errorf("the plan needs keeper %s, which this server does not have: name it under keepers in server.yaml", name)
		}
		all = append(all, found)
	}
	return all, nil
}

// Has returns an error if one of the keepers is not configured.
func (s *Set) Has(names []string) error {
	_, err := s.find(names)
	return err
}

// Statements returns the signed statements of keepers. The error is [Away] if one of them does not
// answer.
func (s *Set) Statements(names []string) (all [][]byte, err error) {
	these, err := s.find(names)
	if err != nil {
		return nil, err
	}
	for _, k := range these {
		k.mu.Lock()
		statement, away := k.statement, &Away{k.Name, k.silent, k.why}
		k.mu.Unlock()
		if statement == nil || !away.Since.IsZero() {
			return nil, away
		}
		if k.fleet() != these[0].fleet() {
			return nil, fmt.Errorf("keeper %s is for the fleet %s and keeper %s for the fleet %s", these[0].Name, these[0].fleet(), k.Name, k.fleet())
		}
		all = append(all, statement)
	}
	return all, nil
}

// Least returns the smallest number of agents whose sum a keeper's own rules allow it to
// release. Least returns 0 if the keeper has not answered yet.
func (s *Set) Least(name string) int64 {
	these, err := s.find([]string{name})
	if err != nil {
		return 0 // Has reports this
	}
	these[0].mu.Lock()
	defer these[0].mu.Unlock()
	return these[0].says.GetRules().GetLeast()
}

// Agents returns how many of the given agents may be in a keeper's sum. A region counts as the
// members behind it.
func (s *Set) Agents(name string, all []string) (n int64) {
	these, err := s.find([]string{name})
	if err != nil {
		return 0 // Has reports this
	}
	these[0].mu.Lock()
	defer these[0].mu.Unlock()
	for _, agent := range all {
		n += max(1, these[0].behind[agent])
	}
	return n
}

// Watch asks keepers more often than usual. Processes that wait for results that other
// processes let the keepers check call it, because they do not call these keepers themselves.
func (s *Set) Watch(names []string) {
	these, err := s.find(names)
	if err != nil {
		return // Statements reports this
	}
	for _, k := range these {
		k.mu.Lock()
		if k.silent.IsZero() && time.Since(k.asked) > watchEvery {
			k.asked = time.Now()
			k.ask()
		}
		k.mu.Unlock()
	}
}

// Known returns the signed statements of all keepers that have answered.
func (s *Set) Known() (all [][]byte) {
	if s == nil {
		return nil
	}
	for _, k := range s.all {
		k.mu.Lock()
		if k.statement != nil {
			all = append(all, k.statement)
		}
		k.mu.Unlock()
	}
	return all
}
