package mtls

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func newToken(t testing.TB) JoinToken {
	tok, err := NewJoinToken(PinOf([]byte("a root")))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestParse(t *testing.T) {
	tok := newToken(t)
	text := tok.Text()
	wrapped := "  " + strings.ToUpper(text[:30]) + "\r\n  " + text[30:60] + "\n" + text[60:] + "\n"
	for _, s := range []string{text, wrapped} {
		got, err := ParseJoinToken(s)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Secret(), tok.Secret()) || got.Pin() != tok.Pin() || got.Text() != text {
			t.Errorf("%q became %q", s, got.Text())
		}
	}
	if other := newToken(t); bytes.Equal(other.Secret(), tok.Secret()) {
		t.Error("two tokens have the same secret")
	}
}

// TestText compares a token's text with one that was computed with Python's hashlib and
// base64.
func TestText(t *testing.T) {
	const text = "ls1-aaaqeayeaudaocajbifqydiob4ibceqt-jajustitpylddo5dahk2zk3opo32u5go-oib2vq4c"
	tok, err := ParseJoinToken(text)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range tok.Secret() {
		if int(b) != i {
			t.Fatalf("the secret is %x", tok.Secret())
		}
	}
	if want := PinOf([]byte("root")); tok.Pin() != want {
		t.Errorf("pin %s, want %s", tok.Pin(), want)
	}
	if got := hex.EncodeToString(tok.Hash()); got != "e7aebf577f60412f0312d442c70a1fa6148c090bf5bab404caec29482ae779e8" {
		t.Error(got)
	}
	if !bytes.Equal(tok.Hash(), HashToken(tok.Secret())) {
		t.Error("agent and server compute different hashes")
	}
}

func TestParseRejects(t *testing.T) {
	text := newToken(t).Text()
	for n := 1; n < len(text); n++ {
		if _, err := ParseJoinToken(text[:n]); err == nil || !strings.Contains(err.Error(), "cut off") {
			t.Errorf("%d characters: %v", n, err)
		}
		if _, err := ParseJoinToken(text[n:]); err == nil {
			t.Errorf("without the first %d characters: accepted", n)
		}
	}
	for i := range text { // replace each character with another valid one
		wrong := []byte(text)
		wrong[i] = map[bool]byte{true: 'b', false: 'a'}[wrong[i] == 'a']
		if _, err := ParseJoinToken(string(wrong)); err == nil {
			t.Errorf("wrong character %d: accepted", i)
		} else if i > 4 && strings.Contains(err.Error(), "cut off") {
			t.Errorf("wrong character %d: %v", i, err)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"", "no join token"},
		{" \n", "no join token"},
		{"password", `begins with "ls1-"`},
		{strings.Replace(text, "ls1", "ls2", 1), "newer version"},
		{text + "a", "1 too many"},
		{text + " " + text, "too many"},
		{text[:10] + "0" + text[11:], "character 11 "},
		{text[:36] + "–" + text[37:], "character 37 "},
		{text[:40] + text[41:42] + text[40:41] + text[42:77], "cut off"},
		{strings.Repeat("x", 5000), "5000 characters"},
	} {
		if _, err := ParseJoinToken(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.90q: %v, want %q", c.text, err, c.want)
		}
	}
	for _, pin := range []string{"", "abc", strings.Repeat("a", 31) + "1", strings.Repeat("A", 32), strings.Repeat("a", 40)} {
		if _, err := NewJoinToken(pin); err == nil {
			t.Errorf("pin %q: accepted", pin)
		}
	}
}

// TestSecretIsHidden checks that printing or logging a token, or a value that contains a token,
// does not reveal the secret.
func TestSecretIsHidden(t *testing.T) {
	tok := newToken(t)
	type hidden struct{ tok JoinToken }
	type shown struct{ Tok JoinToken }
	var out bytes.Buffer
	for _, v := range []any{tok, &tok, hidden{tok}, &hidden{tok}, shown{tok}, []JoinToken{tok}, map[string]JoinToken{"a": tok}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("joined", "token", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("joined", "token", v)
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	all := strings.ToLower(out.String())
	raw := tok.Secret()
	for name, secret := range map[string]string{
		"text": letters.EncodeToString(raw), "hex": hex.EncodeToString(raw), "bytes": string(raw),
		"numbers": strings.Trim(fmt.Sprint(raw[:4]), "[]"),
		"go":      strings.Trim(fmt.Sprintf("%#v", raw[:3]), "[]byte{}"),
	} {
		if strings.Contains(all, strings.ToLower(secret)) {
			t.Errorf("the secret is visible as %s in %s", name, all)
		}
	}
	if !strings.Contains(all, tok.String()) {
		t.Error("the output does not identify the token")
	}
	_ = fmt.Sprint(JoinToken{}) // an empty token must not panic
}

func FuzzJoinToken(f *testing.F) {
	f.Add(newToken(f).Text())
	f.Add("ls1-")
	f.Add("ls1-aaaqeayeaudaocajbifqydiob4ibceqt-")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := ParseJoinToken(text)
		if err != nil {
			return
		}
		if again, err := ParseJoinToken(tok.Text()); err != nil || again.Text() != tok.Text() {
			t.Errorf("%q: %v", text, err)
		}
	})
}
