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

// errOtherRoot is that of a server which does not show the root that a token names.
var errOtherRoot = errors.New("the server is not the one that made this token, and the token was not sent: check the address, or get a token from this server's operator")

// explained is an error in the words of what somebody in front of a meter cabinet can
// do about it. It reads as what it says, and is what it was.
type explained struct {
	says string
	err  error
}

func (e *explained) Error() string { return e.says }
func (e *explained) Unwrap() error { return e.err }

// explain says what went wrong in a call, and what to do if the server refuses it.
func explain(doing, server string, err error, refused string) error {
	says := why(err)
	var answer *connect.Error
	if says == "" && errors.As(err, &answer) {
		switch answer.Code() {
		case connect.CodeUnauthenticated, connect.CodePermissionDenied:
			says = fmt.Sprintf("the server refuses (%s): %s", clean(answer.Message()), refused)
		case connect.CodeUnavailable, connect.CodeResourceExhausted:
			says = fmt.Sprintf("the server cannot be reached or is busy (%s): try again in a while", clean(answer.Message()))
		case connect.CodeUnimplemented:
			says = fmt.Sprintf("what answers there is no Loadstar server, or an older one (%s)", clean(answer.Message()))
		default:
			says = clean(answer.Message())
		}
	} else if says == "" {
		says = err.Error()
	}
	return fmt.Errorf("%s %s: %w", doing, server, &explained{says, err})
}

// why explains what kept a call from being answered; it is empty if that is not why.
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
		return "given up before there was an answer"
	case errors.As(err, &unknown):
		return "the server's certificate is of another root than the one that this agent trusts: is this the right address, and nobody in between?"
	case errors.As(err, &names):
		return fmt.Sprintf("the server's certificate is for %s, and not for %s: use what it is for, or have the server's operator add this",
			certified(names.Certificate), names.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Sprintf("the server's certificate: %v; if it is right, tell the server's operator", wrongTime(invalid.Cert, time.Now()))
	case errors.As(err, &invalid):
		return "the server shows a certificate that is no server's: is this the right address, and nobody in between?"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "what answers there does not speak TLS: is this the server's port?"
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return fmt.Sprintf("there is no host %s: check the address, and this network's DNS", lookup.Name)
	case errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "expired certificate"):
		return "the server finds this agent's certificate expired: check this machine's clock; if it is right, join again with a new token"
	case errors.As(err, &op) && op.Op == "remote error":
		return fmt.Sprintf("the server broke off (%v): it does not accept this agent's certificate, or does not speak TLS 1.3", op.Err)
	case errors.As(err, &op) && op.Op == "proxyconnect":
		return fmt.Sprintf("no connection through the proxy that the environment names (%v)", op.Err)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Sprintf("no connection (%v): is the address right, the server running, and its port open from here?", op)
	case errors.As(err, &late) && late.Timeout():
		return "no answer in time: is the network working?"
	}
	return ""
}

// wrongTime says what is wrong with a certificate that is not valid now.
func wrongTime(c *x509.Certificate, now time.Time) error {
	const form = "2006-01-02 15:04 MST"
	if now.Before(c.NotBefore) {
		return fmt.Errorf("it is valid from %s on, and this machine's clock says %s: set the clock", c.NotBefore.UTC().Format(form), now.UTC().Format(form))
	}
	return fmt.Errorf("it expired on %s, and this machine's clock says %s: check the clock", c.NotAfter.UTC().Format(form), now.UTC().Format(form))
}

// certified lists what a server's certificate is for.
func certified(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return "no host at all"
	}
	return clean(strings.Join(all, ", "))
}

// clean makes what a server said fit to be printed.
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
