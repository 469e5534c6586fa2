package mtls

import (
	"crypto/ed25519"
	"crypto/sha256"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestPinned connects with the correct keys, and with each side's key replaced.
func TestPinned(t *testing.T) {
	key := func() (ed25519.PrivateKey, [sha256.Size]byte) {
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		return private, sha256.Sum256(public)
	}
	server, serverPin := key()
	client, clientPin := key()
	stranger, strangerPin := key()
	only := func(pin [sha256.Size]byte) func([sha256.Size]byte) bool {
		return func(got [sha256.Size]byte) bool { return got == pin }
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })) // the client reports errors
	var err error
	if s.TLS, err = Pinned(server, only(clientPin)); err != nil {
		t.Fatal(err)
	}
	s.StartTLS()
	defer s.Close()
	for name, x := range map[string]struct {
		key  ed25519.PrivateKey
		want [sha256.Size]byte
		ok   bool
	}{
		"both right":         {client, serverPin, true},
		"a stranger calls":   {stranger, serverPin, false},
		"a stranger answers": {client, strangerPin, false},
	} {
		config, err := Pinned(x.key, only(x.want))
		if err != nil {
			t.Fatal(err)
		}
		tr := Transport(config)
		r, err := Client(tr).Get(s.URL)
		if err == nil {
			_ = r.Body.Close() // nothing was written
		}
		tr.CloseIdleConnections()
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
