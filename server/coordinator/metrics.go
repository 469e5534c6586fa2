package coordinator

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	leading   prometheus.Gauge
	rounds    *prometheus.CounterVec // by outcome
	turns     *prometheus.CounterVec // by outcome
	staleness prometheus.Histogram
	length    prometheus.Histogram
	merge     prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_coordinator_leading", Help: "1 if this coordinator leads."}),
		rounds:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_rounds_total", Help: "Rounds closed, by outcome: merged, abandoned. A private round that a keeper refuses afterwards also counts as refused."}, []string{"outcome"}),
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadstar_turns_total", Help: "Clients' turns: asked, counted, late (the round closed first), lost (the lease expired).",
		}, []string{"outcome"}),
		staleness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadstar_staleness_versions", Help: "Number of versions between the weights from which a counted update was trained and the newest weights.", Buckets: []float64{0, 1, 2, 4, 8, 16, 32, 64},
		}),
		length: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadstar_round_seconds", Help: "Time from the opening of a round to its close.", Buckets: prometheus.ExponentialBuckets(0.1, 4, 10),
		}),
		merge: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadstar_merge_seconds", Help: "Time to compute and store a new version from the results of a closed round. The wait for the keepers of a private plan is not included.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}),
	}
	r.MustRegister(m.leading, m.rounds, m.turns, m.staleness, m.length, m.merge)
	return m
}
