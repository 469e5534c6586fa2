// Package release describes the models that a server releases to its agents.
package release

// Release is a version of a run's shared weights that an operator released.
type Release struct {
	ID   string // unique, assigned by the server
	Name string // such as day; a newer release with the same name replaces an older one
	// Number counts the releases of a name from 1. Name and number are shown as day@7.
	Number int
	// Run and Version identify the weights.
	Run     string
	Version int
	Role    Role
	Plan    []byte    // YAML text with all settings
	Weights []float32 // the shared weights
}

// Role is how clients use a release.
type Role string

const (
	Personal Role = "personal" // with personal layers for each client
	Generic  Role = "generic"  // all layers are shared
)

// Kept contains the results of a client's training for a run.
type Kept struct {
	Personal []float32 // personal weights
	// Scaling is encoded by fed/serve. It is nil if an older version of the program trained the
	// weights.
	Scaling []byte
}

// Host receives releases and returns reports. The agent calls it, and package live
// implements it. Calls must not block for long.
type Host interface {
	// Has reports whether the host has a release, so that it need not be fetched.
	Has(id string) bool
	// Offer passes a release to the host. Load returns a client's results from the release's
	// run, or false if the client did not train in it.
	Offer(r Release, load func(client string) (Kept, bool, error)) error
	Retain(ids []string) error
	// Reports returns unacknowledged reports, at most one per client and week, and a
	// function to call when the server has them.
	Reports() (reports []Report, sent func())
}

// Report is a client's report to the server about its forecasts. It contains neither loads
// nor time series. Numbers have two decimals.
type Report struct {
	Client  string
	Day     int64 // Unix day of the Sunday that ends the week
	Release string
	// Shares contains the share of rows by source.
	Shares      map[string]float64
	RelativeMAE float64 // compared with last week's load, over 28 days; NaN if unknown
	Coverage    float64 // coverage of P10 to P90, over 28 days; NaN if unknown
	Findings    []string
	Drift       bool
	WantsRound  bool
	// Interim means that the report is between two weekly ones and contains only the current
	// findings.
	Interim bool
}
