package simulation

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/agent"
	"loadstar/agent/state"
	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/policy"
	"loadstar/internal/mtls"
	"loadstar/keeper"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/keepers"
)

// auditor is a keeper with its folder, which is a real one, in memory if possible. Each
// incarnation of the keeper has a copy of the folder from the end of the previous incarnation.
// A dead process can therefore write without effect.
type auditor struct {
	w       *world
	name    string // in plans
	pin     member.Pin
	rules   *v1.KeeperRules
	copies  int    // of the folder
	backup  []byte // of keeper.db
	jumped  time.Duration
	answers map[int64]release // by round; all answers that were sent

	// The schedule's lock guards these.
	door *keeperDoor
	away time.Time // it answers no call until this time
	old  []oldCall
}

// keeperDoor is a running keeper, which serves one call at a time.
type keeperDoor struct {
	*part
	handler http.Handler
	busy    bool          // the schedule's lock guards it
	turn    chan struct{} // contains a value while the keeper serves a call
}

// release is a keeper's answer for a round, with the request.
type release struct {
	request *v1.KeeperReleaseRequest
	masks   [32]byte
	chosen  []int64
}

// oldCall is a request that can arrive again.
type oldCall struct {
	name string
	q    *http.Request
	body []byte
}

// drawn is the source of a keeper's random numbers. It is the same for all seeds of the
// simulation, because the choice of results depends on it.
type drawn struct{ *rand.ChaCha8 }

func (d drawn) Read(b []byte) (int, error) { return d.ChaCha8.Read(b) }

// addKeepers adds the keepers of a private run, and makes them invite all agents.
func (w *world) addKeepers(hub *site) error {
	for i := range w.private.keepers {
		k := &auditor{w: w, name: fmt.Sprint("k", i+1), answers: map[int64]release{}}
		k.rules = &v1.KeeperRules{Least: 2, Cell: 100, Invited: w.private.invited}
		seed := sha256.Sum256([]byte(k.name))
		private := ed25519.NewKeyFromSeed(seed[:])
		k.pin = member.PinOf(private.Public().(ed25519.PublicKey))
		der, err := x509.MarshalPKCS8PrivateKey(private)
		if err == nil {
			err = mtls.MakeDir(k.folder())
		}
		if err == nil {
			err = mtls.WritePrivate(filepath.Join(k.folder(), "identity.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		}
		if err == nil {
			err = k.invite()
		}
		if err != nil {
			return err
		}
		w.keepers = append(w.keepers, k)
		w.addKeeper(k, hub)
	}
	return nil
}

// invite writes an invitation for each agent.
func (k *auditor) invite() error {
	open, err := k.open(k.folder(), nil)
	if err != nil {
		return err
	}
	for i := range k.w.clients {
		code, err := open.Invite(1, time.Now().Add(365*24*time.Hour), "")
		if err != nil {
			return err
		}
		f, err := os.OpenFile(k.w.invitations(k.w.agentName(i)), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(f, k.pin, code); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return open.Close()
}

func (w *world) invitations(agent string) string { return filepath.Join(w.dir, agent+" invitations") }

func (k *auditor) folder() string { return filepath.Join(k.w.dir, fmt.Sprint(k.name, " ", k.copies)) }

func (k *auditor) now() time.Time {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	return time.Now().Add(k.jumped)
}

func (k *auditor) open(dir string, p *part) (*keeper.Keeper, error) {
	o := keeper.Options{Fleet: "fleet", Rules: k.rules, Now: k.now}
	var gate func(string)
	if p != nil {
		o.Log = k.w.log(p)
		gate = func(step string) { _, _ = p.wait(context.Background(), "keeper "+step, nil) } // a dead process continues without effect
	}
	return keeper.OpenSimulated(dir, o, gate, drawn{rand.NewChaCha8([32]byte{7})})
}

// copyFolder copies the files of a keeper, as a crash leaves them.
func (k *auditor) copyFolder(to string) {
	from := k.folder()
	files, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	for _, f := range files {
		var data []byte
		if data, err = os.ReadFile(filepath.Join(from, f.Name())); err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name()), data, 0o600)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		k.w.t.Error(err)
	}
}

// leave copies the current content of the folder for the next incarnation.
func (k *auditor) leave() {
	next := *k
	next.copies++
	k.copyFolder(next.folder())
	k.copies = next.copies
}

func (w *world) addKeeper(k *auditor, hub *site) {
	w.add("keeper", k.name, hub, func(p *part) func(context.Context) error {
		dir := k.folder()
		return func(ctx context.Context) error {
			open, err := k.open(dir, p)
			if err != nil {
				return err
			}
			d := &keeperDoor{part: p, handler: open.Handler(), turn: make(chan struct{}, 1)}
			w.mu.Lock()
			if !p.dead {
				k.door = d
			}
			w.mu.Unlock()
			<-ctx.Done()
			d.turn <- struct{}{} // the current call ends first
			return open.Close()
		}
	})
}

func (w *world) keeperOf(name string) *auditor {
	for _, k := range w.keepers {
		if k.name == name {
			return k
		}
	}
	return nil
}

// keepersOf returns the keepers as a process of the hub knows them.
func (w *world) keepersOf(p *part, at *site) *keepers.Set {
	if at.name != hubName || len(w.keepers) == 0 {
		return nil
	}
	c := keepers.Config{
		Epoch: at.ledger.KeeperEpoch,
		Answered: func(_ context.Context, identity string) (time.Time, error) { // this call passes no gate, because several calls can fail at the same time
			return at.ledger.KeeperAnswered(context.Background(), identity)
		},
		Log: w.log(p), Rand: func(call string) func(int64) int64 { return w.random(p, call) },
		Client: func(a keepers.Address) *http.Client { return &http.Client{Transport: &line{p, w.keeperOf(a.Name)}} },
	}
	for _, k := range w.keepers {
		c.Addresses = append(c.Addresses, keepers.Address{Name: k.name, URL: "http://" + k.name, Identity: k.pin})
	}
	set, err := keepers.New(context.Background(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	return set
}

// trusting makes an agent trust the keepers and train only private plans.
func (w *world) trusting(c *agent.Config) {
	if len(w.keepers) == 0 {
		return
	}
	own := policy.None()
	own.Private, own.LeastMembers = policy.PrivateRequire, 2
	for _, k := range w.keepers {
		own.Keepers = append(own.Keepers, k.pin.String())
	}
	c.Policy, c.Invitations = &own, w.invitations(c.Name)
}

// line is the network between a process of the hub and a keeper.
type line struct {
	p  *part
	to *auditor
}

var _ http.RoundTripper = (*line)(nil)

func (l *line) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	q.Body.Close()
	q.Header.Del("Accept-Encoding") // the checks must be able to read answers
	name := forCall(q.Context(), l.to.name+" "+callName(q, body))
	l.to.remember(oldCall{name, q, body})
	v, err := l.p.wait(q.Context(), "request "+name, l.to.idle)
	if err != nil {
		return nil, err
	}
	if v == refuse || l.cut() {
		return nil, errAway
	}
	if v == repeat { // an earlier attempt, which arrives as well
		if _, err := l.to.serve(q, body, l.p); err != nil {
			return nil, err
		}
	}
	r, err := l.to.serve(q, body, l.p)
	if err != nil {
		return nil, err
	}
	if v, err := l.p.wait(q.Context(), "response "+name, nil); err != nil {
		return nil, err
	} else if v == refuse || l.cut() {
		return nil, io.ErrUnexpectedEOF
	}
	answer := r.Result()
	answer.Request = q
	return answer, nil
}

// cut reports whether the line is down, or either of its ends is cut off.
func (l *line) cut() bool {
	l.p.s.mu.Lock()
	defer l.p.s.mu.Unlock()
	now, d := time.Now(), l.to.door
	return now.Before(l.p.cut) || now.Before(l.to.away) || d != nil && now.Before(d.cut)
}

// idle reports whether a call can arrive now. If the keeper is not running, a call may arrive,
// but fails at once.
func (k *auditor) idle() bool { return k.door == nil || k.door.dead || !k.door.busy }

// remember stores a request that can arrive again.
func (k *auditor) remember(c oldCall) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if !slices.ContainsFunc(k.old, func(o oldCall) bool { return o.name == c.name }) {
		k.old = append(k.old, c)
	}
}

// callName returns a name for a call to a keeper that does not depend on random data in the
// call.
func callName(q *http.Request, body []byte) string {
	path := q.URL.Path[strings.LastIndex(q.URL.Path, "/")+1:]
	switch path {
	case "State":
		var m v1.KeeperStateRequest
		_ = proto.Unmarshal(body, &m) // an unreadable message has the name of an empty one
		return fmt.Sprintf("%s %s%.4s", path, m.Run, m.Plan)
	case "Check":
		var m v1.KeeperCheckRequest
		_ = proto.Unmarshal(body, &m)
		name := fmt.Sprint(path, " ", m.GetRound().GetRound())
		for _, r := range m.Results {
			name += fmt.Sprintf(" %s/%d", r.GetResult().GetAgent(), r.GetResult().GetPart())
		}
		return name
	case "Release":
		var m v1.KeeperReleaseRequest
		_ = proto.Unmarshal(body, &m)
		return fmt.Sprint(path, " ", m.GetRound().GetRound(), " of ", len(m.Results))
	}
	return path
}

func (d *keeperDoor) isDead() bool {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return d.dead
}

// serve makes the keeper answer a call. The keeper continues even if the caller gives up. by is
// nil if no caller waits for the answer.
func (k *auditor) serve(q *http.Request, body []byte, by *part) (*httptest.ResponseRecorder, error) {
	s := k.w.schedule
	s.mu.Lock()
	d := k.door
	if d == nil || d.dead || d.ctx.Err() != nil {
		s.mu.Unlock()
		return nil, errAway
	}
	d.busy = true
	d.wg.Add(1) // under the lock, because kill waits for the group
	s.mu.Unlock()
	answer, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer d.wg.Done()
		defer close(done)
		d.turn <- struct{}{}
		r := httptest.NewRequestWithContext(d.ctx, q.Method, q.URL.String(), bytes.NewReader(body))
		r.Header = q.Header.Clone()
		d.handler.ServeHTTP(answer, r)
		if !d.isDead() && answer.Code == http.StatusOK {
			k.answered(q.URL.Path, body, answer.Body.Bytes())
		}
		<-d.turn
		s.mu.Lock()
		defer s.mu.Unlock()
		d.busy = false
	}()
	if by == nil {
		return nil, nil
	}
	select {
	case <-done:
	case <-by.ctx.Done():
		return nil, by.ctx.Err()
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.dead {
		return nil, io.ErrUnexpectedEOF
	}
	return answer, nil
}

// answered checks an answer before it is sent.
func (k *auditor) answered(path string, body, answer []byte) {
	switch {
	case strings.HasSuffix(path, "/Release"):
		k.released(body, answer)
	case strings.HasSuffix(path, "/Enrol") && len(k.answers) > 0: // the keeper may have a key again
		k.probe(-1, false)
	}
}

// released checks a released sum before it is sent. The keeper may release the masks of a round
// for only one request, whatever happens to it later.
func (k *auditor) released(body, answer []byte) {
	q, a := &v1.KeeperReleaseRequest{}, &v1.KeeperReleaseResponse{}
	if err := errors.Join(proto.Unmarshal(body, q), proto.Unmarshal(answer, a)); err != nil {
		k.w.violate("%s answers what cannot be read: %v", k.name, err)
		return
	}
	in, masks := q.Round.Round, sha256.Sum256(a.Masks)
	was, again := k.answers[in]
	switch {
	case again && !proto.Equal(was.request, q):
		k.w.violate("%s has released the masks of round %d for two sets of results", k.name, in+1)
	case again && was.masks != masks:
		k.w.violate("%s has answered the same request for round %d differently", k.name, in+1)
	}
	k.answers[in] = release{q, masks, a.Chosen}
	k.probe(in, false)
}

// probe opens a copy of the keeper's files, and requests every released round again, with the
// same set of results and with another one. The other set must not get the masks of the round.
// The request for the round newest, which may be -1, must get the same answer. If old is set,
// the copy contains the backup, and all agents enrol again with their current keys.
func (k *auditor) probe(newest int64, old bool) {
	open, remove := k.copied(old)
	defer remove()
	if open == nil {
		return
	}
	for _, in := range slices.Sorted(maps.Keys(k.answers)) {
		was := k.answers[in]
		other := proto.CloneOf(was.request)
		other.Results[0].Nonce[0] ^= 1
		_, err := open.Release(other)
		if err == nil { // a restored keeper may answer, but not with the masks of that round
			if k.opens(in, old) {
				k.w.violate("%s would release the masks of round %d for another set of results", k.name, in+1)
			}
			continue
		}
		a, err := open.Release(proto.CloneOf(was.request))
		if err == nil && sha256.Sum256(a.Masks) != was.masks || err != nil && in == newest {
			k.w.violate("%s would not repeat its answer for round %d after a crash: %v", k.name, in+1, err)
		}
	}
}

// opens reports whether a copy of the keeper's files still releases the masks of a round.
func (k *auditor) opens(in int64, old bool) bool {
	open, remove := k.copied(old)
	defer remove()
	if open == nil {
		return false
	}
	a, err := open.Release(proto.CloneOf(k.answers[in].request))
	return err == nil && sha256.Sum256(a.Masks) == k.answers[in].masks
}

// copied opens a copy of the keeper's files. It returns a nil keeper if it cannot open the
// copy.
func (k *auditor) copied(old bool) (open *keeper.Keeper, remove func()) {
	dir, err := os.MkdirTemp(k.w.dir, "probe")
	k.copyFolder(dir)
	if err == nil && old {
		err = k.putBackup(dir, k.w.seed%2 == 0)
	}
	if err == nil {
		open, err = k.open(dir, nil)
	}
	if err == nil && old {
		err = k.enrolAll(open)
	}
	if err != nil {
		k.w.violate("%s cannot go on with what a crash leaves: %v", k.name, err)
	}
	return open, func() {
		if open != nil {
			err = open.Close()
		}
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			k.w.t.Error(err)
		}
	}
}

// enrolAll enrols all agents again.
func (k *auditor) enrolAll(open *keeper.Keeper) error {
	for _, h := range k.w.agents {
		m, found, err := h.memberOf(k)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(k.w.invitations(h.name))
		if err != nil {
			return err
		}
		_, line, _ := strings.Cut(string(text), k.pin.String()+" ")
		line, _, _ = strings.Cut(line, "\n")
		code, err := member.ParseCode(line)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		key := mask.Key(m.Key)
		sealed, err := member.Seal(open.Statement(), h.name, &key, m.Day, code)
		if err == nil {
			_, err = open.Enrol(&v1.KeeperEnrolRequest{Fleet: "fleet", Enrolments: []*v1.KeeperEnrolment{{Agent: h.name, Sealed: sealed}}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// memberOf returns an agent's membership with a keeper, from a copy of its state.
func (h *host) memberOf(k *auditor) (m state.Member, found bool, err error) {
	from, dir := filepath.Join(k.w.dir, h.name, "agent.db"), filepath.Join(k.w.dir, h.name+" copy")
	defer os.RemoveAll(dir)
	data, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return m, false, nil
	}
	if err == nil {
		err = errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "agent.db"), data, 0o600))
	}
	if err != nil {
		return m, false, err
	}
	store, err := state.Open(dir)
	if err != nil {
		return m, false, err
	}
	m, found, err = store.Member(k.pin)
	return m, found, errors.Join(err, store.Close())
}

// chosen returns the clients whose results keepers have chosen in a round, or nil if all
// results are counted.
func (w *world) chosen(in int64) map[string]bool {
	for _, k := range w.keepers {
		if a := k.answers[in]; len(a.chosen) > 0 {
			names := map[string]bool{}
			for _, at := range a.chosen {
				for _, m := range w.host(a.request.Results[at].Agent).meters {
					names[m.ID] = true
				}
			}
			return names
		}
	}
	return nil
}

// checkReleases checks that all keepers have released the rounds that the hub has merged.
func (w *world) checkReleases(hub *site) error {
	if len(w.keepers) == 0 {
		return nil
	}
	rows, err := hub.query("SELECT round FROM rounds WHERE state = 'merged'")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var in int64
		if err := rows.Scan(&in); err != nil {
			return err
		}
		for _, k := range w.keepers {
			if _, ok := k.answers[in]; !ok {
				return fmt.Errorf("round %d was merged, and %s has not released it", in+1, k.name)
			}
		}
	}
	return rows.Err()
}

// checkMasked checks that an agent's call with a result of a private run reveals nothing, whether
// or not the call arrives.
func (w *world) checkMasked(agent string, body []byte) {
	var q v1.ExchangeRequest
	if proto.Unmarshal(body, &q) != nil || q.Result == nil {
		return
	}
	r := q.Result
	bare := r.Form == v1.Form_FORM_MASKED && r.Evaluation == nil
	for _, s := range r.Shares {
		bare = bare && proto.Equal(s, &v1.Share{Client: s.Client})
	}
	if !bare {
		w.violate("%s sends a result of a private run in plain: %v", agent, r.Form)
	}
}

// withoutDraws returns a call without the data that agents draw at random, so that the call has
// the same name in every repetition.
func withoutDraws(path string, body []byte) []byte {
	var m interface {
		proto.Message
		GetEnrolments() []*v1.Enrolment
	}
	switch path {
	case "Exchange":
		m = &v1.ExchangeRequest{}
	case "Enrol":
		m = &v1.EnrolRequest{}
	default:
		return body
	}
	if proto.Unmarshal(body, m) != nil {
		return body
	}
	for _, e := range m.GetEnrolments() {
		e.Sealed = nil
	}
	if q, ok := m.(*v1.ExchangeRequest); ok && q.Result != nil {
		q.Result.Chunk, q.Result.Checksum, q.Result.Nonce = nil, 0, nil
		for _, r := range q.Result.Members {
			r.Nonce = nil
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return body
	}
	return b
}

// beginRun adds the run when all agents are members of all keepers. In some seeds, it adds the run
// earlier, and some agents decline it.
func (w *world) beginRun() error {
	hub := w.sites[0]
	if w.begun || hub.locked() {
		return nil
	}
	for _, h := range w.agents {
		if !h.enrolled && len(w.keepers) > 0 && !w.private.early && h.revoked.IsZero() && !w.hasReceipts(h) {
			return nil
		}
	}
	for _, k := range w.keepers {
		k.backUp()
	}
	w.begun, w.first = true, time.Since(w.start)
	return w.addRun(hub)
}

// hasReceipts reports whether an agent has the receipts of all keepers.
func (w *world) hasReceipts(h *host) bool {
	w.mu.Lock()
	changed := h.member
	h.member = false
	w.mu.Unlock()
	if !changed {
		return false
	}
	h.enrolled = true
	for _, k := range w.keepers {
		m, _, err := h.memberOf(k)
		if err != nil {
			w.t.Error(err)
		}
		h.enrolled = h.enrolled && m.Enrolled
	}
	return h.enrolled
}

// awayKeeper makes a keeper answer no calls for a while.
func (k *auditor) awayKeeper(r *rand.Rand) {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	k.away = time.Now().Add(upTo(r, 5*time.Minute))
}

// late delivers an old request again.
func (k *auditor) late(r *rand.Rand) bool {
	k.w.mu.Lock()
	if len(k.old) == 0 || k.door == nil || !k.idle() {
		k.w.mu.Unlock()
		return false
	}
	slices.SortFunc(k.old, func(a, b oldCall) int { return strings.Compare(a.name, b.name) })
	c := k.old[r.IntN(len(k.old))]
	k.w.mu.Unlock()
	_, err := k.serve(c.q, c.body, nil)
	return err == nil
}

// backUp takes a backup of a keeper, which does not contain its keys.
func (k *auditor) backUp() {
	data, err := os.ReadFile(filepath.Join(k.folder(), "keeper.db"))
	if err != nil {
		k.w.t.Error(err)
	}
	k.backup = data
}

// restoreKeeper restores the backup of a keeper, with its current keys or without keys.
// Sometimes it takes a new backup instead.
func (w *world) restoreKeeper(k *auditor, r *rand.Rand) bool {
	if k.backup == nil || r.IntN(4) == 0 {
		k.backUp()
		return false
	}
	w.crashPart(w.parts[k.name], time.Now().Add(upTo(r, w.absent)))
	if err := k.putBackup(k.folder(), r.IntN(2) == 0); err != nil {
		w.t.Error(err)
	}
	return true
}

// putBackup puts the backup into a folder.
func (k *auditor) putBackup(dir string, withoutKeys bool) error {
	err := os.WriteFile(filepath.Join(dir, "keeper.db"), k.backup, 0o600)
	if withoutKeys {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, "keys.db")))
	}
	return err
}

// keeperFault carries out a fault of a keeper.
func (w *world) keeperFault(what kind, c *call, r *rand.Rand) bool {
	name := c.name
	if rest, ok := strings.CutPrefix(c.what, "request "); ok {
		name, _, _ = strings.Cut(rest, " ")
	}
	k := w.keeperOf(name)
	switch what {
	case keeperCrash:
		w.crashPart(c.part, time.Now().Add(upTo(r, w.absent)))
	case keeperAway:
		k.awayKeeper(r)
	case keeperLate:
		return k.late(r)
	case keeperOld:
		return w.restoreKeeper(k, r)
	case keeperClock:
		if !w.begun { // otherwise, no agent would ever be old enough
			return false
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		k.jumped += []time.Duration{time.Hour, 24 * time.Hour}[r.IntN(2)]
	}
	return true
}
