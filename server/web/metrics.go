package web

import "github.com/prometheus/client_golang/prometheus"

// metrics holds the dashboard's metrics.
type metrics struct {
	viewers, sessions, topics prometheus.Gauge
	events                    *prometheus.CounterVec // by kind of topic
	refused                   *prometheus.CounterVec // by reason
	polls                     prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		viewers:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_web_viewers", Help: "Open streams of events."}),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_web_sessions", Help: "Sessions with an open stream of events."}),
		topics:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_web_topics", Help: "Topics with viewers, which the server reads from the ledger."}),
		events:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_web_events_total", Help: "Events sent to browsers, by kind of topic."}, []string{"topic"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_web_refused_total", Help: "Refused requests of browsers, by reason."}, []string{"reason"}),
		polls: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadstar_web_poll_seconds", Help: "Time to read a topic.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
	// Create the counters now, so a rate is known before the first event.
	for topic := range rests {
		m.events.WithLabelValues(topic)
	}
	for _, reason := range []string{"host", "origin", "session", "logins", "viewers"} {
		m.refused.WithLabelValues(reason)
	}
	r.MustRegister(m.viewers, m.sessions, m.topics, m.events, m.refused, m.polls)
	return m
}
