package examine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"loadstar/internal/finding"
)

// Notifier notifies people who do not use Prometheus when findings begin and end.
type Notifier struct {
	address string
	ntfy    bool
	// Page is the address of the dashboard, which serves the runbooks. It may be empty.
	Page string
	Log  *slog.Logger

	told   map[string]finding.Level // levels that were sent, by check
	before map[string]finding.Level // levels of the previous examination
}

const notifyFor = 10 * time.Second

// NewNotifier returns a notifier for an address. For an address https://…, it sends JSON, and
// for ntfy:https://…, messages in the format of ntfy.
func NewNotifier(address string) (*Notifier, error) {
	n := &Notifier{told: map[string]finding.Level{}, before: map[string]finding.Level{}}
	n.address, n.ntfy = strings.CutPrefix(address, "ntfy:")
	if u, err := url.Parse(n.address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--notify %q is not an address: write https://HOST/PATH for a webhook, or ntfy:https://HOST/TOPIC", address)
	}
	return n, nil
}

// note sends a notification of a new failure at once, of a new warning after two examinations,
// and when a failure or warning ends. If sending fails, it tries again after the next
// examination.
func (n *Notifier) note(ctx context.Context, all finding.List) {
	for _, f := range all {
		before := n.before[f.Check]
		n.before[f.Check] = f.Level
		told := cmp.Or(n.told[f.Check], finding.OK)
		lasts := f.Level == finding.Fail || f.Level == finding.OK || before == f.Level
		if f.Level == told || !lasts {
			continue
		}
		if err := n.send(ctx, f); err != nil {
			// The address can be a secret.
			n.Log.Warn("cannot send a notification; the server retries in a minute", "check", f.Check, "error", strings.ReplaceAll(err.Error(), n.address, "the address of --notify"))
			continue
		}
		n.told[f.Check] = f.Level
	}
}

// message is the JSON that a webhook receives.
type message struct {
	Alert   string        `json:"alert"`
	Check   string        `json:"check"`
	Level   finding.Level `json:"level"` // OK means that the problem is over
	Text    string        `json:"text"`
	Do      string        `json:"do,omitempty"`
	Runbook string        `json:"runbook,omitempty"`
	At      time.Time     `json:"at"`
}

func (n *Notifier) send(ctx context.Context, f finding.Finding) error {
	m := message{Alert: Alert(f), Check: f.Check, Level: f.Level, Text: f.Text, Do: f.Do, At: time.Now().UTC()}
	if n.Page != "" {
		m.Runbook = strings.TrimSuffix(n.Page, "/") + "/docs/runbooks#" + strings.ToLower(m.Alert)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if n.ntfy {
		body = []byte(strings.TrimSpace(f.Check + ": " + f.Text + "\n" + f.Do))
	}
	ctx, cancel := context.WithTimeout(ctx, notifyFor)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if n.ntfy {
		r.Header.Set("Content-Type", "text/plain; charset=utf-8")
		r.Header.Set("Title", "Loadstar: "+m.Alert+map[bool]string{true: " is over"}[f.Level == finding.OK])
		r.Header.Set("Priority", map[finding.Level]string{finding.OK: "low", finding.Warn: "default", finding.Fail: "high"}[f.Level])
		r.Header.Set("Tags", map[finding.Level]string{finding.OK: "white_check_mark", finding.Warn: "warning", finding.Fail: "rotating_light"}[f.Level])
		if m.Runbook != "" {
			r.Header.Set("Click", m.Runbook)
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the server returned %s", answer.Status)
	}
	return nil
}

// Alert returns the name of a finding's alert and runbook.
func Alert(f finding.Finding) string {
	for _, x := range []struct{ prefix, alert string }{
		{"disk of the ", "DiskFilling"},
		{"writing for the ", "DiskNotWritable"},
		{"database's integrity", "DamageFound"},
		{"database's answer", "DatabaseAway"},
		{"blobs' ", "UnsafeSettings"},
		{"blobs", "BlobsAway"},
		{"clock ", "ClockOff"},
		{"issuer of certificates", "CertificateExpires"},
		{"root certificate", "CertificateExpires"},
		{"local operator's certificate", "CertificateExpires"},
		{"agents' certificates", "AgentCertificatesExpire"},
		{"agents", "AgentsAway"},
		{"clients' readings", "ClientNonsense"},
		{"rounds", "RoundWaits"},
		{"backup", "BackupOld"},
	} {
		if strings.HasPrefix(f.Check, x.prefix) {
			if x.alert == "DiskFilling" && f.Level == finding.Fail {
				return "DiskFull"
			}
			return x.alert
		}
	}
	return "UnsafeSettings"
}
