// Package docs has the pages that the command line shows.
package docs

import _ "embed"

// Glossary is the page with the terms that users meet.
//
//go:embed glossary.md
var Glossary string
