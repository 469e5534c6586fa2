package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"
)

// errOtherRoot is returned if the server's root certificate is not the one that the token
// names.
var errOtherRoot = errors.New("this server did not create the token, so the token was not sent; check the address, or get a token from the operator of this server")

// explained wraps an error with a message that tells an installer what to do. Error returns
// only the message; Unwrap returns the cause.
type explained struct {
	says string
	err  error
}

func (e *explained) Error() string { return e.says }
func (e *explained) Unwrap() error { return e.err }

// explain describes why a call failed. The string refused describes what to do if the server
// refused the call.
func explain(doing, server string, err error, refused string) error {
	says := why(err)
	var answer *connect.Error
	if says == "" && errors.As(err, &answer) {
		switch answer.Code() {
		case connect.CodeUnauthenticated, connect.CodePermissionDenied:
			says = fmt.Sprintf("the server refuses (%s): %s", strings.TrimSuffix(clean(answer.Message()), ": refused"), refused)
		case connect.CodeUnavailable, connect.CodeResourceExhausted:
			says = fmt.Sprintf("the server cannot be reached or is busy (%s): try again later", clean(answer.Message()))
		case connect.CodeUnimplemented:
			says = fmt.Sprintf("the address does not belong to a Loadstar server, or its version is too old (%s)", clean(answer.Message()))
		default:
			says = clean(answer.Message())
		}
	} else if says == "" {
		says = err.Error()
	}
	return fmt.Errorf("%s %s: %w", doing, server, &explained{says, err})
}

// why explains an error that prevented any response, such as a failed connection. It
// returns "" for other errors.
func why(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		names   x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		lookup  *net.DNSError
		op      *net.OpError
		late    net.Error
	)
	switch {
	case errors.Is(err, errOtherRoot):
		return errOtherRoot.Error()
	case errors.Is(err, context.Canceled):
		return "cancelled before the server responded"
	case errors.As(err, &unknown):
		return "the server's certificate does not come from the root that this agent trusts: check the address, and check for an intercepting proxy"
	case errors.As(err, &names):
		return fmt.Sprintf("the server's certificate is valid for %s, not for %s: use a valid name, or ask the server's operator to add this one with serve --host",
			certified(names.Certificate), names.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Sprintf("the server's certificate: %v; if the clock is right, tell the server's operator", wrongTime(invalid.Cert, time.Now()))
	case errors.As(err, &invalid):
		return "the certificate is not valid for a server: check the address, and check for an intercepting proxy"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "the port does not speak TLS: check the port number"
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return fmt.Sprintf("host %s not found: check the address and the DNS of this network", lookup.Name)
	case errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "expired certificate"):
		return "the server reports that this agent's certificate has expired: check this machine's clock; if it is right, join again with a new token"
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Sprintf("the server closed the connection (%v): it does not accept this agent's certificate or does not support TLS 1.3", op.Err)
	case errors.As(err, &op) && op.Op == "proxyconnect":
		return fmt.Sprintf("cannot connect through the proxy set in the environment (%v)", op.Err)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Sprintf("cannot connect (%v): check that the address is right, the server is running, and its port is reachable", op)
	case errors.As(err, &late) && late.Timeout():
		return "timed out: check the network"
	}
	return ""
}

// wrongTime returns an error that says whether a certificate has expired or is not valid
// yet.
func wrongTime(c *x509.Certificate, now time.Time) error {
	const form = "2006-01-02 15:04 MST"
	if now.Before(c.NotBefore) {
		return fmt.Errorf("it is valid from %s, but this machine's clock shows %s; set the clock", c.NotBefore.UTC().Format(form), now.UTC().Format(form))
	}
	return fmt.Errorf("it expired on %s, and this machine's clock shows %s; check the clock", c.NotAfter.UTC().Format(form), now.UTC().Format(form))
}

// certified returns the hosts for which a server's certificate is valid, as a string.
func certified(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no host"
	}
	return clean(strings.Join(all, ", "))
}

// clean makes text from a server safe to print in a terminal.
func clean(text string) string {
	const most = 300
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "..."
	}
	return text
}
