// Package docs has the pages that the dashboard shows.
package docs

import _ "embed"

// Runbooks explains what to do about faults, and Alerts what to do about the other alerts.
//
//go:embed how-to/runbooks.md
var Runbooks string

//go:embed how-to/alerts.md
var Alerts string
