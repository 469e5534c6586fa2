package member

import (
	"bytes"
	"crypto/ed25519"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	v1 "loadstar/proto/loadstar/v1"
)

func keeper(t testing.TB) (s *v1.KeeperStatement, identity ed25519.PrivateKey, sealing []byte) {
	t.Helper()
	public, identity, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sealing, sealed, err := NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	return &v1.KeeperStatement{
		Identity: public, Fleet: "fleet", SealingKey: sealed, Number: 3, NotAfter: 1000,
		Rules: &v1.KeeperRules{Least: 20, Quorum: 700, Cell: 100, Age: 86400, Invited: true},
	}, identity, sealing
}

func TestStatement(t *testing.T) {
	s, identity, _ := keeper(t)
	data, err := SignStatement(s, identity)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadStatement(data)
	if err != nil || !proto.Equal(got, s) {
		t.Fatalf("%v, %v", got, err)
	}
	pin := PinOf(s.Identity)
	if err := Valid(got, pin, time.Unix(1000, 0)); err != nil {
		t.Error(err)
	}
	if Valid(got, pin, time.Unix(1001, 0)) == nil || Valid(got, Pin{}, time.Unix(0, 0)) == nil {
		t.Error("a statement that is over, or of another keeper, is valid")
	}
	for i := range data {
		changed := bytes.Clone(data)
		changed[i] ^= 4
		if got, err := ReadStatement(changed); err == nil && !proto.Equal(got, s) {
			t.Fatalf("a changed byte %d was not noticed", i)
		}
	}
	for name, change := range map[string]func(s *v1.KeeperStatement){
		"least":  func(s *v1.KeeperStatement) { s.Rules.Least = 1 },
		"quorum": func(s *v1.KeeperStatement) { s.Rules.Quorum = 1001 },
		"cell":   func(s *v1.KeeperStatement) { s.Rules.Cell = 0 },
		"age":    func(s *v1.KeeperStatement) { s.Rules.Age = -1 },
		"rules":  func(s *v1.KeeperStatement) { s.Rules = nil },
		"fleet":  func(s *v1.KeeperStatement) { s.Fleet = strings.Repeat("f", MaxName+1) },
		"key":    func(s *v1.KeeperStatement) { s.SealingKey = s.SealingKey[1:] },
	} {
		c := proto.CloneOf(s)
		change(c)
		data, err := SignStatement(c, identity)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadStatement(data); err == nil {
			t.Errorf("%s: accepted %v", name, c)
		}
	}
}

func TestEnrolment(t *testing.T) {
	s, _, sealing := keeper(t)
	pin, key, code := PinOf(s.Identity), mask.NewKey(), NewCode()
	sealed, err := Seal(s, "agent", &key, 17, code)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := SealedFor(sealed); !ok || id != SealingID(s.SealingKey) {
		t.Errorf("sealed for key %d, %v", id, ok)
	}
	k, day, c, err := Open(sealing, "fleet", "agent", pin, sealed)
	if err != nil || k != key || day != 17 || c != code {
		t.Fatal(k, day, c, err)
	}
	for name, open := range map[string]func() error{
		"agent":  func() error { _, _, _, err := Open(sealing, "fleet", "other", pin, sealed); return err },
		"fleet":  func() error { _, _, _, err := Open(sealing, "other", "agent", pin, sealed); return err },
		"keeper": func() error { _, _, _, err := Open(sealing, "fleet", "agent", Pin{}, sealed); return err },
		"short":  func() error { _, _, _, err := Open(sealing, "fleet", "agent", pin, sealed[:8]); return err },
		"damaged": func() error {
			_, _, _, err := Open(sealing, "fleet", "agent", pin, append(sealed[:len(sealed)-1:len(sealed)-1], sealed[len(sealed)-1]^1))
			return err
		},
	} {
		if open() == nil {
			t.Errorf("opened in spite of another %s", name)
		}
	}
	r := NewReceipt(&key, "fleet", "agent", pin, 4, 99)
	if !ValidReceipt(r, &key, "fleet", "agent", pin) {
		t.Error("the receipt is not valid")
	}
	other := mask.NewKey()
	moved := proto.CloneOf(r)
	moved.Since++
	if ValidReceipt(r, &other, "fleet", "agent", pin) || ValidReceipt(r, &key, "fleet", "b", pin) || ValidReceipt(moved, &key, "fleet", "agent", pin) || ValidReceipt(&v1.Receipt{}, &key, "fleet", "agent", pin) {
		t.Error("a wrong receipt is valid")
	}
}

func TestCode(t *testing.T) {
	c := NewCode()
	text := c.String()
	if got, err := ParseCode(" " + strings.ToLower(text) + "\n"); err != nil || got != c {
		t.Errorf("%s is %v, %v", text, got, err)
	}
	if len(text) != 29 {
		t.Errorf("%s has %d characters", text, len(text))
	}
	for _, bad := range []string{"", "AAAA", text + "A", strings.Replace(text, text[:1], "1", 1)} {
		if _, err := ParseCode(bad); err == nil {
			t.Errorf("%q is an invitation", bad)
		}
	}
}

func TestPin(t *testing.T) {
	p := Pin{1, 2, 255}
	if got, err := ParsePin(p.String()); err != nil || got != p {
		t.Error(got, err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("", "keeper", p)
	if !strings.Contains(log.String(), `"keeper":"`+p.String()) {
		t.Errorf("a log has %s", &log)
	}
	for _, bad := range []string{"", "sha256:", p.String()[7:], p.String() + "00", "sha256:" + strings.Repeat("g", 64)} {
		if _, err := ParsePin(bad); err == nil {
			t.Errorf("%q is a pin", bad)
		}
	}
}

func TestAnswer(t *testing.T) {
	s, identity, _ := keeper(t)
	q, a := &v1.KeeperReleaseRequest{Round: &v1.MaskedRound{Run: "r"}}, &v1.KeeperReleaseResponse{Masks: []byte{1}}
	a.Signature = Sign(identity, 5, q, a)
	if err := Verify(s.Identity, q, a); err != nil {
		t.Fatal(err)
	}
	if len(a.Signature.Signature) == 0 {
		t.Error("Verify has changed the answer")
	}
	other := proto.CloneOf(a)
	other.Masks[0]++
	epoch := proto.CloneOf(a)
	epoch.Signature.Epoch++
	none := &v1.KeeperReleaseResponse{Masks: []byte{1}}
	if Verify(s.Identity, q, other) == nil || Verify(s.Identity, q, epoch) == nil || Verify(s.Identity, q, none) == nil || Verify(s.Identity, &v1.KeeperReleaseRequest{}, a) == nil {
		t.Error("a wrong answer verifies")
	}
}

func round() *v1.MaskedRound {
	return &v1.MaskedRound{
		Fleet: "f", Run: "r", Plan: "p", Weights: "w", Length: 5, Day: 7, Homes: 50,
		Clip:   &v1.Limits{Norm: 1, Coordinate: 2},
		Terms:  &v1.PrivacyTerms{Least: 20, Quorum: 700, Check: "norm", Robust: "nearest", Keepers: [][]byte{make([]byte, 32)}},
		Limits: []*v1.MaskBlock{{Length: 3, Limit: 9}, {Length: 2, Limit: 1}},
	}
}

func TestCheckRound(t *testing.T) {
	if err := CheckRound(round()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(q *v1.MaskedRound){
		"fleet":     func(q *v1.MaskedRound) { q.Fleet = "" },
		"long name": func(q *v1.MaskedRound) { q.Run = strings.Repeat("r", MaxName+1) },
		"control":   func(q *v1.MaskedRound) { q.Control = strings.Repeat("r", MaxName+1) },
		"round":     func(q *v1.MaskedRound) { q.Round = -1 },
		"homes":     func(q *v1.MaskedRound) { q.Homes = 0 },
		"length":    func(q *v1.MaskedRound) { q.Length = 6 },
		"too long": func(q *v1.MaskedRound) {
			q.Length, q.Limits = MaxLength+1, []*v1.MaskBlock{{Length: MaxLength + 1, Limit: 1}}
		},
		"terms":       func(q *v1.MaskedRound) { q.Terms = nil },
		"quorum":      func(q *v1.MaskedRound) { q.Terms.Quorum = 1001 },
		"check":       func(q *v1.MaskedRound) { q.Terms.Check = "" },
		"robust":      func(q *v1.MaskedRound) { q.Terms.Check = "none" },
		"no keeper":   func(q *v1.MaskedRound) { q.Terms.Keepers = nil },
		"keeper":      func(q *v1.MaskedRound) { q.Terms.Keepers[0] = nil },
		"keepers":     func(q *v1.MaskedRound) { q.Terms.Keepers = append(q.Terms.Keepers, q.Terms.Keepers[0]) },
		"limit":       func(q *v1.MaskedRound) { q.Limits[0].Limit = -1 },
		"no limit":    func(q *v1.MaskedRound) { q.Limits = nil },
		"nil limit":   func(q *v1.MaskedRound) { q.Limits[0] = nil },
		"empty block": func(q *v1.MaskedRound) { q.Limits[0].Length = 0 },
	} {
		q := round()
		change(q)
		if CheckRound(q) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if CheckRound(nil) == nil || CheckResult(nil) == nil {
		t.Error("accepted nothing")
	}
	good := &v1.MaskedResult{Agent: "a", Clients: 1, Nonce: make([]byte, 16)}
	if err := CheckResult(good); err != nil {
		t.Error(err)
	}
	for name, r := range map[string]*v1.MaskedResult{
		"agent": {Clients: 1, Nonce: good.Nonce}, "clients": {Agent: "a", Nonce: good.Nonce}, "nonce": {Agent: "a", Clients: 1}, "part": {Agent: "a", Clients: 1, Part: -1, Nonce: good.Nonce},
	} {
		if CheckResult(r) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestContext checks that an agent and a keeper compute the same mask from their own documents,
// and that a statement with other rules gives a different mask.
func TestContext(t *testing.T) {
	s, _, _ := keeper(t)
	q, r := round(), &v1.MaskedResult{Agent: "a", Part: 1, Clients: 2}
	c := Context(s, q)
	Of(c, r)
	terms := Terms(s, q.Terms)
	want := mask.Context{
		Fleet: "f", Run: "r", Agent: "a", Plan: "p", Weights: "w", Part: 1, Clients: 2, Length: 5, Day: 7, Homes: 50,
		Terms: terms.Hash(), Limits: mask.Limits(mask.Clip{Norm: 1, Coordinate: 2}, []mask.Block{{Length: 3, Limit: 9}, {Length: 2, Limit: 1}}),
	}
	if *c != want {
		t.Errorf("%+v, want %+v", *c, want)
	}
	s.Rules.Least--
	if got := Context(s, q); got.Terms == c.Terms {
		t.Error("the keeper's rules do not matter")
	}
}

func FuzzStatement(f *testing.F) {
	s, identity, _ := keeper(f)
	data, err := SignStatement(s, identity)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadStatement(data)
		if err != nil {
			return
		}
		if CheckRules(s.Rules) != nil || len(s.Identity) != ed25519.PublicKeySize {
			t.Errorf("accepted %v", s)
		}
		terms := Terms(s, &v1.PrivacyTerms{})
		terms.Hash()
	})
}
