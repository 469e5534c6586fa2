package keepers

import (
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/member"
	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

// liar is a keeper that gives the answers that a test chooses, including wrong ones that a real
// keeper would not give.
type liar struct {
	v1.UnimplementedKeeperServiceHandler
	key    ed25519.PrivateKey
	number atomic.Int64 // number of the statement
	epoch  atomic.Int64
	caller atomic.Value // member.Pin
	wrong  atomic.Bool  // whether the signature of a release is wrong
	refuse atomic.Bool
	allows atomic.Bool // whether any plan is approved
	size   int64
	at     string
	server *httptest.Server
}

func newLiar(t *testing.T, size int64) *liar {
	l := &liar{size: size}
	_, key, err := ed25519.GenerateKey(nil)
	testkit.Must(t, err)
	l.key = key
	l.epoch.Store(5)
	l.number.Store(1)
	l.start(t)
	return l
}

// start serves the keeper, at the same address as before if it was started before.
func (l *liar) start(t *testing.T) {
	t.Helper()
	mux := http.NewServeMux()
	path, h := v1.NewKeeperServiceHandler(l)
	mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.caller.Store(member.PinOf(r.TLS.PeerCertificates[0].PublicKey.(ed25519.PublicKey)))
		h.ServeHTTP(w, r)
	}))
	s := httptest.NewUnstartedServer(mux)
	if l.at != "" {
		again, err := net.Listen("tcp", strings.TrimPrefix(l.at, "https://"))
		testkit.Must(t, err)
		testkit.Must(t, s.Listener.Close())
		s.Listener = again
	}
	var err error
	s.TLS, err = mtls.Pinned(l.key, func([32]byte) bool { return true })
	testkit.Must(t, err)
	s.StartTLS()
	l.server, l.at = s, s.URL
	t.Cleanup(s.Close)
}

func (l *liar) pin() member.Pin { return member.PinOf(l.key.Public().(ed25519.PublicKey)) }

func (l *liar) State(_ context.Context, q *v1.KeeperStateRequest) (*v1.KeeperStateResponse, error) {
	_, sealing, err := member.NewSealingKey()
	if err != nil {
		return nil, err
	}
	text, err := member.SignStatement(&v1.KeeperStatement{
		Identity: l.key.Public().(ed25519.PublicKey), Fleet: "fleet", SealingKey: sealing, Number: l.number.Load(),
		NotAfter: time.Now().Add(time.Hour).Unix(), Rules: &v1.KeeperRules{Least: 2, Cell: 100},
	}, l.key)
	if err != nil {
		return nil, err
	}
	a := &v1.KeeperStateResponse{Statement: &v1.SignedStatement{}, Approved: q.Plan != "" && l.allows.Load()}
	if err := proto.Unmarshal(text, a.Statement); err != nil {
		return nil, err
	}
	a.Signature = member.Sign(l.key, l.epoch.Load(), q, a)
	return a, nil
}

func (l *liar) Release(_ context.Context, q *v1.KeeperReleaseRequest) (*v1.KeeperReleaseResponse, error) {
	if l.refuse.Load() {
		err := connect.NewError(connect.CodeFailedPrecondition, errors.New("no"))
		d, _ := connect.NewErrorDetail(&v1.KeeperRefusal{Rule: "quorum", Reason: "3 of 10\nmembers"})
		err.AddDetail(d)
		return nil, err
	}
	a := &v1.KeeperReleaseResponse{}
	for i := range l.size {
		a.Masks = binary.LittleEndian.AppendUint64(a.Masks, uint64(i)+1)
	}
	a.Signature = member.Sign(l.key, l.epoch.Load(), q, a)
	if l.wrong.Load() {
		a.Masks[0]++
	}
	return a, nil
}

func (l *liar) Enrol(_ context.Context, q *v1.KeeperEnrolRequest) (*v1.KeeperEnrolResponse, error) {
	pin := l.pin()
	a := &v1.KeeperEnrolResponse{Receipts: []*v1.Receipt{{Keeper: pin[:], Refused: "no code for " + q.Enrolments[0].Agent + " of " + q.Fleet}}}
	a.Signature = member.Sign(l.key, l.epoch.Load(), q, a)
	return a, nil
}

// set returns a server's set of keepers, which stores the newest epochs in epochs.
func set(t *testing.T, epochs map[string]int64, all ...Address) *Set {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	testkit.Must(t, err)
	var mu sync.Mutex
	s, err := New(t.Context(), Config{Addresses: all, Key: key, Log: slog.New(slog.DiscardHandler), Epoch: func(_ context.Context, id string, epoch int64) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		epochs[id] = max(epochs[id], epoch)
		epochs["answered "+id] = time.Now().UnixNano()
		return epochs[id], nil
	}, Answered: func(_ context.Context, id string) (at time.Time, err error) {
		mu.Lock()
		defer mu.Unlock()
		if ns := epochs["answered "+id]; ns != 0 {
			at = time.Unix(0, ns)
		}
		return at, nil
	}})
	testkit.Must(t, err)
	return s
}

var names = []string{"auditor"}

func request(t *testing.T, length int64) []byte {
	t.Helper()
	b, err := proto.Marshal(&v1.KeeperReleaseRequest{Round: &v1.MaskedRound{Length: length}})
	testkit.Must(t, err)
	return b
}

// TestApproved checks that the error asks for an approval only if the keeper withholds it,
// because most keepers allow any plan.
func TestApproved(t *testing.T) {
	a := newLiar(t, 3)
	s := set(t, map[string]int64{}, Address{"auditor", a.at, a.pin()})
	why := func(plan string) string {
		t.Helper()
		if err := s.Approved([]string{"auditor"}, plan); err != nil {
			return err.Error()
		}
		return ""
	}
	ask := func() {
		t.Helper()
		testkit.Must(t, s.all[0].state(t.Context()))
	}
	if text := why("p"); text != "keeper auditor was asked whether it allows plan p" {
		t.Errorf("before it was asked: %q", text)
	}
	ask()
	if text := why("p"); !strings.Contains(text, "has not approved plan p yet; its administrators do this with 'loadstar keeper approve'") {
		t.Errorf("after it has withheld its approval: %q", text)
	}
	a.allows.Store(true)
	ask()
	if text := why("p"); text != "" {
		t.Errorf("after its approval: %q", text)
	}
	if text := why("q"); strings.Contains(text, "approve") {
		t.Errorf("another plan: %q", text)
	}
}

// TestMasks asks two keepers, one of which does not answer for a while.
func TestMasks(t *testing.T) {
	a, b := newLiar(t, 3), newLiar(t, 3)
	s := set(t, map[string]int64{}, Address{"auditor", a.at, a.pin()}, Address{"union", b.at, b.pin()})
	if _, err := s.Statements(names); !errors.As(err, new(*Away)) {
		t.Errorf("before a keeper was asked: %v", err)
	}
	for _, k := range s.all {
		testkit.Must(t, k.state(t.Context()))
	}
	all, err := s.Statements([]string{"union", "auditor"})
	testkit.Must(t, err)
	for i, want := range []member.Pin{b.pin(), a.pin()} {
		says, err := member.ReadStatement(all[i])
		testkit.Must(t, err)
		testkit.Must(t, member.Valid(says, want, time.Now()))
	}
	if got := a.caller.Load().(member.Pin).String(); got != Fingerprint(s.Key) {
		t.Errorf("the keeper saw the key %s", got)
	}
	if err := s.Has([]string{"nobody"}); err == nil || !strings.Contains(err.Error(), "needs keeper nobody") {
		t.Errorf("a keeper that is not configured: %v", err)
	}
	pin := a.pin()
	if r := s.Enrol(t.Context(), "home", &v1.Enrolment{Keeper: pin[:], Sealed: []byte{1}}); r.GetRefused() != "no code for home of fleet" {
		t.Errorf("the receipt is %v", r)
	}
	if r := s.Enrol(t.Context(), "home", &v1.Enrolment{Keeper: make([]byte, 32), Sealed: []byte{1}}); r != nil {
		t.Errorf("a receipt of an unknown keeper: %v", r)
	}
	b.server.Close()
	waits := make(chan string, 100)
	type answer struct {
		sum []uint64
		err error
	}
	done := make(chan answer, 1)
	go func() {
		sum, _, err := s.Masks(t.Context(), []string{"auditor", "union"}, request(t, 3), func(why error) {
			if why != nil {
				waits <- why.Error()
			}
		})
		done <- answer{sum, err}
	}()
	why := <-waits
	for !strings.Contains(why, "refused") { // wait until the open connection has also broken
		why = <-waits
	}
	if !strings.HasPrefix(why, "keeper union has not answered since 20") {
		t.Errorf("it waits: %s", why)
	}
	if len(s.Known()) != 2 {
		t.Error("the statement of a silent keeper is forgotten")
	}
	if _, err := s.Statements([]string{"union"}); err == nil || !strings.HasPrefix(err.Error(), "keeper union has not answered since") {
		t.Errorf("the statement of a silent keeper: %v", err)
	}
	b.start(t)
	got := <-done
	testkit.Must(t, got.err)
	if !slices.Equal(got.sum, []uint64{2, 4, 6}) {
		t.Errorf("the sum is %v", got.sum)
	}
	if _, err := s.Statements([]string{"union"}); err != nil {
		t.Errorf("after its return: %v", err)
	}
}

// TestWatch checks that a process that does not call a keeper itself soon notices that the
// keeper does not answer.
func TestWatch(t *testing.T) {
	l := newLiar(t, 3)
	s := set(t, map[string]int64{}, Address{"auditor", l.at, l.pin()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	until := func(what string, is func() bool) {
		for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	silent := func() bool {
		_, err := s.Statements(names)
		return err != nil
	}
	until("the keeper does not answer", func() bool { return !silent() })
	l.server.Close()
	s.Watch(names) // the keeper was asked just now
	k := s.all[0]
	if len(k.asks) != 0 {
		t.Error("the keeper is asked at every call")
	}
	k.mu.Lock()
	k.asked = k.asked.Add(-watchEvery)
	k.mu.Unlock()
	s.Watch(names)
	until("nobody has noticed that the keeper is away", silent)
	cancel()
	testkit.Must(t, <-done)
}

// TestSince checks that all processes of a server report the same time of a keeper's last answer,
// whenever they notice that it is unavailable.
func TestSince(t *testing.T) {
	l, stored := newLiar(t, 3), map[string]int64{}
	address := Address{"auditor", l.at, l.pin()}
	s := set(t, stored, address)
	since := func(s *Set) time.Time {
		t.Helper()
		var away *Away
		if _, err := s.Statements(names); !errors.As(err, &away) {
			t.Fatalf("the keeper is unavailable: %v", err)
		}
		return away.Since
	}
	begun := since(s)
	testkit.Must(t, s.all[0].state(t.Context()))
	l.server.Close()
	var first time.Time
	for i, process := range []*Set{s, s, set(t, stored, address), set(t, stored, address)} {
		if i == 2 && since(process) != first { // the third process has not called the keeper yet
			t.Errorf("a new process reports %v, want %v", since(process), first)
		}
		time.Sleep(time.Millisecond)
		if err := process.all[0].state(t.Context()); !errors.As(err, new(*Away)) {
			t.Fatalf("the keeper is unavailable: %v", err)
		}
		if i == 0 {
			first = since(process)
		}
		if got := since(process); got != first || !got.After(begun) {
			t.Errorf("call %d reports %v, want %v", i, got, first)
		}
	}
}

// TestServersOwnFault checks that a keeper that answers does not count as silent if the
// server's database does not respond.
func TestServersOwnFault(t *testing.T) {
	l := newLiar(t, 3)
	s := set(t, map[string]int64{}, Address{"auditor", l.at, l.pin()})
	k := s.all[0]
	testkit.Must(t, k.state(t.Context()))
	good := s.Epoch
	s.Epoch = func(context.Context, string, int64) (int64, error) { return 0, errors.New("no connection") }
	if err := k.state(t.Context()); err == nil || errors.As(err, new(*Away)) {
		t.Errorf("the ledger has failed: %v", err)
	}
	if _, err := s.Statements(names); err != nil {
		t.Errorf("the keeper counts as silent: %v", err)
	}
	waits := ""
	sum, _, err := s.Masks(t.Context(), names, request(t, 3), func(why error) {
		if why != nil {
			waits, s.Epoch = why.Error(), good
		}
	})
	testkit.Must(t, err)
	if waits != "no connection" || !slices.Equal(sum, []uint64{1, 2, 3}) {
		t.Errorf("it waited for %q, and the sum is %v", waits, sum)
	}
}

// TestLies checks that wrong answers from a keeper are refused.
func TestLies(t *testing.T) {
	l, epochs := newLiar(t, 3), map[string]int64{}
	other := newLiar(t, 3)
	stranger := set(t, epochs, Address{"auditor", l.at, other.pin()})
	if err := stranger.all[0].state(t.Context()); err == nil || !strings.Contains(err.Error(), "not the one that is pinned") {
		t.Errorf("another identity: %v", err)
	}
	s := set(t, epochs, Address{"auditor", l.at, l.pin()})
	k := s.all[0]
	testkit.Must(t, k.state(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	release := func(length int64) string {
		ctx, cancel := context.WithCancel(ctx)
		said := ""
		_, _, err := s.Masks(ctx, names, request(t, length), func(why error) {
			if why != nil {
				said = why.Error()
				cancel()
			}
		})
		if said == "" && err != nil {
			said = err.Error()
		}
		return said
	}
	if got := release(3); got != "" {
		t.Errorf("a good answer: %s", got)
	}
	for _, x := range []struct {
		name, want string
		do, undo   func()
		length     int64
	}{
		{"a wrong signature", "the keeper's signature of its answer is wrong", func() { l.wrong.Store(true) }, func() { l.wrong.Store(false) }, 3},
		{"a wrong length", "it answered with 24 bytes, want 16", func() {}, func() {}, 2},
		{"an older epoch", "its folder was copied, or restored from a backup", func() { l.epoch.Store(4) }, func() { l.epoch.Store(5) }, 3},
		{"a refusal", "keeper auditor refused: quorum: 3 of 10?members", func() { l.refuse.Store(true) }, func() { l.refuse.Store(false) }, 3},
	} {
		x.do()
		if got := release(x.length); !strings.Contains(got, x.want) {
			t.Errorf("%s: %s", x.name, got)
		}
		x.undo()
	}
	l.number.Store(0)
	if err := k.state(t.Context()); err == nil || !strings.Contains(err.Error(), "its statement is number 0, and it had number 1 before") {
		t.Errorf("an older statement: %v", err)
	}
	cancel()
}

func TestParse(t *testing.T) {
	pin := "sha256:" + strings.Repeat("0a", 32)
	for text, want := range map[string]string{
		"auditor=https://keeper:7460," + pin:          "",
		"auditor=https://keeper:7460/ " + pin:         "",
		"auditor=http://keeper:7460," + pin:           "want https://HOST:PORT",
		"https://keeper:7460," + pin:                  "is not a keeper",
		"auditor=https://keeper:7460":                 "is not a keeper",
		"auditor=https://keeper:7460,sha256:0a":       "is not an identity",
		"=https://keeper:7460," + pin:                 "is not a keeper",
		"auditor=https://keeper:7460,sha1:" + pin[7:]: "is not an identity",
	} {
		a, err := Parse(text)
		switch {
		case want == "" && (err != nil || a.Name != "auditor" || a.URL != "https://keeper:7460" || a.Identity.String() != pin):
			t.Errorf("%s: %v, %v", text, a, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", text, err)
		}
	}
}
