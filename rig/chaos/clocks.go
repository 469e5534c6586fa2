package main

import (
	"context"
	bytesof "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"loadstar/rig/product"
)

// testClock is added to Go's package time in the build of the binary under test. The time
// of day then has an offset in seconds, which the process reads from a file that the test
// changes. The monotonic clock is unaffected, as when an operator or NTP sets a machine's
// clock. Tools that replace the C library's clock have no effect on Go programs.
const testClock = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var testOffset *int64

func init() {
	path, ok := syscall.Getenv("` + clockVariable + `")
	if !ok {
		return
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	testOffset = (*int64)(unsafe.Pointer(&b[0]))
}

func offset() int64 {
	if testOffset == nil {
		return 0
	}
	return atomic.LoadInt64(testOffset)
}
`

const clockVariable = "TEST_CLOCK"

// buildWithClock builds the binary under test with a clock that can be set. The first build
// takes minutes, because everything that is compiled depends on the clock.
func buildWithClock(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	now := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(now)
	if err != nil {
		return "", err
	}
	const call = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(text), call, call+"\tsec += offset()\n", 1)
	if changed == string(text) {
		return "", errors.New("this version of Go has a different time.Now")
	}
	overlay := map[string]string{now: filepath.Join(dir, "time.go.txt"), filepath.Join(filepath.Dir(now), "offset.go"): filepath.Join(dir, "offset.go.txt")}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return "", err
	}
	for name, content := range map[string]string{"time.go.txt": changed, "offset.go.txt": testClock, "overlay.json": string(list)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, "loadstar-clock")
	return path, product.Build(ctx, path, "-overlay", filepath.Join(dir, "overlay.json"))
}

// The machines whose clocks jump.
const (
	clockServers  = "servers"
	clockAgents   = "agents"
	clockDatabase = "database"
)

// clockFile returns the file with the offset of a clock. Processes map it into memory.
func (s *system) clockFile(whose string) string { return filepath.Join(s.dir, "clock-"+whose) }

// setClock sets a clock to an offset from the time of day.
func (s *system) setClock(whose string, by time.Duration) error {
	if whose == clockDatabase {
		// faketime rereads the file at every call.
		return os.WriteFile(s.clockFile(whose), fmt.Appendf(nil, "%+ds\n", int64(by/time.Second)), 0o644)
	}
	f, err := os.OpenFile(s.clockFile(whose), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytesof.NativeEndian.AppendUint64(nil, uint64(by/time.Second)), 0)
	return errors.Join(err, f.Close())
}

// clockEnv returns the environment variables that point a process to its clock.
func (s *system) clockEnv(kind string) []string {
	if !s.clocks {
		return nil
	}
	switch kind {
	case kindAgent:
		return []string{clockVariable + "=" + s.clockFile(clockAgents)}
	case kindPostgres:
		found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1") // Debian's package libfaketime
		if len(found) == 0 {
			return nil
		}
		return []string{"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + s.clockFile(clockDatabase), "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
	}
	return []string{clockVariable + "=" + s.clockFile(clockServers)}
}

// startClocks creates the files of all clocks.
func (s *system) startClocks() error {
	var all []error
	for _, whose := range []string{clockServers, clockAgents, clockDatabase} {
		all = append(all, s.setClock(whose, 0))
	}
	return errors.Join(all...)
}

// jump is a jump of a clock and the jump back.
type jump struct {
	whose string
	by    time.Duration
}

func (j jump) name() string {
	text := map[time.Duration]string{time.Hour: "+1 h", -time.Hour: "-1 h", year: "+1 year", -year: "-1 year"}
	return j.whose + ", " + text[j.by]
}

// Servers measure the database's clock every 30 seconds, so a jump of that clock must last
// longer.
const (
	year        = 365 * 24 * time.Hour
	jumpLasts   = 6 * time.Second
	databaseFor = 35 * time.Second
)

// newJumps returns an injector that sets the clocks of servers, agents and the database
// forward and back while the fleet trains.
func newJumps(t *trial, log io.Writer) injector {
	var all []jump
	var names []string
	for _, by := range []time.Duration{time.Hour, -time.Hour, year, -year} {
		for _, whose := range []string{clockServers, clockAgents, clockDatabase} {
			j := jump{whose, by}
			all, names = append(all, j), append(names, j.name())
		}
	}
	r := newRepeated(t, log, names...)
	r.once = func(ctx context.Context, i int) error {
		j := all[i%len(all)]
		lasts := jumpLasts
		if j.whose == clockDatabase {
			lasts = databaseFor
		}
		r.begin(j.name(), "for %s", lasts)
		if err := t.system.setClock(j.whose, j.by); err != nil {
			return err
		}
		_ = product.Sleep(ctx, lasts) // the loop below ends with the context, too
		return t.system.setClock(j.whose, 0)
	}
	return r
}
