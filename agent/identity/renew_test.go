package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"loadstar/internal/mtls"
	"loadstar/server/pki"
)

func operatorURI(t testing.TB) []*url.URL {
	t.Helper()
	u, err := url.Parse("loadstar://operator/local")
	if err != nil {
		t.Fatal(err)
	}
	return []*url.URL{u}
}

// soon returns a time when the certificate is due for renewal.
func soon(i *Identity) time.Time { return i.Expires().Add(-time.Hour) }

func TestRenew(t *testing.T) {
	f := newFleet(t)
	i, dir := f.join(t)
	first := i.current.Load().Credentials
	if renewed, err := i.RenewIfDue(t.Context(), time.Now()); renewed || err != nil || f.renewed != 0 {
		t.Errorf("not due: %v, %v", renewed, err)
	}
	if renewed, err := i.RenewIfDue(t.Context(), i.Expires().Add(-3*24*time.Hour)); renewed || err != nil {
		t.Errorf("three of seven days are left: %v, %v", renewed, err)
	}
	if err := checkIn(t, i); err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.ttl = 8 * 24 * time.Hour })
	if renewed, err := i.RenewIfDue(t.Context(), i.Expires().Add(-2*24*time.Hour)); !renewed || err != nil {
		t.Fatalf("two of seven days are left: %v, %v", renewed, err)
	}
	second := i.current.Load().Credentials
	if second.Key.Equal(first.Key) || !i.Expires().Equal(second.Leaf.NotAfter) || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Error("the key is the old one, or it does not live longer")
	}
	if err := checkIn(t, i); err != nil {
		t.Fatal(err)
	}
	if f.shown() != serial(second.Leaf) {
		t.Error("the old certificate was shown")
	}
	opened, err := Open(dir)
	if err != nil || opened.ID() != i.ID() || opened.Server() != i.Server() || !opened.current.Load().Leaf.Equal(second.Leaf) {
		t.Errorf("on disk: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// TestRenewBesideCalls checks that a call that is in progress when the certificate is replaced
// succeeds. Later calls present the new certificate, even while the old connection is open.
func TestRenewBesideCalls(t *testing.T) {
	f := newFleet(t)
	i, _ := f.join(t)
	hold, held := make(chan struct{}), make(chan struct{})
	f.set(func() { f.hold, f.held = hold, held })
	done := make(chan error)
	go func() { done <- checkIn(t, i) }()
	<-held
	if renewed, err := i.RenewIfDue(t.Context(), soon(i)); !renewed || err != nil {
		t.Fatal(renewed, err)
	}
	if err := checkIn(t, i); err != nil {
		t.Fatal(err)
	}
	if f.shown() != serial(i.current.Load().Leaf) {
		t.Error("the old certificate was shown")
	}
	close(hold)
	if err := <-done; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
}

func TestRenewConcurrently(t *testing.T) {
	f := newFleet(t)
	i, _ := f.join(t)
	f.set(func() { f.ttl = 30 * 24 * time.Hour })
	now := soon(i)
	var wg sync.WaitGroup
	renewals := make(chan bool, 100)
	for range 8 {
		wg.Go(func() {
			renewed, err := i.RenewIfDue(t.Context(), now)
			if err != nil {
				t.Error(err)
			}
			renewals <- renewed
		})
		wg.Go(func() {
			for range 5 {
				if err := checkIn(t, i); err != nil {
					t.Error(err)
				}
				_ = i.Expires()
			}
		})
	}
	wg.Wait()
	close(renewals)
	n := 0
	for r := range renewals {
		if r {
			n++
		}
	}
	if n != 1 || f.renewed != 1 {
		t.Errorf("%d said so, the server renewed %d", n, f.renewed)
	}
}

// TestRenewFails checks that if a renewal fails, the old pair stays in use and on disk, and the
// next attempt succeeds.
func TestRenewFails(t *testing.T) {
	f := newFleet(t)
	i, dir := f.join(t)
	other, _ := f.join(t)
	before := i.current.Load().Leaf
	now := soon(i)
	// later returns the time of the next attempt, and checks that there is none before it.
	later := func() time.Time {
		if renewed, err := i.RenewIfDue(t.Context(), now.Add(-time.Nanosecond)); now != soon(i) && (renewed || err != nil) {
			t.Errorf("tried again too early: %v, %v", renewed, err)
		}
		if !i.after.IsZero() {
			now = i.after
		}
		return now
	}
	still := func(name string) {
		t.Helper()
		if err := checkIn(t, i); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if f.shown() != serial(before) {
			t.Errorf("%s: another certificate was shown", name)
		}
		if o, err := Open(dir); err != nil || !o.current.Load().Leaf.Equal(before) {
			t.Errorf("%s: on disk: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		spoil func([][]byte) ([][]byte, error)
		want  string
	}{
		"failure":     {func([][]byte) ([][]byte, error) { return nil, errors.New("the disk is full") }, "the disk is full"},
		"nothing":     {func([][]byte) ([][]byte, error) { return nil, nil }, "no certificate"},
		"another key": {func([][]byte) ([][]byte, error) { return [][]byte{other.current.Load().Leaf.Raw}, nil }, "a different key"},
		"the root":    {func(chain [][]byte) ([][]byte, error) { return chain[1:], nil }, "a different key"},
	} {
		f.set(func() { f.spoil = c.spoil })
		renewed, err := i.RenewIfDue(t.Context(), later())
		wantError(t, name, err, c.want)
		if renewed {
			t.Errorf("%s: renewed", name)
		}
		still(name)
	}
	f.set(func() { f.spoil = nil })
	// Make the folder unwritable by putting a file in its place.
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	renewed, err := i.RenewIfDue(t.Context(), later())
	wantError(t, "no disk", err, "storing")
	if renewed {
		t.Error("renewed without a disk")
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	still("no disk")
	if renewed, err := i.RenewIfDue(t.Context(), later()); !renewed || err != nil {
		t.Errorf("at last: %v, %v", renewed, err)
	}
}

// TestRenewKeepsTheName checks that a renewed certificate with another agent's name is refused,
// even if it is for the right key.
func TestRenewKeepsTheName(t *testing.T) {
	f := newFleet(t)
	i, _ := f.join(t)
	was := i.current.Load()
	leaf := *was.Leaf
	leaf.URIs = operatorURI(t) // a different name
	i.current.Store(&use{mtls.Credentials{Key: was.Key, Leaf: &leaf, Root: was.Root}, was.transport})
	renewed, err := i.RenewIfDue(t.Context(), soon(i))
	wantError(t, "another name", err, "another agent")
	if renewed {
		t.Error("renewed")
	}
}

func TestExpired(t *testing.T) {
	f := newFleet(t)
	var i *Identity
	var dir string
	// On a machine under load, a short-lived certificate may expire before the first call.
	for life, err := 4*time.Second, error(nil); i == nil || err != nil; life *= 2 {
		if life > 5*time.Minute {
			t.Fatal(err)
		}
		f.set(func() { f.ttl = life })
		i, dir = f.join(t)
		err = checkIn(t, i)
		i.HTTPClient().CloseIdleConnections()
	}
	time.Sleep(time.Until(i.Expires()) + 1100*time.Millisecond)
	calls := len(f.serials)
	if err := checkIn(t, i); err == nil || len(f.serials) != calls {
		t.Errorf("%v, and the server was called %d times", err, len(f.serials)-calls)
	}
	if o, err := Open(dir); err != nil || o.Expires().After(time.Now()) {
		t.Errorf("opened: %v", err)
	}
	// A server may refuse to renew an expired certificate. Joining again with the old key keeps
	// the name.
	f.set(func() { f.strict = true })
	renewed, err := i.RenewIfDue(t.Context(), time.Now())
	wantError(t, "renewing", err, "expired on", "join again with a new token")
	if renewed || f.renewed != 0 {
		t.Error("renewed")
	}
	// Within the server's grace period, the agent renews an expired certificate by itself.
	f.set(func() { f.strict, f.ttl = false, time.Hour })
	if renewed, err := i.RenewIfDue(t.Context(), i.after); err != nil || !renewed {
		t.Errorf("within the grace period: %v, %v", renewed, err)
	}
	if err := checkIn(t, i); err != nil {
		t.Error(err)
	}
}

// TestJoinAgain checks that an agent that joins again proves that it has the old key, and keeps
// its name.
func TestJoinAgain(t *testing.T) {
	f := newFleet(t)
	i, dir := f.join(t)
	if err := os.Rename(filepath.Join(dir, file), filepath.Join(dir, oldFile)); err != nil {
		t.Fatal(err)
	}
	again, err := Join(t.Context(), dir, f.url, f.token(t, 1), "")
	if err != nil || again.ID() != i.ID() || serial(again.current.Load().Leaf) == serial(i.current.Load().Leaf) {
		t.Fatal(err, again)
	}
	if err := checkIn(t, again); err != nil {
		t.Error(err)
	}
	// Without the old file, the machine joins as another agent.
	other, err := Join(t.Context(), filepath.Join(t.TempDir(), "agent"), f.url, f.token(t, 1), "")
	if err != nil || other.ID() == i.ID() {
		t.Error(err, other)
	}
}

// TestFollowsTheRoot checks that after a rotation of the root, the agent renews early and
// trusts both roots. After the former root is retired, it still trusts the server, even after a
// restart.
func TestFollowsTheRoot(t *testing.T) {
	f := newFleet(t)
	i, dir := f.join(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var done sync.WaitGroup
	done.Go(func() {
		_ = f.authority.Watch(ctx, 5*time.Millisecond, slog.New(slog.DiscardHandler), func() {}) // returns nil
	})
	// follow waits until the server uses the files in its folder.
	follow := func() {
		t.Helper()
		want, err := pki.Issuers(f.dir)
		if err != nil {
			t.Fatal(err)
		}
		for fmt.Sprint(f.authority.Issuers()) != fmt.Sprint(want) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	check := func(name string, wantRenewed bool, roots int) {
		t.Helper()
		i.HTTPClient().CloseIdleConnections()
		if err := checkIn(t, i); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		i.after = time.Time{} // only tests have several rotations within an hour
		if renewed, err := i.RenewIfDue(t.Context(), time.Now()); err != nil || renewed != wantRenewed {
			t.Errorf("%s: renewed is %v, %v", name, renewed, err)
		}
		i.HTTPClient().CloseIdleConnections()
		if err := checkIn(t, i); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if o, err := Open(dir); err != nil || len(o.current.Load().Roots()) != roots {
			t.Errorf("%s: %v, want %d roots", name, err, roots)
		}
	}
	check("before", false, 1)
	for n, root := range []bool{true, false, true} {
		if err := pki.Rotate(f.dir, pki.Keys{}, pki.Rotation{Root: root}); err != nil {
			t.Fatal(err)
		}
		follow()
		roots := 1
		if root {
			roots = 2
		}
		check(fmt.Sprintf("rotation %d", n), true, roots)
		if err := pki.Retire(f.dir, false); err != nil {
			t.Fatal(err)
		}
		follow()
		check(fmt.Sprintf("retired %d", n), false, roots)
	}
	stop()
	done.Wait()
}

// TestOtherServerLater checks that the agent refuses a server with another root at the same
// address.
func TestOtherServerLater(t *testing.T) {
	f, other := newFleet(t), newFleet(t)
	i, _ := f.join(t)
	i.server = other.url
	err := checkIn(t, i)
	if err == nil || len(other.serials) != 0 {
		t.Fatal(err)
	}
	wantError(t, "another root", explain("calling", other.url, err, ""), "does not come from the root that this agent trusts")
}

// swapEnv names an environment variable that holds the path of a folder. If it is set, the test
// binary stores two identities alternately in that folder until it is killed.
const swapEnv = "LOADSTAR_TEST_SWAP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(swapEnv); dir != "" {
		fmt.Fprintln(os.Stderr, swap(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func swap(dir string) error {
	one, err := Open(filepath.Join(dir, "one"))
	if err != nil {
		return err
	}
	two, err := Open(filepath.Join(dir, "two"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		for _, i := range []*Identity{one, two} {
			i.path = filepath.Join(dir, "agent", file)
			if err := i.store(i.current.Load().Credentials); err != nil {
				return err
			}
		}
	}
}

// TestKilledWhileStoring checks that if a process is killed while it replaces the identity, the
// file holds one of the two identities completely.
func TestKilledWhileStoring(t *testing.T) {
	f := newFleet(t)
	dir := t.TempDir()
	valid := map[string]bool{}
	for _, name := range []string{"agent", "one", "two"} {
		i, err := Join(t.Context(), filepath.Join(dir, name), f.url, f.token(t, 1), "")
		if err != nil {
			t.Fatal(err)
		}
		valid[i.ID()] = true
	}
	seen := map[string]bool{}
	// Repeat until both identities were seen, which takes longer on a machine under load.
	for n := 0; n < 25 || len(seen) < 2 && n < 500; n++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), swapEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var problem bytes.Buffer
		cmd.Stderr = &problem
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 10)); err != nil {
			t.Fatal(err, problem.String())
		}
		time.Sleep(time.Duration(n) * 317 * time.Microsecond)
		cmd.Process.Kill() // Wait would return the error again
		cmd.Wait()         // returns an error because the process was killed
		if problem.Len() > 0 {
			t.Fatal(problem.String())
		}
		i, err := Open(filepath.Join(dir, "agent"))
		if err != nil {
			t.Fatalf("kill %d: %v", n, err)
		}
		if !valid[i.ID()] {
			t.Fatalf("kill %d: %s", n, i.ID())
		}
		seen[i.ID()] = true
		if err := i.current.Load().Check(); err != nil {
			t.Fatalf("kill %d: %v", n, err)
		}
	}
	if len(seen) < 2 {
		t.Errorf("only ever saw %v: nothing was replaced", seen)
	}
}

// TestTornFile checks that Open refuses a truncated identity file, wherever it is cut off. It
// ignores all other files in the folder.
func TestTornFile(t *testing.T) {
	f := newFleet(t)
	i, dir := f.join(t)
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(bytes.TrimSpace(text)); n++ {
		if _, err := parse(path, text[:n]); err == nil {
			t.Fatalf("%d of %d bytes are taken", n, len(text))
		}
		zeros := append(bytes.Clone(text[:n]), make([]byte, len(text)-n)...)
		if _, err := parse(path, zeros); err == nil {
			t.Fatalf("zeros from byte %d on are taken", n)
		}
	}
	// Create the temporary files that a crash leaves behind.
	for n, name := range []string{".identity.pem.1", ".identity.pem.2"} {
		if err := os.WriteFile(filepath.Join(dir, name), text[:n*len(text)/2], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if o, err := Open(dir); err != nil || o.ID() != i.ID() {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir)
	wantError(t, "readable", err, "others can read it", "chmod 600")
}

func FuzzParse(f *testing.F) {
	i, dir := newFleet(f).join(f)
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/3])
	f.Add(bytes.Replace(text, []byte(i.ID()), []byte("x y"), 1))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := parse("identity.pem", text)
		if err != nil {
			return
		}
		if o.ID() == "" || o.Server() == "" || o.current.Load().Check() != nil {
			t.Errorf("%q", text)
		}
	})
}

// TestFollowsARotationAtOnce checks that an agent that has recently renewed its certificate by
// itself follows a rotation at once. If the server asks again after that, the agent waits for a
// third of the certificate's lifetime, and at most for an hour.
func TestFollowsARotationAtOnce(t *testing.T) {
	for life, wait := range map[time.Duration]time.Duration{30 * time.Minute: 10 * time.Minute, 7 * 24 * time.Hour: time.Hour} {
		f := newFleet(t)
		f.set(func() { f.ttl = time.Minute }) // such a certificate is due immediately
		i, _ := f.join(t)
		f.set(func() { f.ttl = life })
		now := time.Now()
		renew := func(name string, want bool) {
			t.Helper()
			if renewed, err := i.RenewIfDue(t.Context(), now); err != nil || renewed != want {
				t.Errorf("%v: %s: renewed is %v, %v", life, name, renewed, err)
			}
		}
		renew("due", true)
		i.stale.Store(true)
		renew("asked after a renewal", true)
		i.stale.Store(true)
		now = now.Add(wait - time.Minute)
		renew("asked again", false)
		now = now.Add(2 * time.Minute)
		renew("asked again after the wait", true)
	}
}
