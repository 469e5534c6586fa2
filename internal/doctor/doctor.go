// Package doctor looks for what can be wrong on a machine before it stops a server or an
// agent: clock, zones, certificates, ports, disk, folders, broker, readings.
package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
	_ "time/tzdata" // use the same zones on every machine, even without a zone database

	"loadstar/internal/filelock"
	"loadstar/internal/mtls"
	"loadstar/internal/port"
	"loadstar/nn/kernel"
)

// Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Finding is what one check found.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // what to do; empty if the level is OK
}

// Config says what to look at.
type Config struct {
	// Dir is a server's folder. It is looked at if it exists.
	Dir string
	// Ports are the addresses of the server. Those that are empty are left out.
	Ports []Port
	// Server and Operator are the address of a server and the folder with a user's
	// credentials. If the folder does not exist, no server is asked.
	Server, Operator string
	// Agent is an agent's configuration, or empty.
	Agent string
	// Version is that of the program.
	Version string
}

// Port is an address on which a server is to listen, and the flag that sets it.
type Port struct{ Flag, Address string }

// Limits of what is not worth a warning.
const (
	skewWarn, skewFail = 5 * time.Second, 2 * time.Minute
	daysWarn           = 30 * 24 * time.Hour
	agentDaysWarn      = 48 * time.Hour
	diskWarn, diskFail = 2 << 30, 200 << 20
	callTime           = 10 * time.Second
)

// examination collects findings.
type examination struct {
	Config
	all []Finding
}

func (x *examination) ok(check, format string, a ...any) {
	x.all = append(x.all, Finding{OK, check, fmt.Sprintf(format, a...), ""})
}

func (x *examination) warn(check, do, format string, a ...any) {
	x.all = append(x.all, Finding{Warn, check, fmt.Sprintf(format, a...), do})
}

func (x *examination) fail(check, do, format string, a ...any) {
	x.all = append(x.all, Finding{Fail, check, fmt.Sprintf(format, a...), do})
}

// Run makes all checks. It changes nothing.
func Run(ctx context.Context, c Config) []Finding {
	x := &examination{Config: c}
	x.machine()
	if c.Agent != "" {
		x.agent(ctx)
		return x.all
	}
	x.folder()
	x.user(ctx)
	return x.all
}

// machine checks what server and agent need.
func (x *examination) machine() {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		x.fail("zone data", "install the package tzdata", "the time zones are missing: %v", err)
	} else {
		_, offset := time.Date(2026, 7, 1, 12, 0, 0, 0, zone).Zone()
		if offset != 2*3600 {
			x.fail("zone data", "update the package tzdata, and unset ZONEINFO", "Europe/Berlin has no summer time in 2026")
		} else {
			here, _ := time.Now().Zone()
			x.ok("zone data", "time zones are known; this machine's is %s", here)
		}
	}
	if now := time.Now(); now.Year() < 2026 {
		x.fail("clock", "set the clock, for example with timedatectl set-ntp true", "the clock says %s", now.Format(time.DateTime))
	}
	k, err := kernel.Default()
	switch {
	case err != nil:
		x.fail("kernel set", "correct or unset LOADSTAR_KERNEL", "%v", err)
	case k.Name() == "portable":
		x.warn("kernel set", "unset LOADSTAR_KERNEL; on a CPU without AVX2 or NEON there is no faster one", "portable: training is several times slower than with vector instructions")
	default:
		x.ok("kernel set", "%s", k.Name())
	}
}

// folder checks a server's folder, its disk and its ports.
func (x *examination) folder() {
	info, err := os.Stat(x.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.ok("folder", "%s does not exist yet; loadstar serve makes it", x.Dir)
		x.disk(".")
	case err != nil:
		x.fail("folder", "let this user read the folder", "%v", err)
		return
	case !info.IsDir():
		x.fail("folder", "use another folder with --dir", "%s is not a folder", x.Dir)
		return
	default:
		x.disk(x.Dir)
	}
	running := x.lock()
	for _, p := range x.Ports {
		flag, address := p.Flag, p.Address
		if address == "" {
			continue
		}
		holder := port.Holder(address)
		l, err := net.Listen("tcp", address)
		if err == nil {
			_ = l.Close() // nobody has connected
		}
		switch {
		case err == nil && running:
			x.ok("port "+address, "free; the running server does not use it")
		case err == nil:
			x.ok("port "+address, "free for serve %s", flag)
		case running:
			x.ok("port "+address, "in use, as expected of a running server%s", named(holder))
		default:
			x.warn("port "+address, "stop that process, or use another address with serve "+flag, "in use%s: %v", named(holder), err)
		}
	}
}

func named(holder string) string {
	if holder == "" {
		return ""
	}
	return " (" + holder + ")"
}

// lock reports whether a server is using the folder.
func (x *examination) lock() (running bool) {
	f, err := os.OpenFile(filepath.Join(x.Dir, "nats", "lock"), os.O_RDWR, 0)
	if err != nil {
		return false // no server has run with an embedded queue here
	}
	defer f.Close()
	if errors.Is(filelock.Try(f), filelock.ErrLocked) {
		x.ok("folder", "%s: a server is running", x.Dir)
		return true
	}
	x.ok("folder", "%s: no server is running", x.Dir)
	return false
}

func (x *examination) disk(dir string) {
	free, err := freeBytes(dir)
	const more = "delete what is not needed, or use another disk"
	text := fmt.Sprintf("%.1f GB free for %s", float64(free)/1e9, dir)
	switch {
	case err != nil:
		x.warn("disk", "check the disk", "cannot tell how much is free for %s: %v", dir, err)
	case free < diskFail:
		x.fail("disk", more, "%s", text)
	case free < diskWarn:
		x.warn("disk", more, "%s", text)
	default:
		x.ok("disk", "%s", text)
	}
}

// user checks a user's certificate and the server that it is for.
func (x *examination) user(ctx context.Context) {
	c, err := mtls.ReadFolder(x.Operator)
	if errors.Is(err, fs.ErrNotExist) {
		x.warn("operator", "start a server, or use --operator or a context", "no credentials in %s, so no server is asked", x.Operator)
		return
	} else if err != nil {
		x.fail("operator", "get new credentials from an administrator", "%v", err)
		return
	}
	x.certificate("operator's certificate", c.Leaf, daysWarn, "get new credentials from an administrator; on the server's machine, start the server again")
	x.server(ctx, x.Server, mtls.Client(mtls.Transport(c.TLS())))
}

// certificate checks how long a certificate is valid.
func (x *examination) certificate(check string, c *x509.Certificate, warn time.Duration, do string) {
	left := time.Until(c.NotAfter)
	until := c.NotAfter.Local().Format("2006-01-02 15:04")
	switch {
	case time.Now().Before(c.NotBefore):
		x.fail(check, "set the clock", "valid from %s, which is in the future", c.NotBefore.Local().Format("2006-01-02 15:04"))
	case left <= 0:
		x.fail(check, do, "expired at %s", until)
	case left < warn:
		x.warn(check, do, "%s left, until %s", days(left), until)
	default:
		x.ok(check, "%s left, until %s", days(left), until)
	}
}

func days(d time.Duration) string {
	if n := int(d / (24 * time.Hour)); n != 1 {
		return fmt.Sprintf("%d days", n)
	}
	return "1 day"
}

// server checks that a server answers, and compares its clock with ours.
func (x *examination) server(ctx context.Context, address string, client *http.Client) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		x.fail("server", "write an address such as https://server.example.org:7443", "%v", err)
		return
	}
	asked := time.Now()
	answer, err := client.Do(r)
	if err != nil {
		var wrong *url.Error
		if errors.As(err, &wrong) {
			err = wrong.Err
		}
		x.fail("server", "check that it runs, its address, the network, and a firewall between", "%s: %v", address, err)
		return
	}
	took := time.Since(asked)
	_ = answer.Body.Close() // the head is enough
	x.ok("server", "%s answers after %s", address, took.Round(time.Millisecond))
	if state := answer.TLS; state != nil {
		x.serverCertificate(state)
	}
	theirs, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		x.warn("clock", "check that the address is a Loadstar server's", "the server does not say its time")
		return
	}
	// The header has whole seconds, so half a second is added to it.
	skew := asked.Add(took / 2).Sub(theirs.Add(500 * time.Millisecond))
	text := fmt.Sprintf("%s ahead of the server's", skew.Round(time.Second))
	if skew < 0 {
		text = fmt.Sprintf("%s behind the server's", (-skew).Round(time.Second))
	}
	const set = "set the clock of this machine or of the server, for example with timedatectl set-ntp true"
	switch skew = skew.Abs(); {
	case skew > skewFail:
		x.fail("clock", set, "%s", text)
	case skew > skewWarn:
		x.warn("clock", set, "%s", text)
	default:
		x.ok("clock", "%s", text)
	}
}

func (x *examination) serverCertificate(state *tls.ConnectionState) {
	if len(state.PeerCertificates) == 0 {
		return
	}
	// The server makes a new certificate at every start and before the old one ends.
	x.certificate("server's certificate", state.PeerCertificates[0], 0, "start the server again")
}
