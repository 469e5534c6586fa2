// Package web serves the dashboard: its page, sessions, events, and the operators' API for
// browsers.
package web

import (
	"log/slog"
	"net/http"
)

// Config configures the dashboard.
type Config struct {
	// Listen is the address. Any other than the machine itself needs CertFile and KeyFile,
	// or BehindProxy.
	Listen            string
	CertFile, KeyFile string
	BehindProxy       bool
	// Operator is the operators' API.
	Operator http.Handler
	// Notice is shown on every page, and Links beside it. They may be empty.
	Notice string
	Links  []Link
	Log    *slog.Logger
}

// Link is shown on every page.
type Link struct {
	Title string `json:"title"`
	URL   string `json:"url"`
}
