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

// server responds to check-ins, and returns an error for announcements.
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

// TestVersions connects programs of the first version, of made-up newer versions, and without a
// version.
func TestVersions(t *testing.T) {
	agent := func(version, oldest int) []connect.Interceptor {
		return []connect.Interceptor{side{client: true, version: version, oldest: oldest}.interceptor()}
	}
	serving := func(version, oldest int) []connect.Interceptor {
		return []connect.Interceptor{side{version: version, oldest: oldest}.interceptor()}
	}
	now := []connect.Interceptor{Server()}
	for name, c := range map[string]struct {
		agent, server []connect.Interceptor
		want          string
		caller        int
	}{
		"equal":                     {agent(Version, Oldest), now, "", Version},
		"newer agent":               {agent(9, 1), now, "", 9},
		"newer server":              {agent(Version, Oldest), serving(9, 1), "", Version},
		"agent without a version":   {nil, now, "this agent uses version 0 of the protocol, but this server serves 1 or newer; upgrade the agent", 0},
		"server without a version":  {agent(Version, Oldest), nil, "the server uses version 0 of the protocol, but this agent needs 1 or newer; upgrade the server", Version},
		"agent is too old":          {agent(Version, Oldest), serving(3, 2), "this agent uses version 1 of the protocol, but this server serves 2 or newer; upgrade the agent", 0},
		"server is too old":         {agent(3, 2), now, "the server uses version 1 of the protocol, but this agent needs 2 or newer; upgrade the server", 3},
		"a newer server is too old": {agent(9, 4), serving(3, 1), "the server uses version 3 of the protocol, but this agent needs 4 or newer; upgrade the server", 9},
		"both refuse each other":    {agent(1, 3), serving(2, 2), "the server uses version 2", 0},
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
			// Errors contain the version as well, so an old server's error is not misread.
			_, err = a.Announce(t.Context(), &v1.AnnounceRequest{})
			want := c.want
			if c.server == nil {
				want = "" // an error without a version does not necessarily come from the server
			}
			if err == nil || !strings.Contains(err.Error(), want) || want == "" && connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

func TestOf(t *testing.T) {
	for text, want := range map[string]int{"": 0, "1": 1, "2": 2, "99": 99, "0": 0, "-1": 0, "two": 0, "99999999999": 0} {
		h := http.Header{}
		if text != "" {
			h.Set(Header, text)
		}
		if got := Of(h); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestPadding checks that a message's padded size reveals little about the message.
func TestPadding(t *testing.T) {
	for size, want := range map[int]int{0: 0, 1: 256, 255: 256, 256: 256, 257: 512, 4095: 4096, 4096: 4096, 4097: 5120, 90722: 91136, 90734: 91136} {
		if got := size + len(Pad(size)); got != want {
			t.Errorf("%d bytes are padded to %d, want %d", size, got, want)
		}
	}
}
