package keeper

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	v1 "loadstar/proto/loadstar/v1"
)

// add adds a message to a fuzz target's corpus.
func add(f *testing.F, m proto.Message) {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
}

// refusedOr fails unless err is nil or a refusal, because no request may make a keeper fail.
func refusedOr(t *testing.T, err error) {
	t.Helper()
	if refused := (*Refusal)(nil); err != nil && !errors.As(err, &refused) {
		t.Error(err)
	}
}

func FuzzEnrol(f *testing.F) {
	w := newWorld(f, 60, 1, testRules())
	w.fleet(6)
	k := w.keepers[0]
	key := mask.NewKey()
	sealed, err := member.Seal(k.Statement(), "a", &key, mask.Day(w.clock), member.NewCode())
	if err != nil {
		f.Fatal(err)
	}
	add(f, &v1.KeeperEnrolRequest{Fleet: "fleet", Enrolments: []*v1.KeeperEnrolment{{Agent: "a", Sealed: sealed}, {Agent: "agent-0001", Sealed: sealed}, {}}})
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &v1.KeeperEnrolRequest{}
		if proto.Unmarshal(data, q) != nil {
			return
		}
		a, err := k.Enrol(q)
		refusedOr(t, err)
		for i, r := range a.GetReceipts() {
			if r.Refused == "" {
				t.Errorf("%q is a member without an invitation", q.Enrolments[i].GetAgent())
			}
		}
		if len(k.Members()) != 6 {
			t.Error("there are other members")
		}
	})
}

func FuzzCheck(f *testing.F) {
	w := newWorld(f, 61, 1, testRules())
	w.fleet(6)
	k := w.keepers[0]
	q := w.normRound("run", 0, 40)
	add(f, &v1.KeeperCheckRequest{Round: q, Results: []*v1.CheckedResult{
		w.checked(k, q, w.pushOf(w.agents[0], q, 0, w.norm(40, testLimit/2))),
		w.checked(k, q, w.pushOf(w.agents[1], q, 0, w.norm(40, 3*testLimit))),
	}})
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &v1.KeeperCheckRequest{}
		if proto.Unmarshal(data, q) != nil {
			return
		}
		a, err := k.Check(q)
		refusedOr(t, err)
		b, again := k.Check(q)
		refusedOr(t, again)
		if err == nil && (again != nil || !slices.Equal(a.Accepted, b.Accepted) || !slices.Equal(a.Products, b.Products)) {
			t.Errorf("the same request had %v and %v, %v", a, b, again)
		}
	})
}

func FuzzRelease(f *testing.F) {
	w := newWorld(f, 62, 1, testRules())
	w.fleet(6)
	k := w.keepers[0]
	for round := range int64(3) {
		q := w.round("run", round, 4)
		add(f, request(q, everybody(w, q)))
		add(f, request(q, everybody(w, q)[1:]))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &v1.KeeperReleaseRequest{}
		if proto.Unmarshal(data, q) != nil {
			return
		}
		a, err := k.Release(q)
		if refusedOr(t, err); err != nil {
			return
		}
		agents := map[string]bool{}
		for _, r := range q.Results {
			agents[r.Agent] = true
		}
		if int64(len(agents)) < testRules().Least || int64(len(a.Masks)) != 8*q.Round.Length {
			t.Errorf("released %d bytes for %d agents", len(a.Masks), len(agents))
		}
		other := proto.CloneOf(q)
		other.Results[0].Nonce[0]++
		if _, err := k.Release(other); err == nil {
			t.Error("released a round twice")
		}
		if b, err := k.Release(q); err != nil || !slices.Equal(a.Masks, b.Masks) {
			t.Errorf("another answer: %v", err)
		}
	})
}
