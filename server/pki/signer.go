package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"loadstar/internal/mtls"
)

// signerFor is the time limit for a call to an external signer. Tests lower it.
var signerFor = 15 * time.Second

// signerBytes is the maximum size of an external signer's response.
const signerBytes = 1 << 13

// Signer is a private key in another program, for example in a hardware module. It is safe
// for concurrent use if the program is.
type Signer struct {
	public *ecdsa.PublicKey
	call   func(ctx context.Context, verb string, input []byte) ([]byte, error)
}

// OpenSigner asks an external signer for its public key and for a signature, to find mistakes
// early. The address is exec:COMMAND or a URL. "COMMAND public" writes the public key in PEM.
// "COMMAND sign" reads a SHA-256 digest of 32 bytes and writes an ECDSA signature in ASN.1. A
// URL is used in the same way, through GET URL/public and POST URL/sign.
func OpenSigner(ctx context.Context, address string) (*Signer, error) {
	s, shown := &Signer{}, address
	if command, ok := strings.CutPrefix(address, "exec:"); ok {
		args := strings.Fields(command)
		if len(args) == 0 {
			return nil, errors.New("the external signer exec: contains no command")
		}
		s.call = func(ctx context.Context, verb string, input []byte) ([]byte, error) {
			return run(ctx, args, verb, input)
		}
	} else {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, errors.New("an external signer is exec:COMMAND, https://HOST or http://localhost")
		}
		shown = u.Redacted()
		if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, fmt.Errorf("the external signer %s is on another machine; use https", shown)
		}
		s.call = func(ctx context.Context, verb string, input []byte) ([]byte, error) { return post(ctx, u, verb, input) }
	}
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("the external signer %s: %w; start it, or correct --pki-signer, or keys.signers in server.yaml", shown, err)
	}
	return s, nil
}

func (s *Signer) open(ctx context.Context) error {
	text, err := s.within(ctx, "public", nil)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" {
		return errors.New("the answer to public is not a public key in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return err
	}
	var ok bool
	if s.public, ok = key.(*ecdsa.PublicKey); !ok || s.public.Curve != elliptic.P256() {
		return errors.New("its key is not an ECDSA key on P-256")
	}
	digest := sha256.Sum256([]byte("Loadstar tries its external signer"))
	_, err = s.signature(ctx, digest[:])
	return err
}

// Public returns the public key.
func (s *Signer) Public() crypto.PublicKey { return s.public }

// Sign signs a SHA-256 digest.
func (s *Signer) Sign(_ io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	if o.HashFunc() != crypto.SHA256 {
		return nil, fmt.Errorf("an external signer signs SHA-256 digests, not %v", o.HashFunc())
	}
	signature, err := s.signature(context.Background(), digest)
	if err != nil {
		return nil, fmt.Errorf("the external signer: %w", err)
	}
	return signature, nil
}

func (s *Signer) signature(ctx context.Context, digest []byte) ([]byte, error) {
	signature, err := s.within(ctx, "sign", digest)
	if err != nil {
		return nil, err
	}
	if !ecdsa.VerifyASN1(s.public, digest, signature) {
		return nil, errors.New("the answer to sign is not an ECDSA signature in ASN.1 of the digest by its public key")
	}
	return signature, nil
}

// within calls the signer with a time limit.
func (s *Signer) within(ctx context.Context, verb string, input []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signerFor)
	defer cancel()
	out, err := s.call(ctx, verb, input)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer to %s within %v", verb, signerFor)
	}
	return out, err
}

func run(ctx context.Context, args []string, verb string, input []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, args[0], append(args[1:len(args):len(args)], verb)...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = bytes.NewReader(input)
	var out, says limited
	cmd.Stdout, cmd.Stderr = &out, &says
	if err := cmd.Run(); err != nil {
		if text := strings.Join(strings.Fields(string(says.text)), " "); text != "" {
			return nil, fmt.Errorf("%s %s: %w: %.500s", args[0], verb, err, text)
		}
		return nil, fmt.Errorf("%s %s: %w", args[0], verb, err)
	}
	return out.text, nil
}

// limited keeps the beginning of a program's output. It does not embed a bytes.Buffer, whose
// ReadFrom would keep all of it.
type limited struct{ text []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.text = append(l.text, p[:min(len(p), signerBytes-len(l.text))]...)
	return len(p), nil
}

// client calls external signers. It follows no redirects, which could lead to another machine
// without TLS.
var client = mtls.Client(http.DefaultTransport)

func post(ctx context.Context, u *url.URL, verb string, input []byte) ([]byte, error) {
	method := http.MethodPost
	if input == nil {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, u.JoinPath(verb).String(), bytes.NewReader(input))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	out, err := io.ReadAll(io.LimitReader(answer.Body, signerBytes))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.500s", answer.Status, strings.TrimSpace(string(out)))
	}
	return out, err
}
