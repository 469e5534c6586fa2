// Package protocol contains the version of the protocol between agents and servers. Both sides
// send their version in a header of every request and response. Each side decides which
// versions of its peer it accepts, so the newer program, which knows both versions, is the one
// that refuses.
//
// A field that an older program can ignore needs no new version. A change that the peer must
// know about does. Oldest is increased when one side cannot work without the change.
//
// Agents pad their calls, because an observer of the connection sees the size of each message.
//
// Programs that have enough memory for whole blobs and results call the agents' API with
// [FetchBlob] and [SendResult]. Agents themselves stream the data.
package protocol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

const (
	// Header is the header with the version.
	Header = "Loadstar-Protocol"
	// Padding is a header of agents' calls that hides the size of the message. Otherwise, the
	// size would reveal whether a result has a score, or a report has findings. The server
	// ignores the header. Padding requires HTTP/1.1, which agents use, because HTTP/2 compresses
	// headers.
	Padding = "Loadstar-Padding"
	// Version is the protocol version of this program.
	Version = 1
	// Oldest is the oldest version that this program accepts.
	Oldest = 1
)

// Of returns the version in a header; 0 means that it has none.
func Of(h http.Header) int {
	n, err := strconv.ParseUint(h.Get(Header), 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// Pad returns the padding for a message of the given size. It extends the message to a multiple
// of 256 bytes, or of 1 kB if the message is large.
func Pad(size int) string {
	step := 256
	if size >= 4096 {
		step = 1024
	}
	return strings.Repeat("0", (step-size%step)%step)
}

// side adds the version to one side's messages, and checks the version of the peer.
type side struct {
	client          bool
	version, oldest int
}

// Client returns an option for the clients of the agents' API. Calls fail if the server is too
// old.
func Client() connect.ClientOption {
	return connect.WithInterceptors(side{client: true, version: Version, oldest: Oldest}.interceptor())
}

// Server returns an interceptor for the server of the agents' API. It refuses agents that are
// too old.
func Server() connect.Interceptor { return side{version: Version, oldest: Oldest}.interceptor() }

func (s side) interceptor() connect.Interceptor { return connect.UnaryInterceptorFunc(s.intercept) }

// intercept checks the agent's version before a call at the server, and the server's version
// after a call at the agent.
func (s side) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
		mine := strconv.Itoa(s.version)
		if s.client {
			q.Header().Set(Header, mine)
			if m, ok := q.Any().(proto.Message); ok {
				q.Header().Set(Padding, Pad(proto.Size(m)))
			}
			r, err := next(ctx, q)
			// An error without a version does not necessarily come from the server.
			if h := headerOf(r, err); h != nil && Of(h) < s.oldest && (err == nil || h.Get(Header) != "") {
				// Do not use the response, which may have another meaning in the server's
				// version.
				return nil, fmt.Errorf("the server uses version %d of the protocol, but this agent needs %d or newer; upgrade the server", Of(h), s.oldest)
			}
			return r, err
		}
		var r connect.AnyResponse
		// If a server is unavailable, an agent keeps its results and tries again. Any other code
		// could make the agent drop the results.
		err := error(connect.NewError(connect.CodeUnavailable, fmt.Errorf("this agent uses version %d of the protocol, but this server serves %d or newer; upgrade the agent", Of(q.Header()), s.oldest)))
		if Of(q.Header()) >= s.oldest {
			r, err = next(ctx, q)
		}
		if h := headerOf(r, err); h != nil {
			h.Set(Header, mine)
		}
		return r, err
	}
}

// headerOf returns the header of a response, or nil if there is none.
func headerOf(r connect.AnyResponse, err error) http.Header {
	if err == nil {
		return r.Header()
	}
	if failed, ok := errors.AsType[*connect.Error](err); ok {
		return failed.Meta()
	}
	return nil
}

// OfCaller returns the version of the agent that makes a call.
func OfCaller(ctx context.Context) int {
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		return Of(call.RequestHeader())
	}
	return 0
}
