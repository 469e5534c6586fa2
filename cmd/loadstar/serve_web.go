package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"loadstar/cmd/loadstar/cli"
	"loadstar/server"
	"loadstar/server/access"
	"loadstar/server/config"
	"loadstar/server/web"
)

// webConfig returns the configuration of the dashboard, or nil if it is disabled.
func webConfig(w config.Web) (*web.Config, error) {
	if w.Listen == "" {
		return nil, nil
	}
	c := &web.Config{Listen: w.Listen, CertFile: w.CertFile, KeyFile: w.KeyFile, BehindProxy: w.BehindProxy, URL: w.URL, ReadOnly: w.ReadOnly}
	if w.OIDC.Issuer != "" {
		var err error
		if c.OIDC, err = oidcConfig(w.OIDC); err != nil {
			return nil, err
		}
	}
	if err := c.Check(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	return c, nil
}

func oidcConfig(o config.OIDC) (*web.OIDC, error) {
	c := &web.OIDC{Issuer: o.Issuer, ClientID: o.ClientID, Claim: o.Claim, Roles: map[string]access.Role{}}
	for _, pair := range o.Roles {
		name, value, _ := strings.Cut(pair, "=")
		role, err := access.ParseRole(name)
		if err != nil || value == "" {
			return nil, cli.Usagef("web.oidc.roles: %q is not ROLE=VALUE with the role viewer, operator or admin", pair)
		}
		if !c.Roles[value].Includes(role) {
			c.Roles[value] = role
		}
	}
	if o.ClientSecretFile == "" {
		return c, nil
	}
	text, err := os.ReadFile(o.ClientSecretFile)
	if err != nil {
		return nil, fmt.Errorf("web.oidc.client_secret_file: %w", err)
	}
	if c.ClientSecret = strings.TrimSpace(string(text)); c.ClientSecret == "" {
		return nil, fmt.Errorf("web.oidc.client_secret_file: %s is empty", o.ClientSecretFile)
	}
	return c, nil
}

// printServing prints an operator's next steps.
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
		fmt.Fprintf(out, "dashboard: %s\nsign in: loadstar user login%s\n", page, flags)
	}
}
