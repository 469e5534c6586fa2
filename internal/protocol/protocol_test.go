package protocol

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	v1 "loadstar/proto/loadstar/v1"
)

// server answers check-ins, and announcements with an error.
type server struct {
	v1.UnimplementedAgentServiceHandler
	caller int // version of the last caller
}

func (s *server) Exchange(ctx context.Context, _ *v1.ExchangeRequest) (*v1.ExchangeResponse, error) {
	s.caller = OfCaller(ctx)
	return &v1.ExchangeResponse{}, nil
}

func (s *server) Announce(context.Context, *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such clients"))
}

// TestVersions connects programs of several versions. Programs of version 1 send no header.
func TestVersions(t *testing.T) {
	for name, c := range map[string]struct {
		agent, server []connect.Interceptor
		want          string
		caller        int
	}{
		"both old":               {nil, nil, "", 1},
		"old agent":              {nil, []connect.Interceptor{Server()}, "", 1},
		"old server":             {[]connect.Interceptor{side{client: true, version: Version, oldest: Oldest}}, nil, "", Version},
		"both new":               {[]connect.Interceptor{side{client: true, version: Version, oldest: Oldest}}, []connect.Interceptor{Server()}, "", Version},
		"newer agent":            {[]connect.Interceptor{side{client: true, version: 9, oldest: 2}}, []connect.Interceptor{Server()}, "", 9},
		"agent is too old":       {nil, []connect.Interceptor{side{version: 3, oldest: 2}}, "this agent speaks version 1 of the protocol, this server serves 2 or newer: upgrade the agent", 0},
		"new agent is too old":   {[]connect.Interceptor{side{client: true, version: 2, oldest: 1}}, []connect.Interceptor{side{version: 9, oldest: 3}}, "this agent speaks version 2 of the protocol, this server serves 3 or newer: upgrade the agent", 0},
		"server is too old":      {[]connect.Interceptor{side{client: true, version: 3, oldest: 2}}, nil, "the server speaks version 1 of the protocol, this agent needs 2 or newer: upgrade the server", 3},
		"new server is too old":  {[]connect.Interceptor{side{client: true, version: 9, oldest: 4}}, []connect.Interceptor{Server()}, "the server speaks version 3 of the protocol, this agent needs 4 or newer: upgrade the server", 9},
		"both refuse each other": {[]connect.Interceptor{side{client: true, version: 1, oldest: 3}}, []connect.Interceptor{side{version: 2, oldest: 2}}, "the server speaks version 2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			_, handler := v1.NewAgentServiceHandler(s, connect.WithInterceptors(c.server...))
			h := httptest.NewServer(handler)
			defer h.Close()
			a := v1.NewAgentServiceClient(h.Client(), h.URL, connect.WithInterceptors(c.agent...))
			_, err := a.Exchange(t.Context(), &v1.ExchangeRequest{})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if s.caller != c.caller {
				t.Errorf("the server saw version %d, want %d", s.caller, c.caller)
			}
			// Errors carry the version too: an old server's error is not misread.
			_, err = a.Announce(t.Context(), &v1.AnnounceRequest{})
			if want := c.want; err == nil || !strings.Contains(err.Error(), want) || want == "" && connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

func TestOf(t *testing.T) {
	for text, want := range map[string]int{"": 1, "1": 1, "2": 2, "99": 99, "0": 0, "-1": 0, "two": 0, "99999999999": 0} {
		h := http.Header{}
		if text != "" {
			h.Set(Header, text)
		}
		if got := Of(h); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// The padded size of a message says little about the message.
func TestPadding(t *testing.T) {
	for size, want := range map[int]int{0: 0, 1: 256, 255: 256, 256: 256, 257: 512, 4095: 4096, 4096: 4096, 4097: 5120, 90722: 91136, 90734: 91136} {
		if got := size + len(Pad(size)); got != want {
			t.Errorf("%d bytes are padded to %d, want %d", size, got, want)
		}
	}
}
