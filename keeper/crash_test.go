package keeper

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

// crash calls do. For each step of a write in do, it returns a keeper that was started from the
// files at that step.
func (w *world) crash(k *station, do func()) (steps []string, after []*station) {
	w.t.Helper()
	k.Keeper.options.gate = func(step string) {
		dir, err := os.MkdirTemp(w.t.TempDir(), "")
		if err != nil {
			w.t.Fatal(err)
		}
		copyFolder(w.t, k.dir, dir)
		steps = append(steps, step)
		after = append(after, &station{dir: dir, options: k.options})
	}
	do()
	k.Keeper.options.gate = nil
	for _, s := range after {
		s.open(w.t)
		w.t.Cleanup(s.close)
	}
	return steps, after
}

// TestCrashRelease kills a keeper at each step of a release. After the restart, the keeper
// answers only one request. If it had already sent an answer, this is the request that it
// answered.
func TestCrashRelease(t *testing.T) {
	w := newWorld(t, 50, 1, testRules())
	w.fleet(8)
	q := w.round("run", 0, 40)
	all := everybody(w, q)
	one, other := request(q, all), request(q, all[1:])
	var answer *v1.KeeperReleaseResponse
	if err := w.keepers[0].Rotate(); err != nil {
		t.Fatal(err)
	}
	steps, after := w.crash(w.keepers[0], func() {
		var err error
		if answer, err = w.keepers[0].Release(one); err != nil {
			t.Fatal(err)
		}
	})
	if got := strings.Join(steps, ", "); got != "before announcement, before release, within release, after release, answer" {
		t.Fatalf("steps: %s", got)
	}
	for i, k := range after {
		recorded := i >= 1 // from here on, the announcement is on disk
		for _, first := range []*v1.KeeperReleaseRequest{other, one, other, one} {
			a, err := k.Release(first)
			if recorded == (first == one) {
				if err != nil {
					t.Fatalf("%s: %v", steps[i], err)
				}
				if first == one && !bytes.Equal(a.Masks, answer.Masks) {
					t.Errorf("%s: another sum", steps[i])
				}
			} else {
				want(t, err, ruleOnce)
			}
		}
	}
}

// TestCrashEnrol kills a keeper at each step of an enrolment. The agent repeats the enrolment,
// and the invitation is used only once.
func TestCrashEnrol(t *testing.T) {
	w := newWorld(t, 51, 1, testRules())
	k := w.keepers[0]
	code, err := k.Invite(1, w.clock.Add(time.Hour), "")
	if err != nil {
		t.Fatal(err)
	}
	key, other := mask.NewKey(), mask.NewKey()
	day := mask.Day(w.clock)
	steps, after := w.crash(k, func() {
		if r, err := k.enrolOne("a", &key, day, code); err != nil || r.Refused != "" {
			t.Fatal(r, err)
		}
	})
	if len(steps) != 3 {
		t.Fatalf("steps: %v", steps)
	}
	for i, k := range after {
		if r, err := k.enrolOne("a", &key, day, code); err != nil || !member.ValidReceipt(r, &key, "fleet", "a", k.Pin()) {
			t.Errorf("%s: %v, %v", steps[i], r, err)
		}
		for _, name := range []string{"a", "b"} {
			if r, err := k.enrolOne(name, &other, day, code); err != nil || r.Refused == "" {
				t.Errorf("%s: the invitation was used twice: %v, %v", steps[i], r, err)
			}
		}
	}
}

// TestCrashCheck kills a keeper at each step of a check. The answer stays the same, and once it
// is on disk, the keeper refuses other products.
func TestCrashCheck(t *testing.T) {
	w := newWorld(t, 52, 1, testRules())
	w.fleet(6)
	k := w.keepers[0]
	q := w.normRound("run", 0, 40)
	r := &v1.KeeperCheckRequest{Round: q, Results: []*v1.CheckedResult{w.checked(k, q, w.pushOf(w.agents[0], q, 0, w.norm(40, testLimit/2)))}}
	steps, after := w.crash(k, func() {
		if a, err := k.Check(r); err != nil || !a.Accepted[0] {
			t.Fatal(a, err)
		}
	})
	if len(steps) != 3 {
		t.Fatalf("steps: %v", steps)
	}
	changed := proto.CloneOf(r)
	changed.Results[0].Products[0]++
	for i, k := range after {
		_, err := k.Check(changed)
		if i < 2 {
			if err != nil {
				t.Errorf("%s: %v", steps[i], err)
			}
			continue
		}
		want(t, err, ruleCheck)
		if a, err := k.Check(r); err != nil || !a.Accepted[0] {
			t.Errorf("%s: %v, %v", steps[i], a, err)
		}
	}
}

// TestCrashRotation kills a keeper at each step of replacing its keys. No key is lost, and old
// keys are removed after the next start.
func TestCrashRotation(t *testing.T) {
	w := newWorld(t, 53, 1, testRules())
	w.fleet(6)
	w.clock = w.clock.Add(48 * time.Hour)
	k := w.keepers[0]
	steps, after := w.crash(k, func() {
		if err := k.Rotate(); err != nil {
			t.Fatal(err)
		}
	})
	if len(steps) < 5 {
		t.Fatalf("steps: %v", steps)
	}
	for i, k := range after {
		w.keepers[0] = k
		q := w.round("run", 0, 10)
		all := everybody(w, q)
		if got, err := w.open(q, all); err != nil || !slices.Equal(got, plain(q, all)) {
			t.Errorf("%s: %v", steps[i], err)
		}
		k.checkNoKeys(t, w.agents, mask.Day(w.clock)-2)
	}
}

// TestRestored restores keeper.db from backups, which contain no keys.
func TestRestored(t *testing.T) {
	rules := testRules()
	w := newWorld(t, 54, 1, rules)
	k := w.keepers[0]
	codes := map[string]member.Code{}
	for i := range 6 {
		name := fmt.Sprint("agent-", i)
		code, err := k.Invite(1, w.clock.Add(time.Hour), "")
		if err != nil {
			t.Fatal(err)
		}
		key := mask.NewKey()
		if r, err := k.enrolOne(name, &key, mask.Day(w.clock), code); err != nil || r.Refused != "" {
			t.Fatal(r, err)
		}
		codes[name] = code
		w.agents = append(w.agents, &agent{name: name, keys: []mask.Key{key}, day: mask.Day(w.clock)})
	}
	w.clock = w.clock.Add(25 * time.Hour)
	backups := make([]string, 4)
	var rounds []*v1.MaskedRound
	var results [][]*push
	for i := range backups {
		dir := t.TempDir()
		copyFolder(t, k.dir, dir)
		backups[i] = filepath.Join(dir, "keeper.db")
		q := w.round("run", int64(i), 10)
		rounds, results = append(rounds, q), append(results, everybody(w, q))
		if _, err := w.open(q, results[i]); err != nil {
			t.Fatal(err)
		}
	}
	restore := func(backup string, keys bool) {
		t.Helper()
		w.clock = w.clock.Add(time.Second)
		_ = k.Keeper.Close() // may already be closed
		data, err := os.ReadFile(backup)
		if err == nil {
			err = os.WriteFile(filepath.Join(k.dir, "keeper.db"), data, 0o600)
		}
		if err == nil && !keys {
			err = os.Remove(filepath.Join(k.dir, "keys.db"))
		}
		if err != nil {
			t.Fatal(err)
		}
		k.open(t)
	}
	number := k.Statement().Number
	// keeper.db lacks one release, which keys.db announces.
	restore(backups[3], true)
	_, err := w.open(rounds[3], results[3][1:])
	want(t, err, ruleOnce)
	if got, err := w.open(rounds[3], results[3]); err != nil || !slices.Equal(got, plain(rounds[3], results[3])) {
		t.Error(err)
	}
	// If more releases or the keys are missing, the keeper cannot compute any earlier mask.
	for _, keys := range []bool{true, false} {
		restore(backups[1], keys)
		for i := 1; i < 4; i++ {
			_, err := w.open(rounds[i], results[i][1:])
			want(t, err, ruleMember)
		}
		if k.Statement().Number <= number {
			t.Error("the statement is the same, so agents do not enrol again")
		}
		number = k.Statement().Number
		// The invitation proves a member's identity.
		a := w.agents[0]
		key := mask.NewKey()
		if r, err := k.enrolOne(a.name, &key, mask.Day(w.clock), codes["agent-1"]); err != nil || r.Refused == "" {
			t.Error("another member's invitation is good: ", r, err)
		}
		for _, a := range w.agents {
			key := mask.NewKey()
			if r, err := k.enrolOne(a.name, &key, mask.Day(w.clock), codes[a.name]); err != nil || r.Refused != "" {
				t.Fatal(r, err)
			}
			a.keys, a.day = []mask.Key{key}, mask.Day(w.clock)
		}
		q := w.round("run", 9, 10)
		all := everybody(w, q)
		if got, err := w.open(q, all); err != nil || !slices.Equal(got, plain(q, all)) {
			t.Error("after everybody has enrolled again: ", err)
		}
	}
}

// TestRestoredKeys restores a keeper.db that lacks releases. Agents enrol again with their old
// keys, which were used in the missing releases.
func TestRestoredKeys(t *testing.T) {
	w := newWorld(t, 56, 1, killedRules())
	k := w.keepers[0]
	enrol := func() {
		t.Helper()
		for _, a := range w.agents {
			if r, err := k.enrolOne(a.name, &a.keys[0], a.day, member.Code{}); err != nil || r.Refused != "" {
				t.Fatal(r, err)
			}
		}
	}
	for i := range 6 {
		w.agents = append(w.agents, &agent{name: fmt.Sprint("agent-", i), keys: []mask.Key{mask.NewKey()}, day: mask.Day(w.clock)})
	}
	enrol()
	backup, err := os.ReadFile(filepath.Join(k.dir, "keeper.db"))
	if err != nil {
		t.Fatal(err)
	}
	var rounds []*v1.MaskedRound
	var results [][]*push
	for i := range int64(3) {
		q := w.round("run", i, 10)
		rounds, results = append(rounds, q), append(results, everybody(w, q))
		if _, err := w.open(q, results[i]); err != nil {
			t.Fatal(err)
		}
	}
	w.clock = w.clock.Add(time.Second)
	k.Keeper.Close()
	if err := os.WriteFile(filepath.Join(k.dir, "keeper.db"), backup, 0o600); err != nil {
		t.Fatal(err)
	}
	k.open(t)
	enrol()
	for i, q := range rounds {
		others := results[i][1:]
		got, err := w.open(q, others)
		if err == nil && slices.Equal(got, plain(q, others)) {
			t.Errorf("round %d is opened for another set of results", i)
		}
	}
	q := w.round("run", 3, 10)
	all := everybody(w, q)
	if got, err := w.open(q, all); err != nil || !slices.Equal(got, plain(q, all)) {
		t.Error("after everybody has enrolled again: ", err)
	}
}

// TestDamage flips bits in the files. The keeper must either fail to open, or give the same
// answers as before.
func TestDamage(t *testing.T) {
	w := newWorld(t, 55, 1, testRules())
	w.fleet(8)
	k := w.keepers[0]
	q := w.round("run", 0, 10)
	all := everybody(w, q)
	one := request(q, all)
	first, err := k.Release(one)
	if err != nil {
		t.Fatal(err)
	}
	k.Keeper.Close()
	opened := 0
	for _, name := range []string{"keeper.db", "keys.db"} {
		whole, err := os.ReadFile(filepath.Join(k.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		flips := testkit.Pick(60, 500)
		for i := range flips {
			dir := t.TempDir()
			copyFolder(t, k.dir, dir)
			data := slices.Clone(whole)
			data[w.rng.IntN(len(data))] ^= 1 << (i % 8)
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := Open(dir, k.options)
			if err != nil {
				continue
			}
			opened++
			if a, err := c.Release(one); err == nil && !bytes.Equal(a.Masks, first.Masks) {
				t.Error("another sum")
			}
			if _, err := c.Release(request(q, all[1:])); err == nil {
				t.Error("a second sum")
			}
			c.Close()
		}
	}
	t.Logf("%d damaged folders could be opened, without another answer", opened)
}

const childVariable = "LOADSTAR_TEST_KEEPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		killed(dir, os.Stdin, os.Stdout)
		return
	}
	code := m.Run()
	if lastLine != "" {
		fmt.Println(lastLine)
	}
	os.Exit(code)
}

// lastLine is the last line that a command of the Makefile prints.
var lastLine string

// killed is the process that TestKilled kills. For each input line, it asks its keeper to
// release a round, and prints the answer.
func killed(dir string, in io.Reader, out io.Writer) {
	k, err := Open(dir, Options{Fleet: "fleet", Rules: killedRules()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pin := k.Pin()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var round, without int64
		if _, err := fmt.Sscan(lines.Text(), &round, &without); err != nil {
			os.Exit(1)
		}
		q := &v1.KeeperReleaseRequest{Round: &v1.MaskedRound{
			Fleet: "fleet", Run: "run", Round: round, Plan: "p", Weights: "w", Length: 4, Day: mask.Day(time.Now()), Homes: killedMembers,
			Terms: &v1.PrivacyTerms{Check: "none", Robust: "none", Keepers: [][]byte{pin[:]}}, Limits: []*v1.MaskBlock{{Length: 4}},
		}}
		for i := range int64(killedMembers) {
			if i != without {
				q.Results = append(q.Results, &v1.MaskedResult{Agent: fmt.Sprint("agent-", i), Clients: 1, Nonce: make([]byte, 16)})
			}
		}
		if a, err := k.Release(q); err == nil {
			fmt.Fprintf(out, "%d %d %x\n", round, without, a.Masks)
		}
	}
}

const killedMembers = 6

func killedRules() *v1.KeeperRules {
	return &v1.KeeperRules{Least: 5, Cell: 100, Invited: false}
}

// TestKilled kills a real process while it releases rounds, and asks the next process for the
// same rounds without another member. Each round must have only one answer.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	if _, err := Create(dir); err != nil {
		t.Fatal(err)
	}
	k, err := Open(dir, Options{Fleet: "fleet", Rules: killedRules()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range killedMembers {
		key := mask.NewKey()
		if r, err := (&station{Keeper: k}).enrolOne(fmt.Sprint("agent-", i), &key, mask.Day(time.Now()), member.Code{}); err != nil || r.Refused != "" {
			t.Fatal(r, err)
		}
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	kills := testkit.Pick(25, 300)
	answers, rng, round, repeated := map[string]string{}, rand.New(rand.NewPCG(1, 1)), int64(0), 0
	for kill := range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+dir)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { // a few rounds that may have been released, then new rounds
			for r := max(0, round-2); ; r++ {
				if _, err := fmt.Fprintf(in, "%d %d\n%d %d\n", r, kill%killedMembers, r, (kill+killedMembers-1)%killedMembers); err != nil {
					return
				}
			}
		}()
		lines, first := bufio.NewScanner(out), true
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) != 3 {
				break // the line is incomplete
			}
			if first { // the process works, so kill it soon
				first = false
				time.AfterFunc(time.Duration(rng.IntN(20_000))*time.Microsecond, func() { _ = cmd.Process.Kill() }) // Wait reports the result
			}
			if len(fields[2]) != 64 {
				break
			}
			if old, found := answers[fields[0]]; found && old != fields[1]+" "+fields[2] {
				t.Fatalf("round %s was answered with %s and with %s %s", fields[0], old, fields[1], fields[2])
			} else if found {
				repeated++
			}
			answers[fields[0]] = fields[1] + " " + fields[2]
			if _, err := fmt.Sscan(fields[0], &round); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Kill() // may already have ended
		_ = cmd.Wait()         // returns the error of a killed process
	}
	if len(answers) < kills || repeated == 0 {
		t.Errorf("%d rounds in %d processes, %d repeated", len(answers), kills, repeated)
	}
	t.Logf("%d kills, %d rounds, %d repeated with the same answer", kills, len(answers), repeated)
}
