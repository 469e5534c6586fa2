package live

import (
	"context"
	"time"
)

// Service forecasts for the clients of a site.
type Service struct{}

// Site returns what all clients have in common.
func (s *Service) Site() Site { return Site{} }

// Clients returns the state of all clients and groups, sorted by name.
func (s *Service) Clients() []ClientStatus { return nil }

// Client returns the state of a client or group.
func (s *Service) Client(name string) (ClientStatus, error) { return ClientStatus{}, ErrUnknown }

// Forecast returns the newest forecast of a client or group.
func (s *Service) Forecast(client string) (*Issued, error) { return nil, ErrUnknown }

// Issued returns what was forecast at a lead for the steps of a period, beside what
// happened.
func (s *Service) Issued(client string, from, to int64, lead time.Duration) ([]Said, error) {
	return nil, ErrUnknown
}

// Scores returns the errors of a client's forecasts over 1, 7 and 28 days, for all leads
// together and for blocks of leads.
func (s *Service) Scores(client string) ([]Score, error) { return nil, ErrUnknown }

// Quality returns a report on a client's readings.
func (s *Service) Quality(client string) (QualityReport, error) { return QualityReport{}, ErrUnknown }

// Models returns the models that the agent has, the newest first.
func (s *Service) Models() []ModelStatus { return nil }

// IssueNow makes a forecast of a client or group at once, from all readings that are known.
func (s *Service) IssueNow(ctx context.Context, client string) (*Issued, error) {
	return nil, ErrUnknown
}

// Pin keeps a client's model until Unpin. Rollback returns to the model before.
func (s *Service) Pin(client string) error { return ErrUnknown }

// Unpin allows a client's model to change again.
func (s *Service) Unpin(client string) error { return ErrUnknown }

// Rollback returns a client to the model that it used before, and refuses the present one.
func (s *Service) Rollback(client string) error { return ErrUnknown }

// Ready returns nil if the service issues forecasts, or an error that says why it does not.
func (s *Service) Ready() error { return nil }

// NextIssue returns when the next forecasts are due.
func (s *Service) NextIssue() time.Time { return time.Time{} }

// Counters returns totals since the agent started.
func (s *Service) Counters() Counters { return Counters{} }

// Reported tells the service that readings of a client were stored. It issues forecasts as
// soon as all clients have reported.
func (s *Service) Reported(client string, end int64) {}

// Subscribe calls f with all forecasts of an issue, after they were stored. F must not
// block for long, and is not called concurrently.
func (s *Service) Subscribe(f func([]*Issued)) {}
