package operate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// office is a server that issues certificates and counts them.
type office struct {
	v1.UnimplementedOperatorServiceHandler
	dir       string // folder of the authority
	authority atomic.Pointer[pki.Authority]
	renewed   int
	agents    int64 // number of agents with certificates of the oldest issuer
	broken    bool
	url       string
	operator  string // folder with credentials
}

func newOffice(t *testing.T) *office {
	t.Helper()
	t.Setenv("LOADSTAR_SERVER", "")
	t.Setenv("LOADSTAR_OPERATOR", "")
	o := &office{dir: t.TempDir()}
	o.operator = filepath.Join(o.dir, "operator")
	if _, err := pki.Open(filepath.Join(o.dir, "pki"), pki.Keys{}); err != nil {
		t.Fatal(err)
	}
	a := o.reopen(t)
	if _, err := a.WriteOperator(o.operator, time.Hour, func(string) (bool, error) { return false, nil }); err != nil {
		t.Fatal(err)
	}
	_, calls := v1.NewOperatorServiceHandler(o)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.authority.Load().Middleware(calls).ServeHTTP(w, r)
	}))
	s.Listener = tls.NewListener(s.Listener, &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := o.authority.Load().TLS([]string{"127.0.0.1"})
			if err != nil {
				return nil, err
			}
			return c.GetConfigForClient(h)
		},
	})
	s.Start()
	t.Cleanup(s.Close)
	o.url = "https://" + s.Listener.Addr().String()
	return o
}

// reopen makes the server use the current files of the authority.
func (o *office) reopen(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.OpenExisting(filepath.Join(o.dir, "pki"), pki.Keys{})
	if err != nil {
		t.Fatal(err)
	}
	o.authority.Store(a)
	return a
}

func (o *office) Whoami(context.Context, *v1.WhoamiRequest) (*v1.WhoamiResponse, error) {
	return &v1.WhoamiResponse{Name: "local"}, nil
}

func (o *office) RenewCertificate(ctx context.Context, r *v1.RenewCertificateRequest) (*v1.RenewCertificateResponse, error) {
	o.renewed++
	a := o.authority.Load()
	if o.broken {
		return nil, errors.New("the disk is full")
	}
	answer := &v1.RenewCertificateResponse{Roots: a.Roots()}
	if !a.Outdated(pki.Leaf(ctx)) {
		return answer, nil
	}
	who, _ := pki.From(ctx)
	issued, err := a.Issue(r.Csr, who, time.Hour)
	answer.Certificates = issued.Chain
	return answer, err
}

func (o *office) ListIssuers(context.Context, *v1.ListIssuersRequest) (*v1.ListIssuersResponse, error) {
	answer := &v1.ListIssuersResponse{}
	for n, i := range o.authority.Load().Issuers() {
		x := &v1.Issuer{Id: i.ID, Name: i.Name}
		if n == 0 {
			x.Agents, x.Expired, x.Certificates = o.agents, 1, 2
		}
		answer.Issuers = append(answer.Issuers, x)
	}
	return answer, nil
}

// folder returns the operator's credentials in the folder.
func (o *office) folder(t *testing.T) *mtls.Credentials {
	t.Helper()
	c, err := mtls.ReadFolder(o.operator)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// run runs a pki command.
func (o *office) run(args ...string) (out, problems string, err error) {
	cmd := newPKI()
	var a, b bytes.Buffer
	cmd.SetOut(&a)
	cmd.SetErr(&b)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(append(args, "--dir", o.dir))
	err = cmd.Execute()
	return a.String(), b.String(), err
}

// A command replaces the certificate and the roots in its folder when the server's issuer has
// changed, and only the roots when a previous one is retired. The key does not change.
func TestFollowsARotation(t *testing.T) {
	o := newOffice(t)
	flags := operatorFlags{server: o.url, identity: o.operator}
	whoami := func(name string, renewals, roots int) {
		t.Helper()
		c, err := flags.dial()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := c.Whoami(t.Context(), &v1.WhoamiRequest{}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if n := len(o.folder(t).Roots()); o.renewed != renewals || n != roots {
			t.Errorf("%s: %d renewals and %d roots, want %d and %d", name, o.renewed, n, renewals, roots)
		}
	}
	first := o.folder(t)
	whoami("before", 0, 1)
	if err := pki.Rotate(filepath.Join(o.dir, "pki"), pki.Keys{}, pki.Rotation{Root: true}); err != nil {
		t.Fatal(err)
	}
	o.reopen(t)
	whoami("after the rotation", 1, 2)
	whoami("again", 1, 2)
	next := o.folder(t)
	if next.Leaf.Equal(first.Leaf) || !next.Key.Equal(first.Key) {
		t.Error("the certificate is the old one, or the key is new")
	}
	if err := pki.Retire(filepath.Join(o.dir, "pki"), false); err != nil {
		t.Fatal(err)
	}
	o.reopen(t)
	whoami("after the former root was retired", 2, 1)
	if c := o.folder(t); !c.Leaf.Equal(next.Leaf) {
		t.Error("a certificate of the newest issuer was replaced")
	}
	whoami("again", 2, 1)
}

// If the renewal fails, the command still succeeds and reports the failure, and the folder does
// not change.
func TestRenewalFails(t *testing.T) {
	o := newOffice(t)
	before := o.folder(t)
	if err := pki.Rotate(filepath.Join(o.dir, "pki"), pki.Keys{}, pki.Rotation{}); err != nil {
		t.Fatal(err)
	}
	o.reopen(t)
	o.broken = true
	var said bytes.Buffer
	f := &refresher{RoundTripper: mtls.Transport(before.TLS()), folder: o.operator, server: o.url, had: *before, warn: &said}
	c := v1.NewOperatorServiceClient(mtls.Client(f), o.url)
	if _, err := c.Whoami(t.Context(), &v1.WhoamiRequest{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "the disk is full") || !strings.Contains(said.String(), o.operator) {
		t.Errorf("it says %q", said.String())
	}
	if after := o.folder(t); !after.Leaf.Equal(before.Leaf) {
		t.Error("the folder has changed")
	}
}

// The previous issuer cannot be retired while its certificates are in use, unless --force is
// given.
func TestRetire(t *testing.T) {
	o := newOffice(t)
	o.agents = 3
	fails := func(want string, args ...string) {
		t.Helper()
		if _, _, err := o.run(append([]string{"retire"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	fails("no rotation is in progress", "--server", o.url)
	if _, _, err := o.run("rotate"); err != nil {
		t.Fatal(err)
	}
	fails("the server does not use", "--server", o.url)
	o.reopen(t)
	fails("3 agents use certificates of Loadstar issuer", "--server", o.url)
	fails("(1 expired), and users have 2", "--server", o.url)
	out, _, err := o.run("show", "--server", o.url)
	if lines := strings.Split(out, "\n"); err != nil || len(lines) < 3 || !strings.HasSuffix(strings.Join(strings.Fields(lines[1]), " "), "3 1 2") || !strings.HasSuffix(strings.Join(strings.Fields(lines[2]), " "), "0 0 0") {
		t.Errorf("%v\n%s", err, out)
	}
	// Without a server, the command shows the content of the files.
	out, said, err := o.run("show", "--server", "https://127.0.0.1:1")
	if err != nil || !strings.Contains(said, "not counted") || strings.Count(out, "Loadstar issuer") != 2 {
		t.Errorf("%v %s\n%s", err, said, out)
	}
	fails("--force retires it", "--server", "https://127.0.0.1:1")
	if _, err := os.Stat(filepath.Join(o.dir, "pki", "previous.pem")); err != nil {
		t.Fatal("the former issuer was retired:", err)
	}
	if _, _, err := o.run("retire", "--force", "--server", "https://127.0.0.1:1"); err != nil {
		t.Error(err)
	}
	if all, err := pki.Issuers(filepath.Join(o.dir, "pki")); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
