package gateway

import (
	"context"
	"path"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/protocol"
)

const (
	// refusedProtocol counts calls of agents whose protocol is too old.
	refusedProtocol = "protocol"
	// otherCode counts declined turns whose code is unknown or empty.
	otherCode = "other"
)

// metrics holds the gateway's metrics. It is also an interceptor that measures calls.
type metrics struct {
	calls   *prometheus.HistogramVec // by method and code
	refused *prometheus.CounterVec   // by reason
	bytes   prometheus.Counter
	// Counted and late results, the time until a result is counted, and how the time of a batch
	// is spent.
	counted, late       prometheus.Counter
	count, fold, commit prometheus.Histogram
	declined            *prometheus.CounterVec // by code
	held                prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "loadstar_gateway_" + name + "_seconds", Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)})
	}
	m := &metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loadstar_gateway_call_seconds", Help: "Duration of agents' calls.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"method", "code"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_gateway_refused_total", Help: "Refused calls and results, by reason."}, []string{"reason"}),
		counted:  prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_gateway_counted_total", Help: "Results counted."}),
		late:     prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_gateway_late_total", Help: "Results that were late or already counted."}),
		count:    seconds("count", "Time from the arrival of a result until it is counted."),
		fold:     seconds("fold", "Time to add up a batch."),
		commit:   seconds("commit", "Time of the transaction that counts a batch."),
		bytes:    prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_gateway_result_bytes_total", Help: "Bytes of results received."}),
		held:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadstar_gateway_held", Help: "Held calls, which wait for news."}),
		declined: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_gateway_declined_total", Help: "Turns that agents declined, by kind of reason."}, []string{"code"}),
	}
	// An alert needs these counters to exist before their first event.
	for _, reason := range []string{"copied", refusedProtocol} {
		m.refused.WithLabelValues(reason)
	}
	for _, code := range append(declineCodes(), otherCode) {
		m.declined.WithLabelValues(code)
	}
	r.MustRegister(m.calls, m.refused, m.bytes, m.counted, m.late, m.count, m.fold, m.commit, m.declined, m.held)
	return m
}

// showWaiting adds the number of results that wait to be counted.
func (*metrics) showWaiting(r prometheus.Registerer, length func() int) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "loadstar_gateway_waiting", Help: "Results that wait to be counted."}, func() float64 { return float64(length()) }))
}

// arrivalKey is the context key of the time when a call arrived.
type arrivalKey struct{}

func (m *metrics) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		answer, err := next(context.WithValue(ctx, arrivalKey{}, start), r)
		code := "ok"
		if err != nil {
			code = connect.CodeOf(err).String()
		}
		if protocol.Of(r.Header()) < protocol.Oldest { // package protocol has refused the call
			m.refused.WithLabelValues(refusedProtocol).Inc()
		}
		m.calls.WithLabelValues(path.Base(r.Spec().Procedure), code).Observe(time.Since(start).Seconds())
		return answer, err
	}
}
