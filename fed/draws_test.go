package fed

import (
	"fmt"
	"slices"
	"testing"
)

// first returns the beginning of a turn's sequence.
func first(d Draws, purpose string, t Task, c ClientID) (all [4]uint64) {
	r := d.Turn(purpose, &t, c)
	for i := range all {
		all[i] = r.Uint64()
	}
	return all
}

// TestSecretDraws checks that equal tasks give equal draws, and that changing anything on which
// training depends changes the draws. Without the key the draws cannot be reproduced.
func TestSecretDraws(t *testing.T) {
	task := Task{Run: "run", Round: 3, Version: 2, Shared: []float32{1, 2, 3}, Limits: Limits{Norm: 1, Examples: 9}}
	secret := &Secret{Key: [32]byte{1}, Plan: [32]byte{2}}
	want := first(secret, "train", task, "a")
	again := task
	again.Shared = slices.Clone(task.Shared)
	if first(&Secret{Key: [32]byte{1}, Plan: [32]byte{2}}, "train", again, "a") != want {
		t.Error("the same task has other draws")
	}
	seen := map[[4]uint64]string{want: "the task"}
	other := func(what string, got [4]uint64) {
		t.Helper()
		if was, ok := seen[got]; ok {
			t.Errorf("%s has the draws of %s", what, was)
		}
		seen[got] = what
	}
	for what, change := range map[string]func(*Task){
		"another run":      func(t *Task) { t.Run = "run2" },
		"another round":    func(t *Task) { t.Round = 4 },
		"another version":  func(t *Task) { t.Version = 3 },
		"another weight":   func(t *Task) { t.Shared = []float32{1, 2, 3.0000002} },
		"one more weight":  func(t *Task) { t.Shared = []float32{1, 2, 3, 0} },
		"control variates": func(t *Task) { t.Control = []float32{1} },
		"another limit":    func(t *Task) { t.Limits.Norm = 2 },
	} {
		changed := task
		change(&changed)
		other(what, first(secret, "train", changed, "a"))
	}
	other("another client", first(secret, "train", task, "b"))
	other("another purpose", first(secret, "loss", task, "a"))
	other("another plan", first(&Secret{Key: [32]byte{1}, Plan: [32]byte{3}}, "train", task, "a"))
	other("another agent", first(&Secret{Key: [32]byte{4}, Plan: [32]byte{2}}, "train", task, "a"))
	other("no key", first(&Secret{Plan: [32]byte{2}}, "train", task, "a"))
	for seed := range Seeded(100) {
		other(fmt.Sprint("seed ", seed), first(seed, "train", task, "a"))
	}
}

// TestDivision checks that a division stays the same in all rounds of a run, and differs
// between clients and runs.
func TestDivision(t *testing.T) {
	secret := &Secret{Key: [32]byte{1}}
	draw := func(task Task, n int, c ClientID) uint64 { return secret.Division(&task, n, c).Uint64() }
	want := draw(Task{Run: "run", Round: 1, Shared: []float32{1}}, 9, "a")
	if draw(Task{Run: "run", Round: 2, Shared: []float32{2}}, 9, "a") != want {
		t.Error("another round has another division")
	}
	for what, got := range map[string]uint64{
		"run": draw(Task{Run: "run2"}, 9, "a"), "client": draw(Task{Run: "run"}, 9, "b"), "number of examples": draw(Task{Run: "run"}, 8, "a"),
	} {
		if got == want {
			t.Errorf("another %s has the same division", what)
		}
	}
}
