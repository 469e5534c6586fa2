package agent

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"loadstar/agent/state"
	"loadstar/fed"
	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/fed/policy"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	loadstarv1 "loadstar/proto/loadstar/v1"
)

// enrolEvery is the interval of enrolments until the keeper responds. After a refusal, the
// interval is refusedEvery.
const (
	// seekEvery is the longest interval at which an agent announces itself while it is not enrolled
	// with a keeper that it trusts. The server may have learned of the keeper in the meantime. The
	// first intervals are short, because a server that has just started does not know its keepers yet.
	seekEvery    = time.Hour
	enrolEvery   = time.Minute
	refusedEvery = time.Hour
	maxEnrolled  = 4 // enrolments in one call, and keepers that an agent remembers
)

// members are the agent's memberships with keepers. Only the goroutine that calls the server uses
// next. The worklist's goroutine reads statements within the store's transactions.
type members struct {
	*Config
	store *state.Store
	// statements maps the identities of trusted keepers to their statements, which arrive in the
	// response to Announce.
	statements map[member.Pin]*loadstarv1.KeeperStatement
	next       map[member.Pin]time.Time // of an enrolment
}

// now is the agent's clock.
func (c *Config) now() time.Time {
	if c.Clock != nil {
		return c.Clock()
	}
	return time.Now()
}

// statement checks a keeper's statement. The signature and date must be valid, the policy
// must trust the keeper, the rules must satisfy the policy, and the agent must not have seen
// a newer statement.
func (ms *members) statement(data []byte) (s *loadstarv1.KeeperStatement, pin member.Pin, m state.Member, err error) {
	if s, err = member.ReadStatement(data); err != nil {
		return nil, pin, m, unfitOf(codePolicy, "%v", err)
	}
	pin = member.PinOf(s.Identity)
	if reason := ms.Policy.CheckKeeper(pin, s.Rules.Least); reason != "" {
		return nil, pin, m, unfitOf(codePolicy, "%s", reason)
	}
	if err := member.Valid(s, pin, ms.now()); err != nil {
		return nil, pin, m, unfitOf(codePolicy, "%v", err)
	}
	if m, _, err = ms.store.Member(pin); err != nil {
		return nil, pin, m, storeError(err)
	}
	if s.Number < m.Statement {
		return nil, pin, m, unfitOf(codePolicy, "statement %d of keeper %s is older than its statement %d", s.Number, pin, m.Statement)
	}
	return s, pin, m, nil
}

// hearStatements records the keepers that the server has announced, if the policy trusts them.
func (ms *members) hearStatements(all [][]byte) error {
	if ms.Policy.Private == policy.PrivateNever || len(ms.Policy.Keepers) == 0 {
		return nil
	}
	for _, data := range all {
		s, pin, m, err := ms.statement(data)
		var no *unfit
		switch {
		case errors.As(err, &no):
			ms.Log.Warn("a keeper of the server is not used", "reason", no.reason)
			continue
		case err != nil:
			return err
		}
		if m.Day != 0 && (s.Number > m.Statement || s.Number > m.For && m.Enrolled) {
			// The keeper may have lost its keys. Otherwise, it repeats its receipt.
			if err := ms.store.ChangeMember(pin, func(m *state.Member) { m.Statement, m.Enrolled = max(m.Statement, s.Number), false }); err != nil {
				return storeError(err)
			}
		}
		old := ms.statements[pin]
		if old != nil && !slices.Equal(old.SealingKey, s.SealingKey) {
			delete(ms.next, pin) // the keeper may have refused the seal for the earlier key
		}
		if len(ms.statements) < maxEnrolled || old != nil {
			ms.statements[pin] = s
		}
	}
	return nil
}

// unenrolled reports whether the agent lacks a current receipt from a keeper that it trusts. If
// a task contained a newer statement of the keeper, the keeper may have lost its keys and must
// send a new receipt.
func (ms *members) unenrolled() (bool, error) {
	if ms.Policy.Private == policy.PrivateNever {
		return false, nil
	}
	for _, text := range ms.Policy.Keepers {
		pin, err := member.ParsePin(text)
		if err != nil {
			return false, nil // such a configuration was refused when it was read
		}
		m, _, err := ms.store.Member(pin)
		if err != nil {
			return false, storeError(err)
		}
		if !m.Enrolled || m.For < m.Statement {
			return true, nil
		}
	}
	return false, nil
}

// enrolments returns the enrolments to send. A member key is on disk before its seal is sent.
// The server cannot make the agent change the key, because the keeper would accept no other
// key.
func (ms *members) enrolments() (all []*loadstarv1.Enrolment, err error) {
	for _, pin := range slices.SortedFunc(maps.Keys(ms.statements), func(x, y member.Pin) int { return slices.Compare(x[:], y[:]) }) {
		s := ms.statements[pin]
		m, found, err := ms.store.Member(pin)
		switch {
		case err != nil:
			return nil, storeError(err)
		case m.Enrolled || ms.now().Before(ms.next[pin]) || len(all) == maxEnrolled:
			continue
		case !found:
			m = state.Member{Key: mask.NewKey(), Day: mask.Day(ms.now()), Statement: s.Number}
			if err := ms.store.ChangeMember(pin, func(x *state.Member) { *x = m }); err != nil {
				return nil, storeError(err)
			}
		}
		ms.next[pin] = ms.now().Add(enrolEvery)
		code, err := ms.invitation(pin)
		if err != nil {
			ms.Log.Warn("cannot read the invitation", "keeper", pin, "error", err)
			continue
		}
		key := mask.Key(m.Key)
		sealed, err := member.Seal(s, ms.Name, &key, m.Day, code)
		if err != nil {
			ms.Log.Warn("cannot enrol", "keeper", pin, "error", err)
			continue
		}
		all = append(all, &loadstarv1.Enrolment{Keeper: pin[:], Sealed: sealed})
	}
	return all, nil
}

// invitation returns the code with which the agent enrols with a keeper, or the zero code if there
// is no file or the file has no code for this keeper. A line of the file has a code, or the
// identity of its keeper and a code.
func (ms *members) invitation(pin member.Pin) (code member.Code, err error) {
	if ms.Invitations == "" {
		return code, nil
	}
	f, err := os.Open(ms.Invitations)
	if errors.Is(err, fs.ErrNotExist) { // removed after an enrolment
		return code, nil
	} else if err != nil {
		return code, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		keeper, rest, named := strings.Cut(text, " ")
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
			continue
		case named && strings.HasPrefix(keeper, "sha256:"):
			if keeper != pin.String() {
				continue
			}
			text = rest
		}
		return member.ParseCode(text)
	}
	return code, lines.Err()
}

// hearReceipts stores the receipts of keepers. Only the keeper can compute the receipt of a key.
func (ms *members) hearReceipts(all []*loadstarv1.Receipt) error {
	for _, r := range all {
		if len(r.GetKeeper()) != len(member.Pin{}) {
			continue
		}
		pin := member.Pin(r.Keeper)
		s := ms.statements[pin]
		m, found, err := ms.store.Member(pin)
		switch {
		case err != nil:
			return storeError(err)
		case s == nil || !found || m.Enrolled:
			continue
		}
		if why := r.GetRefused(); why != "" {
			ms.Log.Warn("a keeper refuses this agent", "keeper", pin, "reason", why[:min(len(why), 500)])
			ms.next[pin] = ms.now().Add(refusedEvery)
			continue
		}
		if key := mask.Key(m.Key); !member.ValidReceipt(r, &key, s.Fleet, ms.Name, pin) {
			ms.Log.Warn("a receipt is not that of the keeper", "keeper", pin)
			continue
		}
		if err := ms.store.ChangeMember(pin, func(m *state.Member) { m.Enrolled, m.For, m.Cell, m.Since = true, s.Number, r.Cell, r.Since }); err != nil {
			return storeError(err)
		}
		ms.Log.Info("enrolled with a keeper", "keeper", pin, "fleet", s.Fleet, "cell", r.Cell, "invited", s.Rules.Invited, "least", s.Rules.Least)
	}
	return nil
}

// masking holds the round and the keepers for which a task's results are masked.
type masking struct {
	vector  round.Vector
	keepers []maskKeeper
	// Masked.Context combines the contexts of all keepers. Masked.Part is the part of the next
	// result.
	state.Masked
}

// maskKeeper is a keeper of a task, with the key of the task's day.
type maskKeeper struct {
	context *mask.Context
	key     mask.Key
}

// masking checks what the server says about a private task. It returns nil for a plain task. An
// [unfit] error means that the agent must decline the task; it never sends a plain result
// instead.
func (ms *members) masking(j *job, s *session) (*masking, error) {
	x := j.GetPrivacy()
	if private := recipe.Private(s.Plan); private != (x != nil) {
		return nil, unfitf("the task and the plan disagree on whether the run is private")
	} else if !private {
		return nil, nil
	}
	if len(x.Statements) != len(s.Plan.Privacy.Keepers) {
		return nil, unfitf("the task has %d statements, and the plan names %d keepers", len(x.Statements), len(s.Plan.Privacy.Keepers))
	}
	if ms.Name == "" {
		return nil, unfitf("this agent does not know its name")
	}
	var pins []member.Pin
	var statements []*loadstarv1.KeeperStatement
	m := &masking{vector: s.Rules.Vector(s.shared())}
	for _, data := range x.Statements {
		k, pin, own, err := ms.statement(data)
		if err != nil {
			return nil, err
		}
		switch {
		case slices.Contains(pins, pin):
			return nil, unfitOf(codePolicy, "keeper %s is named twice", pin)
		case !own.Enrolled:
			return nil, unfitOf(codePolicy, "this agent has no receipt of keeper %s yet", pin)
		case ms.now().Unix() < own.Since+k.Rules.Age: // the keeper would refuse the sum with this key
			return nil, unfitOf(codePolicy, "keeper %s wants members that are %d s old, and this agent is a member since %s", pin, k.Rules.Age, time.Unix(own.Since, 0).UTC().Format(time.RFC3339))
		case len(statements) > 0 && statements[0].Fleet != k.Fleet:
			return nil, unfitOf(codePolicy, "the keepers know the fleet as %.40q and %.40q", statements[0].Fleet, k.Fleet)
		}
		key, err := ms.memberKey(pin, own, x.Day, k.Number)
		if err != nil {
			return nil, err
		}
		pins, statements = append(pins, pin), append(statements, k)
		m.keepers = append(m.keepers, maskKeeper{key: key})
	}
	q := maskedRound(j.Task, s.Plan, statements[0].Fleet, pins, m.vector)
	if err := member.CheckRound(q); err != nil {
		return nil, unfitf("the task cannot be masked: %v", err)
	}
	h := sha256.New()
	for i := range m.keepers {
		c := member.Context(statements[i], q)
		c.Agent = ms.Name
		h.Write(c.Append(nil))
		m.keepers[i].context = c
	}
	m.Context = [32]byte(h.Sum(nil))
	return m, nil
}

// maskedRound returns everything in a task that determines an agent's numbers. A server that
// gave one agent a different task could make the numbers of all other agents 0, and so unmask
// that agent's numbers.
func maskedRound(t *loadstarv1.Task, plan *fed.Plan, fleet string, keepers []member.Pin, v round.Vector) *loadstarv1.MaskedRound {
	return &loadstarv1.MaskedRound{
		Fleet: fleet, Run: t.GetRun(), Round: t.GetRound(), Version: t.GetVersion(),
		Plan: t.GetPlan(), Weights: t.GetWeights(), Control: t.GetControl(), Length: int64(v.Len()), Day: t.GetPrivacy().GetDay(),
		Homes: t.GetFleet(), Clip: t.GetLimits(), Terms: member.PlanTerms(plan, keepers), Limits: member.Limits(v.Blocks(taskOf(t).Limits)),
	}
}

// memberKey returns the key of a day with a keeper, and erases keys from before yesterday. Rounds
// stay open for at most a day, so no round needs an older key. The server cannot move the agent's
// clock forward.
func (ms *members) memberKey(pin member.Pin, m state.Member, day, statement int64) (mask.Key, error) {
	today := mask.Day(ms.now())
	key := mask.Key(m.Key)
	const longest = 10 * 366
	if today-m.Day > longest {
		return key, unfitOf(codePolicy, "the member key is from day %d, and this agent's clock says %d", m.Day, today)
	}
	changed := statement > m.Statement
	for m.Day < today-1 {
		key, changed = key.Next(), true
		m.Key, m.Day = key, m.Day+1
	}
	if changed {
		err := ms.store.ChangeMember(pin, func(x *state.Member) {
			x.Key, x.Day, x.Statement = m.Key, m.Day, max(x.Statement, statement)
		})
		if err != nil {
			return key, storeError(err)
		}
	}
	date := func(day int64) string { return time.Unix(day*24*3600, 0).UTC().Format(time.DateOnly) }
	if day < today-1 || day > today+1 {
		return key, unfitOf(codePolicy, "the round is of %s, and this agent's clock says %s; probably the clock of the server's database or of this host is wrong", date(day), date(today))
	}
	if day < m.Day {
		return key, unfitOf(codePolicy, "the round is of %s, and this agent has keys from %s", date(day), date(m.Day))
	}
	for at := m.Day; at < day; at++ {
		key = key.Next()
	}
	return key, nil
}

// spent declines those of a job's clients that are already in a masked result of the round, and
// returns an [unfit] error if the round was masked for another task.
func (a *agent) spent(j *job, m *masking) error {
	part, clients, err := a.store.Mask(j.GetRun(), j.GetRound(), m.Context)
	switch {
	case errors.Is(err, state.ErrMasked):
		return unfitOf(codePolicy, "%v", err)
	case err != nil:
		return storeError(err)
	}
	m.Part = part
	var again []string
	for _, c := range j.clients {
		if slices.Contains(clients, c) {
			again = append(again, c)
		}
	}
	if len(again) > 0 { // the server no longer waits for them, so they are not trained
		a.worklist.decline(j, codePolicy, "it is in an earlier masked result of the round", again...)
	}
	return nil
}

// mask encodes what a group has collected, and adds the masks of all keepers.
func (m *masking) mask(f *round.Fold, sizes *round.Sizes, clients int) (numbers []byte, nonce mask.Nonce, err error) {
	v, err := m.vector.Encode(f, sizes)
	if err != nil {
		return nil, nonce, err
	}
	nonce = mask.NewNonce()
	for i := range m.keepers {
		k := &m.keepers[i]
		k.context.Part, k.context.Clients = m.Part, int64(clients)
		seed := k.key.Seed(k.context, nonce)
		seed.Add(v)
	}
	return round.AppendVector(make([]byte, 0, 8*len(v)), v), nonce, nil
}
