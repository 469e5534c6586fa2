package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"loadstar/cmd/loadstar/cli"
	"loadstar/server"
	"loadstar/server/web"
)

// webFlags contains the flags of the dashboard.
type webFlags struct{ web.Config }

func (w *webFlags) add(f *pflag.FlagSet) {
	f.StringVar(&w.Listen, "web", "", "address for the dashboard, such as 127.0.0.1:7445; empty to disable")
	f.StringVar(&w.CertFile, "web-cert", "", "certificate of the dashboard (PEM `file`); it may be renewed while the server runs")
	f.StringVar(&w.KeyFile, "web-key", "", "key of the dashboard's certificate (PEM `file`)")
	f.BoolVar(&w.BehindProxy, "web-behind-proxy", false, "a proxy in front of the dashboard has the certificate")
	f.StringVar(&w.URL, "web-url", "", "`address` under which browsers reach the dashboard, for links (default from --web)")
	f.BoolVar(&w.ReadOnly, "web-read-only", false, "refuse all changes from the dashboard")
}

// config returns the configuration of the dashboard, or nil if it is disabled. When the
// dashboard listens, its address is stored in page.
func (w *webFlags) config(roles []string, page *string) (*web.Config, error) {
	if w.Listen == "" {
		if w.CertFile != "" || w.KeyFile != "" || w.BehindProxy || w.URL != "" || w.ReadOnly {
			return nil, cli.Usagef("the dashboard is disabled: give its address with --web, or leave out the other --web flags")
		}
		return nil, nil
	}
	if !slices.Contains(roles, server.Gateway) {
		return nil, cli.Usagef("--web is for the role gateway, which this process does not have")
	}
	if err := w.Check(); err != nil {
		return nil, cli.Usagef("%w", err)
	}
	c := w.Config
	c.Ready = func(url string) { *page = url }
	return &c, nil
}

// printServing prints what an operator does next.
func printServing(out io.Writer, c server.Config, address, page string) {
	fmt.Fprintf(out, "agents and operators: %s\n", address)
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
