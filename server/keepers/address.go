package keepers

import (
	"fmt"
	"net/url"
	"strings"

	"loadstar/fed/member"
)

// Address contains a keeper's name, address and identity.
type Address struct {
	Name     string
	URL      string
	Identity member.Pin
}

// Parse parses an address in the format NAME=URL,sha256:HEX.
func Parse(text string) (a Address, err error) {
	name, rest, _ := strings.Cut(text, "=")
	at, identity, ok := strings.Cut(rest, ",")
	if !ok {
		at, identity, ok = strings.Cut(rest, " ")
	}
	if !ok || name == "" {
		return a, fmt.Errorf("%q is not a keeper: want NAME=URL,sha256:IDENTITY, as 'loadstar keeper init' prints it", text)
	}
	u, err := url.Parse(strings.TrimSpace(at))
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return a, fmt.Errorf("the address of keeper %s is %q: want https://HOST:PORT", name, at)
	}
	a.Name, a.URL = strings.TrimSpace(name), strings.TrimSuffix(u.String(), "/")
	if a.Identity, err = member.ParsePin(identity); err != nil {
		return a, fmt.Errorf("keeper %s: %w", name, err)
	}
	return a, nil
}
