package keeper

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"loadstar/fed/mask"
	"loadstar/fed/member"
)

// TestSealingKeyGoes checks that two days later, the content of the keeper's folder cannot
// decrypt a recorded enrolment, from which the member's keys of all later days could be
// computed.
func TestSealingKeyGoes(t *testing.T) {
	w := newWorld(t, 61, 1, testRules())
	k := w.keepers[0]
	private := slices.Clone(k.ring.sealing[member.SealingID(k.Statement().SealingKey)].Key)
	there := func() bool {
		files, err := filepath.Glob(filepath.Join(k.dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(files, func(path string) bool {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Contains(data, private) || bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString(private)))
		})
	}
	first := k.Statement()
	w.fleet(6) // a day passes
	if !there() {
		t.Fatal("the search does not find the key, so this test shows nothing")
	}
	if err := k.Rotate(); err != nil {
		t.Fatal(err)
	}
	next := k.Statement()
	if bytes.Equal(first.SealingKey, next.SealingKey) || first.Number != next.Number {
		t.Errorf("on the next day: statement %d with the same key %v, want number %d with another", next.Number, bytes.Equal(first.SealingKey, next.SealingKey), first.Number)
	}
	// The keeper can still decrypt an enrolment that was sent before.
	key := mask.NewKey()
	code, err := k.Invite(1, w.clock.Add(time.Hour), "")
	if err != nil {
		t.Fatal(err)
	}
	k.Keeper.current = first
	r, err := k.enrolOne("late", &key, mask.Day(w.clock), code)
	k.Keeper.current = next
	if err != nil || r.Refused != "" {
		t.Error("late: ", r, err)
	}
	w.clock = w.clock.Add(24 * time.Hour)
	if err := k.Rotate(); err != nil {
		t.Fatal(err)
	}
	if there() {
		t.Error("two days after the enrolment its key is still in the folder")
	}
	if got := k.Statement(); bytes.Equal(got.SealingKey, first.SealingKey) {
		t.Error("the key is in use again")
	}
}

// TestQuietKeeper lets nobody call a keeper for more than a day. The key for its enrolments is
// replaced, and a round that was masked before the next call can still be released.
func TestQuietKeeper(t *testing.T) {
	w := newWorld(t, 1, 1, testRules())
	w.fleet(6)
	w.clock = w.clock.Add(20 * time.Hour) // two days after the enrolments
	k := w.keepers[0]
	before := k.Statement()
	q := w.round("run", 0, 4)
	all := everybody(w, q)
	if sum, err := w.open(q, all); err != nil || !slices.Equal(sum, plain(q, all)) {
		t.Errorf("%v, %v, want %v", sum, err, plain(q, all))
	}
	if now := k.Statement(); now.Number != before.Number || bytes.Equal(now.SealingKey, before.SealingKey) {
		t.Errorf("the statement had the number %d, and has %d; the key for enrolments is the same: %t", before.Number, now.Number, bytes.Equal(now.SealingKey, before.SealingKey))
	}
}
