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
	calls    *prometheus.HistogramVec // by method and code
	refused  *prometheus.CounterVec   // by reason
	stored   prometheus.Histogram
	bytes    prometheus.Counter
	declined *prometheus.CounterVec // by code
}

func newMetrics(r prometheus.Registerer, b Bus) *metrics {
	m := &metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loadstar_gateway_call_seconds", Help: "Duration of agents' calls.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"method", "code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_gateway_refused_total", Help: "Refused calls and results, by reason."}, []string{"reason"}),
		stored: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadstar_gateway_store_seconds", Help: "Time to store a result in the queue, on disk.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		bytes:    prometheus.NewCounter(prometheus.CounterOpts{Name: "loadstar_gateway_result_bytes_total", Help: "Bytes of results received."}),
		declined: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "loadstar_gateway_declined_total", Help: "Turns that agents gave back, by the kind of the reason."}, []string{"code"}),
	}
	depth := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "loadstar_bus_waiting", Help: "Messages that wait to be counted; a message holds one or more results."}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		waiting, taken, err := b.Depth(ctx)
		if err != nil {
			return -1
		}
		return float64(waiting + taken)
	})
	// An alert needs these counters before their first event.
	for _, reason := range []string{"copied", refusedProtocol} {
		m.refused.WithLabelValues(reason)
	}
	for _, code := range append(declineCodes(), otherCode) {
		m.declined.WithLabelValues(code)
	}
	r.MustRegister(m.calls, m.refused, m.stored, m.bytes, m.declined, depth)
	return m
}

var _ connect.Interceptor = (*metrics)(nil)

func (m *metrics) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		answer, err := next(ctx, r)
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

func (m *metrics) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (m *metrics) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
