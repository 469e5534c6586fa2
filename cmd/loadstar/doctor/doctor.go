// Package doctor finds problems on a machine before they stop a server. It checks clock, zones,
// certificates, ports, disk and folders.
package doctor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"loadstar/internal/disk"
	"loadstar/internal/finding"
	"loadstar/internal/mtls"
	"loadstar/internal/service"
	"loadstar/nn/kernel"
)

// Config describes what to check.
type Config struct {
	// Dir is a server's folder. It is checked if it exists.
	Dir string
	// Ports are the server's addresses. Empty addresses are skipped.
	Ports []Port
	// Server and Operator are the address of a server and the folder with a user's
	// credentials. If the folder does not exist, no server is checked.
	Server, Operator string
	// Stores examines the server's database, blobs, certificates and backups.
	Stores func(context.Context) finding.List
}

// Port is an address for a server to listen on, and its key in server.yaml.
type Port struct{ Key, Address string }

// Thresholds below which a check does not warn.
const (
	daysWarn = 30 * 24 * time.Hour
	callTime = 10 * time.Second
)

// examination collects findings.
type examination struct {
	Config
	finding.List
}

// Run makes all checks. It leaves no files behind.
func Run(ctx context.Context, c Config) finding.List {
	x := &examination{Config: c}
	x.machine()
	running := x.folder()
	if running {
		x.watch(ctx)
	}
	if x.Stores != nil {
		x.List = append(x.List, x.Stores(ctx)...)
	}
	x.user(ctx)
	return x.List
}

// machine checks the requirements that servers and agents share.
func (x *examination) machine() {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		x.Fail("zone data", "install the package tzdata", "the time zones are missing: %v", err)
	} else {
		_, offset := time.Date(2026, 7, 1, 12, 0, 0, 0, zone).Zone()
		if offset != 2*3600 {
			x.Fail("zone data", "update the package tzdata, and unset ZONEINFO", "Europe/Berlin has no summer time in 2026")
		} else {
			here, _ := time.Now().Zone()
			x.OK("zone data", "time zones are known; this machine's is %s", here)
		}
	}
	if now := time.Now(); now.Year() < 2026 {
		x.Fail("clock", "set the clock, for example with timedatectl set-ntp true", "the clock shows %s", now.Format(time.DateTime))
	}
	k, err := kernel.Default()
	switch {
	case err != nil:
		x.Fail("kernel set", "correct or unset LOADSTAR_KERNEL", "%v", err)
	case k.Name() == "portable":
		x.Warn("kernel set", "unset LOADSTAR_KERNEL; on a CPU without AVX2 or NEON there is no faster one", "portable: training is several times slower than with vector instructions")
	default:
		x.OK("kernel set", "%s", k.Name())
	}
}

// folder checks a server's folder, its disk and its ports. It reports whether a server runs
// there.
func (x *examination) folder() (running bool) {
	info, err := os.Stat(x.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.OK("folder", "%s does not exist yet; loadstar serve creates it", x.Dir)
		x.disk(".")
	case err != nil:
		x.Fail("folder", "let this user read the folder", "%v", err)
		return false
	case !info.IsDir():
		x.Fail("folder", "use another folder with --dir", "%s is not a folder", x.Dir)
		return false
	case x.Stores == nil: // otherwise Stores checks all folders
		x.disk(x.Dir)
	}
	running, listens := x.lock()
	if len(listens) > 0 {
		x.Ports = listens
	}
	for _, p := range x.Ports {
		key, address := p.Key, p.Address
		if address == "" {
			continue
		}
		holder := service.Holder(address)
		l, err := net.Listen("tcp", address)
		if err == nil {
			_ = l.Close() // nothing has connected
		}
		switch {
		case err == nil && len(listens) > 0:
			x.Warn("port "+address, "see the server's log, and restart the server", "nothing listens there, although the running server recorded this address as %s", key)
		case err == nil && running:
			x.OK("port "+address, "free; the running server does not use it")
		case len(listens) > 0:
			x.OK("port "+address, "in use, as the running server recorded for %s%s", key, named(holder))
		case err == nil:
			x.OK("port "+address, "free for %s of the server", key)
		case running:
			x.OK("port "+address, "in use, as expected of a running server%s", named(holder))
		default:
			x.Warn("port "+address, "stop that process, or give the server another address: "+key, "in use%s: %v", named(holder), err)
		}
	}
	return running
}

func named(holder string) string {
	if holder == "" {
		return ""
	}
	return " (" + holder + ")"
}

// lock reports whether a server is using the folder. It also returns the addresses that the
// server's processes recorded there, which may differ from the configuration, because a change
// takes effect only at the next start.
func (x *examination) lock() (running bool, listens []Port) {
	// A server with SQLite holds the last of these locks, and every server holds one of the
	// others.
	marks, err := filepath.Glob(filepath.Join(x.Dir, "running-*"))
	if err != nil {
		return false, nil // the folder's name is a pattern
	}
	left := ""
	for _, path := range append(marks, filepath.Join(x.Dir, "lock")) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // no such server has run here
		}
		err = disk.TryLock(f)
		if errors.Is(err, disk.ErrLocked) {
			running = true
			listens = append(listens, noted(f)...)
		}
		_ = f.Close() // nothing was written to the file
		left = path
	}
	switch {
	case running:
		x.OK("folder", "%s: a server is running", x.Dir)
	case len(marks) > 0:
		x.Warn("folder", "start the server, which checks its ledger", "%s: no server is running, and the last one did not end cleanly", x.Dir)
	case left != "":
		x.OK("folder", "%s: no server is running", x.Dir)
	}
	return running, listens
}

// noted returns the addresses in the file of a running process. Older servers did not record
// any.
func noted(f *os.File) (all []Port) {
	byKey := map[string]string{}
	if b, err := io.ReadAll(io.LimitReader(f, 1<<16)); err != nil || json.Unmarshal(b, &byKey) != nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		all = append(all, Port{key, byKey[key]})
	}
	return all
}

// watch asks the running server whether it is ready, and how many results are waiting.
func (x *examination) watch(ctx context.Context) {
	at := ""
	for _, p := range x.Ports {
		if p.Key == "watch" {
			at = p.Address
		}
	}
	if at == "" {
		return
	}
	const do = "see the server's log; if it has another address for monitoring, give it with --set watch=ADDRESS"
	text, err := get(ctx, "http://"+at+"/readyz")
	if err != nil {
		x.Warn("ready", do, "the running server is not ready: %v %s", err, strings.TrimSpace(text))
		return
	}
	x.OK("ready", "the running server is %s", strings.TrimSpace(text))
	if text, err = get(ctx, "http://"+at+"/metrics"); err != nil {
		x.Warn("results", do, "%v", err)
		return
	}
	if m := waiting.FindStringSubmatch(text); m != nil {
		x.OK("results", "%s wait to be counted", m[1])
	}
}

var waiting = regexp.MustCompile(`(?m)^loadstar_gateway_waiting (\d+)`)

func (x *examination) disk(dir string) { disk.Room(&x.List, "disk", dir) }

// user checks a user's certificate and its server.
func (x *examination) user(ctx context.Context) {
	c, err := mtls.ReadFolder(x.Operator)
	if errors.Is(err, fs.ErrNotExist) {
		x.Warn("operator", "start a server, or use --operator", "there are no credentials in %s, so no server is checked", x.Operator)
		return
	} else if err != nil {
		x.Fail("operator", "get new credentials from an administrator", "%v", err)
		return
	}
	x.Validity("operator's certificate", c.Leaf.NotBefore, c.Leaf.NotAfter, daysWarn, "get new credentials from an administrator; on the server's machine, start the server again")
	x.server(ctx, x.Server, mtls.Client(mtls.Transport(c.TLS())))
}

// server checks that a server responds, and compares its clock with ours.
func (x *examination) server(ctx context.Context, address string, client *http.Client) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		x.Fail("server", "write an address such as https://server.example.org:7443", "%v", err)
		return
	}
	asked := time.Now()
	answer, err := client.Do(r)
	if err != nil {
		if wrong, ok := errors.AsType[*url.Error](err); ok {
			err = wrong.Err
		}
		x.Fail("server", "check the server's address, whether the server runs, the network, and any firewalls", "%s: %v", address, err)
		return
	}
	took := time.Since(asked)
	_ = answer.Body.Close() // the headers are sufficient
	x.OK("server", "%s responded after %s", address, took.Round(time.Millisecond))
	if state := answer.TLS; state != nil {
		x.serverCertificate(state)
	}
	theirs, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		x.Warn("clock", "check that the address is a Loadstar server's", "the server does not send its time")
		return
	}
	// The header contains whole seconds, so half a second is added to it.
	skew := asked.Add(took / 2).Sub(theirs.Add(500 * time.Millisecond))
	x.Clock("clock", skew, "the server's")
}

func (x *examination) serverCertificate(state *tls.ConnectionState) {
	if len(state.PeerCertificates) == 0 {
		return
	}
	// The server creates a new certificate at every start and before the old one expires.
	x.Validity("server's certificate", state.PeerCertificates[0].NotBefore, state.PeerCertificates[0].NotAfter, 0, "start the server again")
}

// get sends a request to a process on this machine. If the response is an error, get also
// returns its text.
func get(ctx context.Context, at string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	// Use no redirects and no proxy, because they would lead to another program.
	direct := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := direct.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	const most = 16 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("it returned %s", answer.Status)
	}
	return string(text), err
}
