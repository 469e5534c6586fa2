// Package webui has the built files of the dashboard, from web/dashboard.
package webui

import (
	_ "embed" // the built files
	"net/http"
)

//go:embed bundle/server.html
var serverPage []byte

//go:embed bundle/agent.html
var agentPage []byte

// Server serves the page of a server.
func Server() http.Handler { return page(serverPage) }

// Agent serves the page of an agent.
func Agent() http.Handler { return page(agentPage) }

func page(html []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(html) // a failed write means that the caller has gone
	})
}
