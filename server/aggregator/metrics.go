package aggregator

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	counted, stale, redelivered, dropped prometheus.Counter
	fold, commit                         prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_aggregator_" + name + "_total", Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "loadstar_aggregator_" + name + "_seconds", Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)})
	}
	m := &metrics{
		counted:     counter("counted", "Results counted."),
		stale:       counter("stale", "Results that were late or already counted."),
		redelivered: counter("redelivered", "Results that the bus delivered more than once."),
		dropped:     counter("dropped", "Results dropped because they were not valid."),
		fold:        seconds("fold", "Time to add up a batch."),
		commit:      seconds("commit", "Time of the transaction that counts a batch."),
	}
	r.MustRegister(m.counted, m.stale, m.redelivered, m.dropped, m.fold, m.commit)
	return m
}
