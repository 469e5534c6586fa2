package keeper

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/fed/member"
	"loadstar/internal/mtls"
	v1 "loadstar/proto/loadstar/v1"
)

// TestServe calls a keeper over TLS as its server, as a stranger, and with another pin.
func TestServe(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	w := newWorld(t, 20, 1, testRules())
	k := w.keepers[0]
	w.fleet(6)
	_, server, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Serve(ctx, l, []member.Pin{member.PinOf(server.Public().(ed25519.PublicKey))}) }()
	client := func(key ed25519.PrivateKey, pin member.Pin) v1.KeeperServiceClient {
		config, err := mtls.Pinned(key, func(got [32]byte) bool { return got == pin })
		if err != nil {
			t.Fatal(err)
		}
		tr := mtls.Transport(config)
		t.Cleanup(tr.CloseIdleConnections)
		return v1.NewKeeperServiceClient(mtls.Client(tr), "https://"+l.Addr().String())
	}
	c := client(server, k.Pin())
	if a, err := c.State(ctx, &v1.KeeperStateRequest{Fleet: "fleet"}); err != nil || len(a.Members) != 6 {
		t.Fatal(a, err)
	}
	q := w.round("run", 0, 30_000)
	all := everybody(w, q)
	r := request(q, all)
	a, err := c.Release(ctx, r)
	if err != nil || member.Verify(k.Statement().Identity, r, a) != nil {
		t.Fatal(err)
	}
	_, err = c.Release(ctx, request(q, all[1:]))
	wire := (*connect.Error)(nil)
	if !errors.As(err, &wire) || wire.Code() != connect.CodeFailedPrecondition || len(wire.Details()) != 1 {
		t.Fatal(err)
	}
	if d, err := wire.Details()[0].Value(); err != nil || d.(*v1.KeeperRefusal).Rule != ruleOnce {
		t.Error(d, err)
	}
	if _, err := client(stranger, k.Pin()).State(ctx, &v1.KeeperStateRequest{Fleet: "fleet"}); err == nil {
		t.Error("a stranger had an answer")
	}
	if _, err := client(server, member.Pin{}).State(ctx, &v1.KeeperStateRequest{Fleet: "fleet"}); err == nil || !strings.Contains(err.Error(), "pinned") {
		t.Errorf("another keeper was believed: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestControl carries out commands in a folder, without and with a running keeper.
func TestControl(t *testing.T) {
	if testing.Short() {
		t.Skip("listens on a socket")
	}
	dir, err := os.MkdirTemp("", "keeper")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if _, err := Ask(t.Context(), dir, Command{Do: "show"}); err == nil || !strings.Contains(err.Error(), "keeper init") {
		t.Errorf("in an empty folder: %v", err)
	}
	pin, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir); err == nil {
		t.Error("a second identity replaced the first")
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigName), []byte("fleet: fleet\nleast: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(c Command, running bool) Reply {
		t.Helper()
		r, err := Ask(t.Context(), dir, c)
		if err != nil || r.Running != running || r.Identity != pin.String() {
			t.Fatal(r, err)
		}
		return r
	}
	until := time.Now().Add(time.Hour)
	if _, err := member.ParseCode(ask(Command{Do: "invite", Uses: 1, Until: until}, false).Code); err != nil {
		t.Error(err)
	}
	c, err := ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	k, err := Open(dir, c.Options())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, c.Options()); err == nil {
		t.Error("two keepers on one folder")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.ServeControl(ctx, dir) }()
	for try := 0; ; try++ { // until the socket exists
		if _, err := askRunning(ctx, filepath.Join(dir, socketName), Command{Do: "members"}); err == nil {
			break
		} else if try > 200 {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := member.ParseCode(ask(Command{Do: "invite", Uses: 1, Until: until}, true).Code); err != nil {
		t.Error(err)
	}
	ask(Command{Do: "approve", Plan: "abc"}, true)
	s := ask(Command{Do: "show"}, true)
	if got, err := s.ReadStatement(); err != nil || got.Rules.Least != 7 || got.Rules.Quorum != 700 {
		t.Error(got, err)
	}
	var kinds []string
	for _, e := range ask(Command{Do: "log", Last: 100}, true).Entries {
		kinds = append(kinds, e.Kind)
	}
	if got := strings.Join(kinds, " "); got != "start statement invite start invite approve" {
		t.Errorf("the log has %s", got)
	}
	if _, err := Ask(t.Context(), dir, Command{Do: "revoke", Agent: "nobody"}); err == nil || !strings.Contains(err.Error(), "not a member") {
		t.Error(err)
	}
	if _, err := Ask(t.Context(), dir, Command{Do: "dance"}); err == nil {
		t.Error("danced")
	}
	stop()
	if err := errors.Join(<-ended, k.Close()); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte("fleet: north\nage: 2d\nquorum: 0.85\nmembers: server\nplans: approved\n"))
	o := c.Options()
	if err != nil || o.Rules.Age != 2*86400 || o.Rules.Quorum != 850 || o.Rules.Invited || !o.Approved || o.Rules.Least != 20 || o.Daily != 1000 {
		t.Error(o, err)
	}
	for _, bad := range []string{"least: 1", "quorum: 1.5", "members: all", "plans: none", "servers: [x]", "color: red", "daily: -1", "age: -1h"} {
		if _, err := ParseConfig([]byte(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}
