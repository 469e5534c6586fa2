// Package readings takes in the readings of an agent's clients: from files in an inbox
// folder, over HTTP, and as samples that it turns into steps.
package readings
