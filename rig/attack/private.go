package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/rig/product"
)

// privates lists the attacks on private runs. The keeper is a process of the binary. Servers that
// lie to the keeper or to agents of this tree run in this process, because the binary's server
// does not lie. Members that lie call the binary's server.
func privates() []Attack {
	return []Attack{
		{ID: "P1", Name: "a server asks the keeper twice for one round", Run: askTwice},
		{ID: "P2", Name: "a server asks the keeper for a sum of few results", Run: askForFewer},
		{ID: "P3", Name: "a server asks the keeper for other results", Run: askForOthers},
		{ID: "P4", Name: "a server has results opened in a second run", Run: askInSecondRun},
		{ID: "P5", Name: "a server gives all agents but one other weights", Run: otherWeights},
		{ID: "P6", Name: "a server gives all agents but one other limits, or another fleet", Run: otherLimits},
		{ID: "P7", Name: "a server invents members, or takes the place of one", Run: inventMembers},
		{ID: "P8", Name: "a member spoils a round with a garbage mask", Run: garbageMask},
		{ID: "P9", Name: "a member sends three times the norm", Run: tripleNorm},
		{ID: "P10", Name: "a replayed enrolment makes a member", Run: replayEnrolment},
		{ID: "P11", Name: "a keeper sends wrong sums", Run: wrongSums},
	}
}

// keptFleet is the fleet of the keepers, with the rules that the attacks need.
const (
	keptFleet  = "fleet"
	keptLeast  = 5
	keptQuorum = 0.7
)

// vault is a running keeper of the binary. If key is the key by which the keeper recognises
// its server, the embedded client can act as a lying server.
type vault struct {
	*product.Process
	v1.KeeperServiceClient
	fleet   *Fleet
	name    string
	at      string
	pin     member.Pin
	key     ed25519.PrivateKey
	says    *v1.KeeperStatement
	members []*insider
}

// insider is a member whose key the attack knows, so that it can check the opened sums.
type insider struct {
	name string
	key  mask.Key
	day  int64 // the day of the key
}

// hidden is a masked result together with the numbers that it hides.
type hidden struct {
	*v1.MaskedResult
	x, y []uint64
}

// lyingVault starts a keeper that accepts our server, with members that have invitations. Settings
// are lines that replace those of keeper.yaml.
func (f *Fleet) lyingVault(ctx context.Context, name string, members int, settings ...string) *vault {
	public, key := must2(ed25519.GenerateKey(nil))
	v := f.vault(ctx, name, append([]string{fmt.Sprintf("servers: [%s]", member.PinOf(public))}, settings...)...)
	v.know(ctx, key)
	for i := range members {
		code := v.invite(ctx, 1)
		in := &insider{fmt.Sprintf("agent-%02d", i), mask.NewKey(), mask.Day(time.Now())}
		check(v.enrol(ctx, in, code))
		v.members = append(v.members, in)
	}
	return v
}

// vault creates the folder of a keeper and starts the keeper.
func (f *Fleet) vault(ctx context.Context, name string, settings ...string) *vault {
	v := &vault{fleet: f, name: name, at: must(testkit.FreeAddress())}
	pin := must(run(ctx, f.bin, nil, "keeper", "init", "--dir", f.path(name), "--fleet", keptFleet))
	v.pin = must(member.ParsePin(pin))
	usual := []string{"listen: " + v.at, fmt.Sprint("least: ", keptLeast), fmt.Sprint("quorum: ", keptQuorum), "age: 0s"}
	v.set(append(usual, settings...)...)
	check(v.start(ctx))
	return v
}

// set replaces lines in the keeper's settings.
func (v *vault) set(settings ...string) {
	path := filepath.Join(v.fleet.path(v.name), "keeper.yaml")
	text := must(os.ReadFile(path))
	lines := strings.Split(string(text), "\n")
	for _, s := range settings {
		key, _, _ := strings.Cut(s, ":")
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, key+":") })
		if i < 0 {
			check(fmt.Errorf("keeper.yaml has no %s", key))
		}
		lines[i] = s
	}
	check(os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
}

// start starts the keeper, even after a kill, and waits until it responds.
func (v *vault) start(ctx context.Context) (err error) {
	if v.Process, err = v.fleet.start(v.name, "keeper", "run", "--dir", v.fleet.path(v.name)); err != nil {
		return err
	}
	ok, err := product.Eventually(ctx, 30*time.Second, func() (bool, error) {
		select {
		case <-v.Done():
			return false, fmt.Errorf("keeper run: %w: %s", product.ErrEnded, product.LastLine(v.Log()))
		default:
		}
		c, err := net.Dial("tcp", v.at)
		if err != nil {
			return false, nil
		}
		if err := c.Close(); err != nil || v.KeeperServiceClient == nil {
			return err == nil, err
		}
		_, err = v.State(ctx, &v1.KeeperStateRequest{}) // the previous connection may still be in use
		return err == nil, nil
	})
	if err == nil && !ok {
		err = errors.New("the keeper does not start")
	}
	return err
}

// again kills the keeper and restarts it.
func (v *vault) again(ctx context.Context) {
	check(v.Kill())
	check(v.start(ctx))
}

// know connects to the keeper with the key of its server, and reads the keeper's statement.
func (v *vault) know(ctx context.Context, key ed25519.PrivateKey) {
	v.key = key
	config := must(mtls.Pinned(key, func(sha [32]byte) bool { return sha == v.pin }))
	transport := mtls.Transport(config)
	v.fleet.later(func() error { transport.CloseIdleConnections(); return nil })
	v.KeeperServiceClient = v1.NewKeeperServiceClient(mtls.Client(transport), "https://"+v.at)
	a := must(v.State(ctx, &v1.KeeperStateRequest{}))
	v.says = must(member.ReadStatement(must(proto.Marshal(a.Statement))))
}

// copied starts another keeper on a copy of the folder. It does not know what the first one
// releases from now on, like a keeper without the rule that it releases only once.
func (v *vault) copied(ctx context.Context, name string) *vault {
	check(v.Kill())
	c := *v
	c.name, c.KeeperServiceClient = name, nil
	check(os.Mkdir(v.fleet.path(name), 0o700))
	files := must(os.ReadDir(v.fleet.path(v.name)))
	for _, e := range files {
		if e.Type()&fs.ModeType != 0 {
			continue // the socket
		}
		data := must(os.ReadFile(filepath.Join(v.fleet.path(v.name), e.Name())))
		check(os.WriteFile(filepath.Join(v.fleet.path(name), e.Name()), data, 0o600))
	}
	c.at = must(testkit.FreeAddress())
	c.set("listen: " + c.at)
	check(errors.Join(v.start(ctx), c.start(ctx)))
	c.know(ctx, v.key)
	return &c
}

// people runs a command as the keeper's administrators do.
func (v *vault) people(ctx context.Context, args ...string) (string, error) {
	return run(ctx, v.fleet.bin, nil, append(append([]string{"keeper"}, args...), "--dir", v.fleet.path(v.name))...)
}

func (v *vault) invite(ctx context.Context, uses int) member.Code {
	return must(member.ParseCode(must(v.people(ctx, "invite", "--uses", fmt.Sprint(uses)))))
}

// enrol seals a member's key and forwards it. A refusal is an error that contains its rule.
func (v *vault) enrol(ctx context.Context, in *insider, code member.Code) error {
	sealed, err := member.Seal(v.says, in.name, &in.key, in.day, code)
	if err != nil {
		return err
	}
	return v.pass(ctx, in.name, sealed)
}

// pass forwards a seal under a name.
func (v *vault) pass(ctx context.Context, name string, sealed []byte) error {
	a, err := v.Enrol(ctx, &v1.KeeperEnrolRequest{Fleet: keptFleet, Enrolments: []*v1.KeeperEnrolment{{Agent: name, Sealed: sealed}}})
	if err != nil {
		return err
	}
	if len(a.Receipts) != 1 {
		return fmt.Errorf("the keeper answers %d of 1 enrolments", len(a.Receipts))
	}
	return refusedReceipt(a.Receipts[0])
}

// refusal is a refusal of an enrolment.
type refusal struct{ rule, reason string }

func (r *refusal) Error() string { return "rule " + r.rule + ": " + r.reason }

// refusedReceipt returns the refusal in a receipt, or nil.
func refusedReceipt(r *v1.Receipt) error {
	if r.Refused == "" {
		return nil
	}
	rule, reason, _ := strings.Cut(strings.TrimPrefix(r.Refused, "rule "), ": ")
	return &refusal{rule, reason}
}

// ruleOf returns the rule by which a keeper refused a call, or an empty string.
func ruleOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.rule
	}
	wire := (*connect.Error)(nil)
	if !errors.As(err, &wire) {
		return ""
	}
	for _, d := range wire.Details() {
		if x, err := d.Value(); err == nil {
			if r, ok := x.(*v1.KeeperRefusal); ok {
				return r.Rule
			}
		}
	}
	return ""
}

// attempt is a call that a keeper must refuse by a given rule.
type attempt struct {
	what, rule string
	call       func() error
}

// refusals carries out attempts. The result is the first attempt that is not refused. A refusal by
// another rule is an error, because the attempt then does not test its own rule.
func refusals(all []attempt) (broken *Result, err error) {
	for _, a := range all {
		err := a.call()
		switch rule := ruleOf(err); {
		case err == nil:
			r := succeeded("%s: not refused", a.what)
			return &r, nil
		case rule != a.rule:
			return nil, fmt.Errorf("%s: want a refusal by rule %s, got: %w", a.what, a.rule, err)
		}
	}
	return nil, nil
}

// rulesOf lists the rules of attempts without repetitions.
func rulesOf(all []attempt) string {
	var rules []string
	for _, a := range all {
		if !slices.Contains(rules, a.rule) {
			rules = append(rules, a.rule)
		}
	}
	return strings.Join(rules, ", ")
}

// round returns the description for which results are masked, according to the server. The
// limits are above the norms of hide.
func (v *vault) round(run string, number int64, check string) *v1.MaskedRound {
	const length, limit = 64, 1 << 24
	return &v1.MaskedRound{
		Fleet: keptFleet, Run: run, Round: number, Version: number, Plan: "plan", Weights: fmt.Sprint("weights-", number), Length: length, Day: mask.Day(time.Now()), Homes: 100,
		Terms:  &v1.PrivacyTerms{Check: check, Robust: "none", Keepers: [][]byte{v.pin[:]}},
		Limits: []*v1.MaskBlock{{Length: length, Limit: limit}}, Clip: &v1.Limits{Norm: 1},
	}
}

// seed returns the seed of a result's mask.
func (in *insider) seed(c *mask.Context, day int64, nonce mask.Nonce) mask.Seed {
	key := in.key
	for range day - in.day {
		key = key.Next()
	}
	return key.Seed(c, nonce)
}

// hide masks random numbers, as an agent that believes the server does.
func (v *vault) hide(in *insider, q *v1.MaskedRound, part int64) *hidden {
	nonce := mask.NewNonce()
	h := &hidden{MaskedResult: &v1.MaskedResult{Agent: in.name, Part: part, Clients: 1, Nonce: nonce[:]}}
	for range q.Length {
		h.x = append(h.x, uint64(rand.Int64N(1<<21)-1<<20))
	}
	h.y = slices.Clone(h.x)
	c := member.Context(v.says, q)
	member.Of(c, h.MaskedResult)
	seed := in.seed(c, q.Day, nonce)
	seed.Add(h.y)
	return h
}

// hideAll returns a result from each of the given members.
func (v *vault) hideAll(members []*insider, q *v1.MaskedRound) (all []*hidden) {
	for _, in := range members {
		all = append(all, v.hide(in, q, 0))
	}
	return all
}

// open requests the masks of results from the keeper, and subtracts them from the results'
// sum.
func (v *vault) open(ctx context.Context, q *v1.MaskedRound, all []*hidden) ([]uint64, error) {
	r := &v1.KeeperReleaseRequest{Round: q}
	sum := make([]uint64, q.Length)
	for _, h := range all {
		r.Results = append(r.Results, h.MaskedResult)
		for i, y := range h.y {
			sum[i] += y
		}
	}
	slices.SortFunc(r.Results, func(a, b *v1.MaskedResult) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Part, b.Part))
	})
	a, err := v.Release(ctx, r)
	if err != nil {
		return nil, err
	}
	if int64(len(a.Masks)) != 8*q.Length {
		return nil, fmt.Errorf("the keeper answers with %d bytes", len(a.Masks))
	}
	for i := range sum {
		sum[i] -= binary.LittleEndian.Uint64(a.Masks[8*i:])
	}
	return sum, nil
}

// opens is like open, but returns no sum. Attempts use it.
func (v *vault) opens(ctx context.Context, q *v1.MaskedRound, all []*hidden) func() error {
	return func() error { _, err := v.open(ctx, q, all); return err }
}

// judge asks the keeper about the norms of results, as servers do.
func (v *vault) judge(ctx context.Context, q *v1.MaskedRound, all []*hidden) ([]bool, error) {
	state, err := v.State(ctx, &v1.KeeperStateRequest{Fleet: keptFleet, Run: q.Run})
	if err != nil {
		return nil, err
	}
	seed, r := mask.Seed(state.Directions), &v1.KeeperCheckRequest{Round: q}
	for _, h := range all {
		x, y := &v1.CheckedResult{Result: h.MaskedResult}, h.y
		for _, b := range q.Limits {
			p := seed.Products(y[:b.Length])
			x.Products, y = append(x.Products, p[:]...), y[b.Length:]
		}
		r.Results = append(r.Results, x)
	}
	a, err := v.Check(ctx, r)
	if err == nil && len(a.Accepted) != len(all) {
		err = fmt.Errorf("the keeper judges %d of %d results", len(a.Accepted), len(all))
	}
	return a.GetAccepted(), err
}

// plainSum returns the sum that open must find.
func plainSum(all []*hidden) []uint64 {
	sum := make([]uint64, len(all[0].x))
	for _, h := range all {
		for i, x := range h.x {
			sum[i] += x
		}
	}
	return sum
}

func minus(x, y []uint64) []uint64 {
	d := slices.Clone(x)
	for i := range d {
		d[i] -= y[i]
	}
	return d
}
