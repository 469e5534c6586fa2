// Package docs has the pages that the command line and the dashboard show.
package docs

import _ "embed"

// Glossary is the page with the terms that users meet.
//
//go:embed glossary.md
var Glossary string

// Runbooks explains what to do about faults, and Alerts what to do about the other alerts.
//
//go:embed how-to/runbooks.md
var Runbooks string

//go:embed how-to/alerts.md
var Alerts string
