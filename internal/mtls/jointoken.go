package mtls

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// The sizes are multiples of 5 bytes, which are whole groups of base32, so that every part
// has exactly one encoding.
const (
	secretBytes, secretChars = 20, 32
	pinBytes, pinChars       = 20, 32
	sumBytes, sumChars       = 5, 8

	prefix    = "ls1-"
	textChars = len(prefix) + secretChars + 1 + pinChars + 1 + sumChars
	maxChars  = 1024 // the maximum length of a token's text, with room for line breaks
)

var letters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// JoinToken lets agents join a server. Its text has the format ls1-<secret>-<pin>-<checksum>.
// The secret is random, and the server stores only its hash. The pin identifies the server's
// root certificate, so that an agent can verify the server before it sends the secret. The
// checksum distinguishes a truncated or mistyped token from one that the server does not
// accept.
//
// Printing or logging a token does not reveal its secret:
// only Text and Secret return it.
type JoinToken struct {
	// secret is a function so that fmt cannot print the bytes. If a token is in an unexported
	// field of another type, fmt ignores the token's methods, and with some verbs it also
	// follows pointers.
	secret func() [secretBytes]byte
	pin    string
}

// NewJoinToken returns a token with a new secret, for the server whose root certificate has this pin.
func NewJoinToken(pin string) (JoinToken, error) {
	if b, err := letters.DecodeString(pin); err != nil || len(b) != pinBytes {
		return JoinToken{}, fmt.Errorf("%q is not the pin of a root certificate", pin)
	}
	var secret [secretBytes]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return JoinToken{}, err
	}
	return of(secret, pin), nil
}

func of(secret [secretBytes]byte, pin string) JoinToken {
	return JoinToken{secret: func() [secretBytes]byte { return secret }, pin: pin}
}

// PinOf returns the pin of a root certificate, which is given in DER.
func PinOf(root []byte) string {
	h := sha256.Sum256(root)
	return letters.EncodeToString(h[:pinBytes])
}

// ParseJoinToken parses a token's text. It ignores white space and case. Errors do not contain the
// text.
func ParseJoinToken(text string) (JoinToken, error) {
	if len(text) > maxChars {
		return JoinToken{}, fmt.Errorf("this is not a join token: it has %d characters, want %d", len(text), textChars)
	}
	text = strings.ToLower(strings.Join(strings.Fields(text), ""))
	switch {
	case text == "":
		return JoinToken{}, errors.New("no join token is given")
	case len(text) < len(prefix) && strings.HasPrefix(prefix, text):
		return JoinToken{}, cutOff(text)
	case !strings.HasPrefix(text, prefix):
		if len(text) > 3 && text[:2] == "ls" && text[2] >= '2' && text[2] <= '9' {
			return JoinToken{}, errors.New("this join token is for a newer version of Loadstar: upgrade")
		}
		return JoinToken{}, fmt.Errorf("this is not a join token: a token begins with %q; copy it from the beginning", prefix)
	}
	for i, c := range []byte(text) {
		dash := i == len(prefix)-1 || i == len(prefix)+secretChars || i == textChars-sumChars-1
		if i < len("ls1") || i >= textChars {
			continue
		}
		if dash != (c == '-') || !dash && !(c >= 'a' && c <= 'z' || c >= '2' && c <= '7') {
			return JoinToken{}, fmt.Errorf("the join token is mistyped: character %d is invalid; copy it again", i+1)
		}
	}
	switch {
	case len(text) < textChars:
		return JoinToken{}, cutOff(text)
	case len(text) > textChars:
		return JoinToken{}, fmt.Errorf("the join token has %d characters, %d too many; copy only the token", len(text), len(text)-textChars)
	}
	head, sum := text[:textChars-sumChars], text[textChars-sumChars:]
	if tokenChecksum(head) != sum {
		return JoinToken{}, errors.New("the join token is mistyped: its checksum does not match; copy it again")
	}
	var secret [secretBytes]byte
	if _, err := letters.Decode(secret[:], []byte(text[len(prefix):][:secretChars])); err != nil {
		return JoinToken{}, errors.New("the join token is mistyped; copy it again")
	}
	return of(secret, text[len(prefix)+secretChars+1:][:pinChars]), nil
}

func cutOff(text string) error {
	return fmt.Errorf("the join token is cut off: it has %d of %d characters; copy all of it", len(text), textChars)
}

func tokenChecksum(head string) string {
	h := sha256.Sum256([]byte(head))
	return letters.EncodeToString(h[:sumBytes])
}

// Text returns the token's text for [ParseJoinToken], including the secret.
func (t JoinToken) Text() string {
	head := prefix + letters.EncodeToString(t.Secret()) + "-" + t.pin + "-"
	return head + tokenChecksum(head)
}

// Secret returns the secret, which the agent sends to the server.
func (t JoinToken) Secret() []byte {
	if t.secret == nil {
		return nil
	}
	b := t.secret()
	return b[:]
}

// Pin returns the pin of the server's root certificate.
func (t JoinToken) Pin() string { return t.pin }

// Hash returns the hash of the secret, which the server stores.
func (t JoinToken) Hash() []byte { return HashToken(t.Secret()) }

// HashToken returns the hash of a secret, by which the server looks up the token.
func HashToken(secret []byte) []byte {
	h := sha256.Sum256(secret)
	return h[:]
}

// String identifies the token by the beginning of its hash, without the secret.
func (t JoinToken) String() string { return "join token " + hex.EncodeToString(t.Hash()[:4]) }

// Format writes the same text as String for every verb of fmt.
func (t JoinToken) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) } // fmt ignores write errors as well

// LogValue returns String, so that logging a token does not reveal its secret.
func (t JoinToken) LogValue() slog.Value { return slog.StringValue(t.String()) }

var (
	_ fmt.Formatter  = JoinToken{}
	_ slog.LogValuer = JoinToken{}
)
