package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/server"
	"loadstar/server/access"
	"loadstar/server/web"
)

// webFlags contains the flags of the dashboard.
type webFlags struct {
	web.Config
	oidc   web.OIDC
	secret string   // file with the client's secret
	roles  []string // role=value
}

func (w *webFlags) add(f *pflag.FlagSet) {
	f.StringVar(&w.Listen, "web", "", "address for the dashboard, such as 127.0.0.1:7445; empty to disable")
	f.StringVar(&w.CertFile, "web-cert", "", "certificate of the dashboard (PEM `file`); it may be renewed while the server runs")
	f.StringVar(&w.KeyFile, "web-key", "", "key of the dashboard's certificate (PEM `file`)")
	f.BoolVar(&w.BehindProxy, "web-behind-proxy", false, "a proxy in front of the dashboard has the certificate")
	f.StringVar(&w.URL, "web-url", "", "`address` under which browsers reach the dashboard, for links (default from --web)")
	f.StringVar(&w.oidc.Issuer, "oidc-issuer", "", "`address` of an OpenID Connect provider with which people may sign in to the dashboard")
	f.StringVar(&w.oidc.ClientID, "oidc-client-id", "", "the provider's `ID` of this server")
	f.StringVar(&w.secret, "oidc-client-secret-file", "", "`file` with the client's secret (default none: a public client)")
	f.StringVar(&w.oidc.Claim, "oidc-claim", "groups", "`claim` of the ID token that decides the role")
	f.StringSliceVar(&w.roles, "oidc-roles", nil, "values of the claim for each role, such as viewer=staff,operator=grid,admin=it")
	f.BoolVar(&w.ReadOnly, "web-read-only", false, "refuse all changes from the dashboard")
}

// config returns the configuration of the dashboard, or nil if it is disabled. When the
// dashboard listens, its address is stored in page.
func (w *webFlags) config(roles []string, page *string) (*web.Config, error) {
	if w.Listen == "" {
		if w.CertFile != "" || w.KeyFile != "" || w.BehindProxy || w.URL != "" || w.ReadOnly || w.oidc.Issuer != "" {
			return nil, cli.Usagef("the dashboard is disabled: give its address with --web, or leave out the other --web and --oidc flags")
		}
		return nil, nil
	}
	if !slices.Contains(roles, server.Gateway) {
		return nil, cli.Usagef("--web is for the role gateway, which this process does not have")
	}
	if err := w.readOIDC(); err != nil {
		return nil, err
	}
	if err := w.Check(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	c := w.Config
	c.Ready = func(url string) { *page = url }
	return &c, nil
}

// readOIDC reads the settings for an OpenID Connect provider, if there is one.
func (w *webFlags) readOIDC() error {
	if w.oidc.Issuer == "" {
		if w.oidc.ClientID != "" || w.secret != "" || len(w.roles) > 0 {
			return cli.Usagef("the other --oidc flags need --oidc-issuer, the address of the provider")
		}
		return nil
	}
	w.OIDC = &w.oidc
	w.oidc.Roles = map[string]access.Role{}
	for _, pair := range w.roles {
		name, value, _ := strings.Cut(pair, "=")
		role, err := access.ParseRole(name)
		if err != nil || value == "" {
			return cli.Usagef("--oidc-roles: %q is not ROLE=VALUE with the role viewer, operator or admin", pair)
		}
		if !w.oidc.Roles[value].Includes(role) {
			w.oidc.Roles[value] = role
		}
	}
	if w.secret == "" {
		return nil
	}
	text, err := os.ReadFile(w.secret)
	if err != nil {
		return fmt.Errorf("--oidc-client-secret-file: %w", err)
	}
	if w.oidc.ClientSecret = strings.TrimSpace(string(text)); w.oidc.ClientSecret == "" {
		return fmt.Errorf("--oidc-client-secret-file: %s is empty", w.secret)
	}
	return nil
}

// printServing prints what an operator does next.
func printServing(out io.Writer, c server.Config, address, page string) {
	if c.Operators == "" {
		fmt.Fprintf(out, "agents and operators: %s\n", address)
	} else {
		fmt.Fprintf(out, "agents: %s\n", address)
		host, port, _ := net.SplitHostPort(c.Operators) // the server listens there
		if slices.Contains([]string{"", "0.0.0.0", "::"}, host) {
			host = c.Hosts[0]
		}
		address = "https://" + net.JoinHostPort(host, port)
		fmt.Fprintf(out, "operators: %s\n", address)
	}
	var flags string
	if address != "https://localhost:7443" {
		flags += " --server " + address
	}
	if c.Dir != "loadstar-data" {
		flags += " --operator " + filepath.Join(c.Dir, "operator")
	}
	fmt.Fprintf(out, "folder: %s\n", c.Dir)
	fmt.Fprintf(out, "add an agent: loadstar token create%s\n", flags)
	if page != "" {
		fmt.Fprintf(out, "dashboard: %s\nsign in: loadstar web login%s\n", page, flags)
	}
}
