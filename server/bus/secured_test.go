package bus

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"loadstar/internal/freeport"
)

// accounts is a NATS operator with an account for Loadstar.
type accounts struct {
	t        *testing.T
	operator nkeys.KeyPair
	account  nkeys.KeyPair
	options  *server.Options
}

func pair(t *testing.T, make func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
	t.Helper()
	k, err := make()
	if err != nil {
		t.Fatal(err)
	}
	public, err := k.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return k, public
}

// secured starts a NATS server with TLS and accounts, as `nsc` sets one up. It returns the
// accounts and the file of the server's certificate authority.
func secured(t *testing.T) (a *accounts, ca string) {
	t.Helper()
	a = &accounts{t: t}
	var operator, system, ours string
	a.operator, operator = pair(t, nkeys.CreateOperator)
	_, system = pair(t, nkeys.CreateAccount)
	a.account, ours = pair(t, nkeys.CreateAccount)
	claims := jwt.NewOperatorClaims(operator)
	claims.SystemAccount = system
	resolver := &server.MemAccResolver{}
	for _, id := range []string{system, ours} {
		c := jwt.NewAccountClaims(id)
		if id == ours {
			c.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: 1, Consumer: 1}
		}
		text, err := c.Encode(a.operator)
		if err != nil {
			t.Fatal(err)
		}
		if err := resolver.Store(id, text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	ca, cert, key := certificate(t, dir, "nats")
	o, err := NodeConfig{Name: "n", Dir: filepath.Join(dir, "n"), Listen: freeport.ForTest(t), CAFile: ca, CertFile: cert, KeyFile: key}.options()
	if err != nil {
		t.Fatal(err)
	}
	o.TLSConfig.ClientAuth, o.TLSVerify = 0, false // users show credentials instead
	o.TrustedOperators, o.SystemAccount, o.AccountResolver = []*jwt.OperatorClaims{claims}, system, resolver
	s, _, lock, err := start(t.Context(), o, logOf(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
		lock.Close()
	})
	a.options = o
	return a, ca
}

func (a *accounts) url() string {
	return "tls://" + net.JoinHostPort(a.options.Host, strconv.Itoa(a.options.Port))
}

// user writes the credentials of a user who may do what the documentation allows a Loadstar
// process.
func (a *accounts) user(account nkeys.KeyPair) string {
	a.t.Helper()
	k, id := pair(a.t, nkeys.CreateUser)
	c := jwt.NewUserClaims(id)
	c.Permissions.Pub.Allow.Add("loadstar.results", "loadstar.wake", "$JS.API.STREAM.INFO.LOADSTAR_RESULTS",
		"$JS.API.STREAM.CREATE.LOADSTAR_RESULTS", "$JS.API.STREAM.UPDATE.LOADSTAR_RESULTS",
		"$JS.API.CONSUMER.*.LOADSTAR_RESULTS.>", "$JS.API.CONSUMER.MSG.NEXT.LOADSTAR_RESULTS.aggregators", "$JS.ACK.LOADSTAR_RESULTS.>")
	c.Permissions.Sub.Allow.Add("_INBOX.>", "loadstar.wake")
	text, err := c.Encode(account)
	if err != nil {
		a.t.Fatal(err)
	}
	seed, err := k.Seed()
	if err != nil {
		a.t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(text, seed)
	if err != nil {
		a.t.Fatal(err)
	}
	path := filepath.Join(a.t.TempDir(), "user.creds")
	if err := os.WriteFile(path, creds, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// A cluster with TLS and accounts serves the users of its account, with no more permissions
// than docs/how-to/stores.md lists, and nobody else.
func TestCredentials(t *testing.T) {
	t.Parallel()
	a, ca := secured(t)
	c := Config{URLs: []string{a.url()}, Replicas: 1, CAFile: ca, Credentials: a.user(a.account), Key: []byte("key")}
	b := open(t, c)
	woken, err := b.Woken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, b, "a", []byte("x"))
	if err := one(t, b, 1).Later(0); err != nil {
		t.Fatal(err)
	}
	if err := one(t, b, 2).Done(); err != nil {
		t.Fatal(err)
	}
	depthIs(t, b, 0, 0)
	b.Wake("run")
	select {
	case <-woken:
	case <-time.After(patient):
		t.Error("not woken")
	}
	shut(t, b)
	open(t, c) // the stream is there now

	stranger, _ := pair(t, nkeys.CreateAccount)
	otherCA, _, _ := certificate(t, t.TempDir(), "others")
	for name, c := range map[string]Config{
		"no credentials":        {URLs: c.URLs, Replicas: 1, CAFile: ca},
		"another account":       {URLs: c.URLs, Replicas: 1, CAFile: ca, Credentials: a.user(stranger)},
		"another authority":     {URLs: c.URLs, Replicas: 1, CAFile: otherCA, Credentials: c.Credentials},
		"the system's":          {URLs: c.URLs, Replicas: 1, Credentials: c.Credentials},
		"plain, if it may be":   {URLs: []string{strings.Replace(c.URLs[0], "tls://", "nats://", 1)}, Replicas: 1, Credentials: c.Credentials},
		"credentials of no one": {URLs: c.URLs, Replicas: 1, CAFile: ca, Credentials: ca},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if b, err := Open(ctx, c, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("connected with %s", name)
			shut(t, b)
		}
		cancel()
	}
}

// Whoever reaches NATS cannot make up results: a message without a gateway's MAC, or with
// the MAC of another message, is dropped and counted.
func TestForgedResults(t *testing.T) {
	t.Parallel()
	n := NodeConfig{Name: "n", Dir: t.TempDir(), Listen: freeport.ForTest(t)}
	node(t, n)
	c := Config{URLs: []string{"nats://" + n.Listen}, Replicas: 1, Key: []byte("key of the gateways")}
	b, err := Open(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, b)
	publish(t, b, "honest", []byte("x"))
	_, forged := pack([]*offer{{result: result{"made up", []byte("y")}}})
	stranger, err := nats.Connect(c.URLs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_, honest := pack([]*offer{{result: result{"honest", []byte("x")}}})
	for _, m := range []*nats.Msg{
		{Data: forged},
		{Data: forged, Header: nats.Header{macHeader: {"00"}}},
		{Data: forged, Header: nats.Header{macHeader: {"not hexadecimal"}}},
		{Data: forged, Header: b.signed(honest).Header},
		{Data: forged, Header: (&Bus{config: Config{Key: []byte("another key")}}).signed(forged).Header},
	} {
		m.Subject = resultSubject
		if _, err := stranger.RequestMsg(m, patient); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b, "also honest", []byte("z"))
	seen := takeAll(t, b, func(*Delivery) {})
	if len(seen) != 2 || seen["honest"] != 1 || seen["also honest"] != 1 || b.Forged() != 5 {
		t.Errorf("%v was taken, %d dropped", seen, b.Forged())
	}
}
