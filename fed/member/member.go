// Package member contains the messages about masks that agents, servers and keepers exchange,
// and the bounds on their values: the statement that a keeper signs, the enrolment of a member,
// and the answers of a keeper. Statements and answers are signed with the keeper's identity, an
// Ed25519 key that agents and servers pin by its SHA-256 hash ([Pin]). Everything decoded here
// is bounded and checked.
package member

import (
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	v1 "loadstar/proto/loadstar/v1"
)

// Bounds on the values that keepers and agents accept.
const (
	MaxName      = 128
	MaxLength    = 1 << 20 // numbers in a vector
	MaxBlocks    = 6
	MaxKeepers   = 8
	MaxResults   = 200_000 // results in a release
	MaxChecked   = 256     // results in one call
	MaxEnrolled  = 64      // likewise
	MaxParts     = 1 << 16 // results of an agent in a round
	maxStatement = 8 << 10
	maxClients   = 1 << 20
)

// Pin identifies a keeper or a server by the SHA-256 hash of its Ed25519 key.
type Pin [32]byte

// PinOf returns the pin of a public key.
func PinOf(key ed25519.PublicKey) Pin { return sha256.Sum256(key) }

// String returns the pin in the format that users copy.
func (p Pin) String() string { return "sha256:" + hex.EncodeToString(p[:]) }

// LogValue makes JSON logs use the same format.
func (p Pin) LogValue() slog.Value { return slog.StringValue(p.String()) }

// ParsePin parses the output of [Pin.String].
func ParsePin(s string) (p Pin, err error) {
	text, found := strings.CutPrefix(strings.TrimSpace(s), "sha256:")
	b, err := hex.DecodeString(text)
	if !found || err != nil || len(b) != len(p) {
		return p, fmt.Errorf("%q is not an identity: want sha256: and %d hexadecimal digits", s, 2*len(p))
	}
	return Pin(b), nil
}

// signed returns the bytes that a signature covers. Each part is preceded by its length, so the
// encoding is unambiguous.
func signed(purpose string, parts ...[]byte) []byte {
	b := append([]byte("loadstar/v1/"), purpose...)
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}

// SignStatement returns an encoded SignedStatement. The statement's identity must be that of
// the key.
func SignStatement(s *v1.KeeperStatement, key ed25519.PrivateKey) ([]byte, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&v1.SignedStatement{Statement: text, Signature: ed25519.Sign(key, signed("statement", text))})
}

// ReadStatement decodes a SignedStatement, and checks its signature and its numbers. The caller
// must check the pin and the date with [Valid].
func ReadStatement(data []byte) (*v1.KeeperStatement, error) {
	if len(data) > maxStatement {
		return nil, fmt.Errorf("the statement has %d bytes, more than %d", len(data), maxStatement)
	}
	var outer v1.SignedStatement
	if err := proto.Unmarshal(data, &outer); err != nil {
		return nil, fmt.Errorf("the statement cannot be read: %w", err)
	}
	var s v1.KeeperStatement
	if err := proto.Unmarshal(outer.Statement, &s); err != nil {
		return nil, fmt.Errorf("the statement cannot be read: %w", err)
	}
	if len(s.Identity) != ed25519.PublicKeySize || !ed25519.Verify(s.Identity, signed("statement", outer.Statement), outer.Signature) {
		return nil, errors.New("the statement's signature is wrong")
	}
	if !validName(s.Fleet) {
		return nil, errors.New("the statement names no fleet")
	}
	if _, err := kem.NewPublicKey(s.SealingKey); err != nil {
		return nil, fmt.Errorf("the statement's sealing key: %w", err)
	}
	return &s, CheckRules(s.Rules)
}

// Valid returns an error if a statement is not from the keeper with the given pin, or has
// expired.
func Valid(s *v1.KeeperStatement, pin Pin, now time.Time) error {
	if got := PinOf(s.Identity); got != pin {
		return fmt.Errorf("the statement is of keeper %s, want %s", got, pin)
	}
	if end := time.Unix(s.NotAfter, 0); now.After(end) {
		return fmt.Errorf("the keeper's statement expired on %s", end.UTC().Format(time.RFC3339))
	}
	return nil
}

// leastLeast is the lowest permitted minimum number of agents in a sum, because the sum of a
// single result would be that result.
const leastLeast = 2

// CheckRules returns an error for rules that a keeper must not have.
func CheckRules(r *v1.KeeperRules) error {
	switch {
	case r == nil:
		return errors.New("the keeper states no rules")
	case r.Least < leastLeast || r.Least > MaxResults:
		return fmt.Errorf("the rule least is %d, want %d to %d", r.Least, leastLeast, MaxResults)
	case r.Quorum < 0 || r.Quorum > 1000:
		return fmt.Errorf("the rule quorum is %d thousandths, want 0 to 1000", r.Quorum)
	case r.Cell < 2 || r.Cell > MaxResults:
		return fmt.Errorf("the rule cell is %d members, want 2 to %d", r.Cell, MaxResults)
	case r.Age < 0 || r.Age > 365*86400:
		return fmt.Errorf("the rule age is %d s, want 0 to a year", r.Age)
	}
	return nil
}

func validName(s string) bool { return s != "" && len(s) <= MaxName }

// Terms returns the terms of a run with one of its keepers.
func Terms(s *v1.KeeperStatement, p *v1.PrivacyTerms) mask.Terms {
	t := mask.Terms{
		Identity: PinOf(s.Identity), Number: s.Number, Least: s.Rules.Least, Quorum: s.Rules.Quorum, Cell: s.Rules.Cell, Age: s.Rules.Age, Invited: s.Rules.Invited,
		PlanLeast: p.Least, PlanQuorum: p.Quorum, Check: p.Check, Robust: p.Robust,
	}
	for _, k := range p.Keepers {
		t.Keepers = append(t.Keepers, pinBytes(k))
	}
	return t
}

// pinBytes converts a pin. A pin of the wrong length is replaced with its hash, which differs
// from every pin.
func pinBytes(b []byte) [32]byte {
	if len(b) == 32 {
		return [32]byte(b)
	}
	return sha256.Sum256(b)
}

// Blocks converts a round's limits.
func Blocks(limits []*v1.MaskBlock) []mask.Block {
	b := make([]mask.Block, len(limits))
	for i, l := range limits {
		b[i] = mask.Block{Length: l.GetLength(), Limit: l.GetLimit()}
	}
	return b
}

// Clip converts a task's limits.
func Clip(l *v1.Limits) mask.Clip {
	return mask.Clip{Norm: l.GetNorm(), Control: l.GetControl(), Loss: l.GetLoss(), Coordinate: l.GetCoordinate(), Examples: l.GetExamples()}
}

// Context returns the description of a round whose results are masked. Rounds and results must
// have been checked ([CheckRound], [CheckResult]).
func Context(s *v1.KeeperStatement, q *v1.MaskedRound) *mask.Context {
	terms := Terms(s, q.Terms)
	return &mask.Context{
		Fleet: q.Fleet, Run: q.Run, Round: q.Round, Version: q.Version, Plan: q.Plan, Weights: q.Weights, Control: q.Control,
		Length: q.Length, Day: q.Day, Homes: q.Homes, Terms: terms.Hash(), Limits: mask.Limits(Clip(q.Clip), Blocks(q.Limits)),
	}
}

// Of sets the fields of a context that describe a result.
func Of(c *mask.Context, r *v1.MaskedResult) { c.Agent, c.Part, c.Clients = r.Agent, r.Part, r.Clients }

// CheckRound returns an error for a round that is impossible for every plan.
func CheckRound(q *v1.MaskedRound) error {
	switch {
	case !validName(q.GetFleet()) || !validName(q.Run) || !validName(q.Plan) || !validName(q.Weights) || len(q.Control) > MaxName:
		return fmt.Errorf("a round needs a fleet, a run, a plan and weights, with names of 1 to %d bytes", MaxName)
	case q.Round < 0 || q.Version < 0:
		return fmt.Errorf("round %d of version %d: want numbers from 0", q.Round, q.Version)
	case q.Homes < 1 || q.Homes > math.MaxInt32:
		return fmt.Errorf("a run of %d clients", q.Homes)
	case q.Length < 1 || q.Length > MaxLength:
		return fmt.Errorf("a vector has %d numbers; want 1 to %d", q.Length, MaxLength)
	}
	if err := checkTerms(q.Terms); err != nil {
		return err
	}
	return checkLimits(q)
}

// checkTerms returns an error for privacy settings that are impossible for every plan.
func checkTerms(t *v1.PrivacyTerms) error {
	switch {
	case t == nil || t.Least < 0 || t.Quorum < 0 || t.Quorum > 1000:
		return errors.New("a round needs the plan's privacy keys, with a quorum of at most 1000 thousandths")
	case t.Check != "none" && t.Check != "norm":
		return fmt.Errorf("check is %q, want none or norm", t.Check)
	case t.Robust != "none" && (t.Robust != "nearest" || t.Check != "norm"):
		return fmt.Errorf("robust is %q with check %s, want none, or nearest with check norm", t.Robust, t.Check)
	case len(t.Keepers) < 1 || len(t.Keepers) > MaxKeepers:
		return fmt.Errorf("%d keepers, want 1 to %d", len(t.Keepers), MaxKeepers)
	}
	for i, k := range t.Keepers {
		if len(k) != len(Pin{}) || i > 0 && string(t.Keepers[i-1]) >= string(k) {
			return errors.New("the keepers are not ascending identities")
		}
	}
	return nil
}

// checkLimits returns an error for limits that do not cover a round's vector.
func checkLimits(q *v1.MaskedRound) error {
	if len(q.Limits) < 1 || len(q.Limits) > MaxBlocks {
		return fmt.Errorf("%d limits, want 1 to %d", len(q.Limits), MaxBlocks)
	}
	var length int64
	for _, b := range q.Limits {
		if b.GetLength() < 1 || b.Length > MaxLength || b.Limit < 0 || b.Limit > 1<<62 {
			return fmt.Errorf("a limit of %d for %d numbers", b.GetLimit(), b.GetLength())
		}
		length += b.Length
	}
	if length != q.Length {
		return fmt.Errorf("the limits cover %d of %d numbers", length, q.Length)
	}
	return nil
}

// CheckResult returns an error for a result that is impossible for every agent.
func CheckResult(r *v1.MaskedResult) error {
	if !validName(r.GetAgent()) || r.Part < 0 || r.Part >= MaxParts || r.Clients < 1 || r.Clients > maxClients || len(r.Nonce) != len(mask.Nonce{}) {
		return fmt.Errorf("a result of agent %.40q, part %d, %d clients, with a nonce of %d bytes", r.GetAgent(), r.GetPart(), r.GetClients(), len(r.GetNonce()))
	}
	return nil
}

var (
	kem      = hpke.MLKEM768X25519()
	codeText = base32.StdEncoding.WithPadding(base32.NoPadding)
)

// Code is an invitation. The zero value means that there is none.
type Code [15]byte

// NewCode returns a random invitation.
func NewCode() (c Code) {
	_, _ = rand.Read(c[:]) // never fails
	return c
}

// String returns the invitation in the format that users copy: six groups of four letters and
// digits.
func (c Code) String() string {
	text := codeText.EncodeToString(c[:])
	var groups []string
	for len(text) > 0 {
		groups, text = append(groups, text[:4]), text[4:]
	}
	return strings.Join(groups, "-")
}

// ParseCode reads an invitation. Case, spaces and hyphens do not matter.
func ParseCode(s string) (c Code, err error) {
	text := strings.NewReplacer("-", "", " ", "", "\n", "", "\r", "").Replace(strings.ToUpper(s))
	b, err := codeText.DecodeString(text)
	if err != nil || len(b) != len(c) || len(text) != codeText.EncodedLen(len(c)) {
		return c, errors.New("this is not an invitation: want six groups of four letters and digits")
	}
	return Code(b), nil
}

// NewSealingKey returns a new HPKE key and its public part.
func NewSealingKey() (private, public []byte, err error) {
	k, err := kem.GenerateKey()
	if err != nil {
		return nil, nil, err
	}
	if private, err = k.Bytes(); err != nil {
		return nil, nil, err
	}
	return private, k.PublicKey().Bytes(), nil
}

// enrolled is the number of bytes in a sealed enrolment: key, day and invitation.
const enrolled = 32 + 8 + len(Code{})

func enrolInfo(fleet, agent string, pin Pin) []byte {
	return signed("enrol", []byte(fleet), []byte(agent), pin[:])
}

// Seal returns an agent's enrolment: its key for a day and its invitation, sealed for the
// keeper that signed the statement.
func Seal(s *v1.KeeperStatement, agent string, k *mask.Key, day int64, code Code) ([]byte, error) {
	to, err := kem.NewPublicKey(s.SealingKey)
	if err != nil {
		return nil, err
	}
	text := binary.LittleEndian.AppendUint64(k[:len(k):len(k)], uint64(day))
	text = append(text, code[:]...)
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), enrolInfo(s.Fleet, agent, PinOf(s.Identity)), text)
	if err != nil {
		return nil, err
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(SealingID(s.SealingKey))), sealed...), nil
}

// SealingID returns the identifier of a sealing key in enrolments.
func SealingID(public []byte) int64 {
	sum := sha256.Sum256(public)
	return int64(binary.LittleEndian.Uint64(sum[:]))
}

// SealedFor returns the identifier of the sealing key for which an enrolment was sealed.
func SealedFor(sealed []byte) (id int64, ok bool) {
	if len(sealed) != 8+1120+enrolled+16 {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(sealed)), true
}

// Open decrypts an enrolment with the private sealing key of the keeper's statement.
func Open(private []byte, fleet, agent string, pin Pin, sealed []byte) (k mask.Key, day int64, code Code, err error) {
	if _, ok := SealedFor(sealed); !ok {
		return k, 0, code, fmt.Errorf("the enrolment has %d bytes", len(sealed))
	}
	key, err := kem.NewPrivateKey(private)
	if err != nil {
		return k, 0, code, err
	}
	text, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), enrolInfo(fleet, agent, pin), sealed[8:])
	if err != nil || len(text) != enrolled {
		return k, 0, code, errors.New("the enrolment cannot be opened: it is damaged, or for another agent or keeper")
	}
	return mask.Key(text[:32]), int64(binary.LittleEndian.Uint64(text[32:])), Code(text[40:]), nil
}

func receipt(k *mask.Key, fleet, agent string, pin Pin, cell, since int64) [32]byte {
	numbers := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(cell)), uint64(since))
	return k.MAC(signed("enrolled", []byte(fleet), []byte(agent), pin[:], numbers))
}

// NewReceipt returns the receipt of an enrolment. k is the key with which the agent enrolled.
func NewReceipt(k *mask.Key, fleet, agent string, pin Pin, cell, since int64) *v1.Receipt {
	mac := receipt(k, fleet, agent, pin, cell, since)
	return &v1.Receipt{Keeper: pin[:], Cell: cell, Since: since, Mac: mac[:]}
}

// ValidReceipt reports whether a receipt is the keeper's receipt for this key.
func ValidReceipt(r *v1.Receipt, k *mask.Key, fleet, agent string, pin Pin) bool {
	mac := receipt(k, fleet, agent, pin, r.GetCell(), r.GetSince())
	return r.GetRefused() == "" && subtle.ConstantTimeCompare(mac[:], r.GetMac()) == 1 && string(r.Keeper) == string(pin[:])
}
