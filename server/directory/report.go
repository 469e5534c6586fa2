package directory

import (
	"cmp"
	"context"
	"database/sql"
	"maps"
	"math"
	"slices"
	"time"

	"loadstar/server/sqlstore"
)

// Report is a client's report on its forecasts, as of one day.
type Report struct {
	Client  string
	Day     int64  // days since 1970-01-01, UTC
	Message []byte // the whole report, which the ledger does not interpret
	// These fields are stored only in histograms. A number is NaN if it is unknown.
	Release                         string  // id, or empty
	RelativeMAE, Coverage, Fallback float64 // Fallback is the share of rows that are not from the client's model
	Drift, WantsRound               bool
	// Findings are codes, from a known list, of problems in the readings.
	Findings []string
	// Interim means that the report was sent between two weekly reports, and that only its
	// findings count.
	Interim bool
}

// Reports stores the clients' reports on their forecasts and readings.
type Reports struct{ store *sqlstore.Store }

// NewReports returns the reports in a database.
func NewReports(s *sqlstore.Store) *Reports { return &Reports{s} }

// reportDaysKept is the number of days for which histograms of reports are stored.
const reportDaysKept = 90

// Today returns the number of the day that contains now.
func Today(now time.Time) int64 { return now.Unix() / (24 * 3600) }

// histogram describes the buckets of a metric. The last bucket also counts all larger values.
type histogram struct {
	width float64
	last  int64
}

// The metrics in report_days. The first three have one bucket.
const (
	metricClients  = "clients"
	metricDrift    = "drift"
	metricWants    = "wants round"
	metricMAE      = "relative MAE"
	metricCoverage = "coverage"
	metricFallback = "fallback"
	// metricFinding followed by a code counts the clients with a finding.
	metricFinding = "finding "
)

var histograms = map[string]histogram{metricMAE: {0.05, 60}, metricCoverage: {0.02, 50}, metricFallback: {0.02, 50}}

func (h histogram) bucket(x float64) int64 { return int64(min(max(x/h.width, 0), float64(h.last))) }

// median returns the median of the values in buckets, or NaN if there are none. It assumes
// that values are spread evenly over a bucket.
func (h histogram) median(buckets map[int64]int64) float64 {
	total := int64(0)
	for _, n := range buckets {
		total += n
	}
	half, below := float64(total)/2, int64(0)
	for _, b := range slices.Sorted(maps.Keys(buckets)) {
		if n := buckets[b]; float64(below+n) >= half && n > 0 {
			return (float64(b) + (half-float64(below))/float64(n)) * h.width
		}
		below += buckets[b]
	}
	return math.NaN()
}

// cell is a row of report_days.
type cell struct {
	day             int64
	release, metric string
	bucket          int64
}

// cells returns the histogram cells to which a report adds.
func (r *Report) cells() []cell {
	all := []cell{{r.Day, r.Release, metricClients, 0}}
	if r.Drift {
		all = append(all, cell{r.Day, r.Release, metricDrift, 0})
	}
	if r.WantsRound {
		all = append(all, cell{r.Day, r.Release, metricWants, 0})
	}
	for _, code := range r.Findings {
		all = append(all, cell{r.Day, r.Release, metricFinding + code, 0})
	}
	for metric, x := range map[string]float64{metricMAE: r.RelativeMAE, metricCoverage: r.Coverage, metricFallback: r.Fallback} {
		if !math.IsNaN(x) {
			all = append(all, cell{r.Day, r.Release, metric, histograms[metric].bucket(x)})
		}
	}
	return all
}

// AddReports stores reports of an agent's clients and counts them in the histograms of their
// days. It ignores reports of other agents' clients, reports that are not newer than the stored
// one, and reports for days that are too old. A report that is sent twice therefore counts
// once. If pending is set, the reports must be sent to the hub.
func (p *Reports) AddReports(ctx context.Context, agent string, all []Report, pending bool, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "storing reports of agent", agent)
	all = slices.Clone(all)
	// All transactions write rows in the same order, so that they cannot deadlock.
	slices.SortFunc(all, func(a, b Report) int { return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Day, b.Day)) })
	return p.store.Update(ctx, func(tx *sqlstore.Txn) error {
		counts := map[cell]int64{}
		relayed := 0
		if pending {
			relayed = 1
		}
		for _, r := range all {
			if r.Day <= Today(now)-reportDaysKept || r.Day > Today(now)+1 {
				continue
			}
			if r.Interim {
				if err := setFindingsOf(ctx, tx, agent, r); err != nil {
					return err
				}
				continue
			}
			n, err := tx.ExecContext(ctx, `INSERT INTO reports (client, day, message, pending)
				SELECT name, CAST($3 AS BIGINT), $4, CAST($5 AS BIGINT) FROM clients WHERE name = $1 AND agent = $2
				ON CONFLICT (client) DO UPDATE SET day = excluded.day, message = excluded.message, pending = excluded.pending WHERE reports.day < excluded.day`,
				r.Client, agent, r.Day, r.Message, relayed)
			if err != nil {
				return err
			}
			if n, err := n.RowsAffected(); err != nil {
				return err
			} else if n > 0 {
				for _, c := range r.cells() {
					counts[c]++
				}
				if err := setFindings(ctx, tx, r.Client, r.Findings); err != nil {
					return err
				}
			}
		}
		for _, c := range slices.SortedFunc(maps.Keys(counts), compareCells) {
			_, err := tx.ExecContext(ctx, `INSERT INTO report_days (day, release, metric, bucket, clients) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (day, release, metric, bucket) DO UPDATE SET clients = report_days.clients + excluded.clients`, c.day, c.release, c.metric, c.bucket, counts[c])
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func compareCells(a, b cell) int {
	return cmp.Or(cmp.Compare(a.day, b.day), cmp.Compare(a.release, b.release), cmp.Compare(a.metric, b.metric), cmp.Compare(a.bucket, b.bucket))
}

// DropOldReports deletes the histograms of days that are no longer kept.
func (p *Reports) DropOldReports(ctx context.Context, now time.Time) (err error) {
	defer sqlstore.Wrap(&err, "deleting old reports")
	return p.store.Update(ctx, func(tx *sqlstore.Txn) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM report_days WHERE day <= $1", Today(now)-reportDaysKept)
		return err
	})
}

// ReportDay summarises the reports of one day. A median is NaN if no client reported a
// value.
type ReportDay struct {
	Day                             int64
	Clients                         int64 // clients that use the release
	Total                           int64 // all clients that reported
	Drifting, Wanting               int64
	RelativeMAE, Coverage, Fallback float64 // medians
}

// ReportDays summarises the reports of the newest days with reports, newest first. It includes
// the clients that use the given release, or all clients if release is empty.
func (p *Reports) ReportDays(ctx context.Context, release string, days int) (all []ReportDay, err error) {
	defer sqlstore.Wrap(&err, "reading reports")
	var buckets map[string]map[int64]int64
	finish := func() {
		if len(all) == 0 {
			return
		}
		d := &all[len(all)-1]
		d.RelativeMAE = histograms[metricMAE].median(buckets[metricMAE])
		d.Coverage = histograms[metricCoverage].median(buckets[metricCoverage])
		d.Fallback = histograms[metricFallback].median(buckets[metricFallback])
	}
	err = sqlstore.Query(ctx, p.store.DB, func(rows *sql.Rows) error {
		var c cell
		var n int64
		if err := rows.Scan(&c.day, &c.release, &c.metric, &c.bucket, &n); err != nil {
			return err
		}
		if len(all) == 0 || all[len(all)-1].Day != c.day {
			finish()
			all = append(all, ReportDay{Day: c.day})
			buckets = map[string]map[int64]int64{metricMAE: {}, metricCoverage: {}, metricFallback: {}}
		}
		d := &all[len(all)-1]
		if c.metric == metricClients {
			d.Total += n
		}
		if release != "" && release != c.release {
			return nil
		}
		switch c.metric {
		case metricClients:
			d.Clients += n
		case metricDrift:
			d.Drifting += n
		case metricWants:
			d.Wanting += n
		default:
			if b := buckets[c.metric]; b != nil {
				b[c.bucket] += n
			}
		}
		return nil
	}, `SELECT day, release, metric, bucket, clients FROM report_days WHERE day IN (SELECT DISTINCT day FROM report_days ORDER BY day DESC LIMIT $1)
		AND (metric = $2 OR release = $3 OR $3 = '') ORDER BY day DESC`, days, metricClients, release)
	finish()
	return all, err
}

// Reports returns the message of each client's newest report, by client.
func (p *Reports) Reports(ctx context.Context, clients []string) (all map[string][]byte, err error) {
	defer sqlstore.Wrap(&err, "reading reports")
	all = map[string][]byte{}
	err = sqlstore.QueryIn(ctx, p.store, func(rows *sql.Rows) error {
		var client string
		var message []byte
		err := rows.Scan(&client, &message)
		all[client] = message
		return err
	}, "SELECT client, message FROM reports WHERE client IN ", nil, clients)
	return all, err
}
