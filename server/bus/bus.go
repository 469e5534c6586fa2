// Package bus carries checked results from gateways to aggregators, and wakes
// whoever waits for something to happen in a run. It is NATS: a server inside this
// process, or a cluster.
//
// The bus is a carrier, never the ledger. What Publish accepted is on disk and will
// be delivered until an aggregator says Done, possibly more than once, to more than
// one, and in any order. Whether a result counts is for the ledger to say.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"loadstar/internal/backoff"
)

var (
	// ErrFull says that as much waits as may: come back later.
	ErrFull = errors.New("bus: no room for more results")
	// ErrTooLarge says that a result is larger than Config.MaxMessage.
	ErrTooLarge = errors.New("bus: the result is too large")
	// ErrClosed says that Close has been called.
	ErrClosed = errors.New("bus: closed")
)

const (
	streamName   = "LOADSTAR_RESULTS"
	consumerName = "aggregators"
	results      = "loadstar.results"
	wakes        = "loadstar.wake"
	// repeats is how long the stream remembers message ids.
	repeats = 2 * time.Minute
	// undecided is how many deliveries may be under way to all aggregators together.
	undecided = 4096
)

// Bus is a connection to the carrier. All methods may be called concurrently.
type Bus struct {
	config Config
	log    *slog.Logger
	server *embedded // nil with an external cluster
	conn   *nats.Conn
	gone   chan struct{} // closed when the connection is, for good
	js     jetstream.JetStream
	pulls  jetstream.Consumer
	offers chan *offer // to the writers
	// link ends when the connection is lost: no answer comes over it any more.
	link atomic.Pointer[link]
	// pending bounds the bytes that are on their way to this connection.
	pending *semaphore.Weighted
	// typical is the size of messages lately, rather too large than too small.
	typical atomic.Int64

	// closing ends when Close begins, killed when it has stopped waiting.
	closing, killed context.Context
	close, kill     context.CancelFunc
	mu              sync.Mutex // guards closed and adding to calls
	closed          bool
	calls           sync.WaitGroup // publishes and takes under way
	background      sync.WaitGroup // goroutines that end by themselves when closing does

	recreating sync.Mutex
	recreated  time.Time // guarded by recreating
}

// Open starts or reaches the server, and makes sure that there is a stream. It waits
// for a cluster that is not ready, until ctx is done.
func Open(ctx context.Context, c Config, log *slog.Logger) (*Bus, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Bus{config: c, log: log, gone: make(chan struct{}), offers: make(chan *offer), pending: semaphore.NewWeighted(inFlight)}
	b.relink()
	b.closing, b.close = context.WithCancel(context.Background())
	b.killed, b.kill = context.WithCancel(context.Background())
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(err, b.Close(ctx))
	}
	for range writers {
		b.background.Go(b.write)
	}
	return b, nil
}

func (b *Bus) open(ctx context.Context) error {
	options := b.options()
	if b.config.Dir != "" {
		var err error
		if b.server, err = embed(ctx, b.config, b.log); err != nil {
			return err
		}
		options = append(options, nats.InProcessServer(b.server))
	}
	if err := b.connect(ctx, options); err != nil {
		return err
	}
	if need := int64(b.config.MaxMessage + envelope); b.conn.MaxPayload() < need {
		return fmt.Errorf("bus: the NATS server takes messages of %d bytes; results need max_payload: %d", b.conn.MaxPayload(), need)
	}
	var err error
	if b.config.Domain != "" {
		b.js, err = jetstream.NewWithDomain(b.conn, b.config.Domain)
	} else {
		b.js, err = jetstream.New(b.conn)
	}
	if err != nil {
		return fmt.Errorf("bus: %w", err)
	}
	retry := backoff.Backoff{Base: 100 * time.Millisecond, Cap: time.Second}
	for {
		if b.pulls, err = b.ensure(ctx); err == nil {
			return nil
		}
		if setupPermanent(err) {
			return fmt.Errorf("bus: setting up the stream: %w", err)
		}
		b.log.Warn("waiting for JetStream", "err", err)
		if ended := retry.Wait(ctx); ended != nil {
			return fmt.Errorf("bus: setting up the stream: %w; last: %w", ended, err)
		}
	}
}

func (b *Bus) options() []nats.Option {
	c := b.config
	options := []nats.Option{
		nats.Name("loadstar"),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250 * time.Millisecond),
		// A server that answers "not authorized" may still be loading its accounts.
		nats.IgnoreAuthErrorAbort(),
		// Nothing is kept for later while there is no connection: whoever called
		// is told, and knows better what to do.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(5 * time.Second),
		nats.DrainTimeout(5 * time.Second),
		nats.ClosedHandler(func(*nats.Conn) { close(b.gone) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.relink()
			if err != nil {
				b.log.Warn("NATS disconnected", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.log.Info("NATS reconnected", "server", nc.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if sub == nil || sub.Subject != wakes { // too many of these are no harm
				b.log.Warn("NATS", "err", err)
			}
		}),
	}
	if c.Credentials != "" {
		options = append(options, nats.UserCredentials(c.Credentials))
	}
	if c.CAFile != "" {
		options = append(options, nats.RootCAs(c.CAFile))
	}
	if c.CertFile != "" {
		options = append(options, nats.ClientCert(c.CertFile, c.KeyFile))
	}
	return options
}

func (b *Bus) connect(ctx context.Context, options []nats.Option) error {
	urls := strings.Join(b.config.URLs, ",")
	var err error
	if b.conn, err = nats.Connect(urls, options...); err != nil {
		return fmt.Errorf("bus: connecting to NATS: %w", err)
	}
	for said := time.Now(); !b.conn.IsConnected(); {
		err := b.conn.LastError()
		if errors.Is(err, nats.ErrAuthorization) || b.conn.IsClosed() {
			return fmt.Errorf("bus: connecting to NATS: %w", err)
		}
		if time.Since(said) > 5*time.Second {
			said = time.Now()
			b.log.Warn("waiting for NATS", "err", err)
		}
		if ended := backoff.Sleep(ctx, 20*time.Millisecond); ended != nil {
			if err == nil {
				err = nats.ErrNoServers
			}
			return fmt.Errorf("bus: connecting to NATS: %w; last: %w", ended, err)
		}
	}
	return nil
}

// ensure makes the stream and its one consumer as they should be, once. What is so
// already is only looked at: making takes a leader of all JetStream, which a cluster
// is without for some seconds when it has lost a server.
func (b *Bus) ensure(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	look, done := context.WithTimeout(ctx, 2*time.Second)
	defer done()
	c := b.config
	stream := jetstream.StreamConfig{
		Name:        streamName,
		Description: "checked results on their way to an aggregator",
		Subjects:    []string{results},
		Retention:   jetstream.WorkQueuePolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxBytes:    c.MaxBytes,
		MaxMsgSize:  int32(c.MaxMessage + envelope),
		Duplicates:  repeats,
	}
	has, err := b.js.Stream(look, streamName)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	if err != nil || !sameStream(has.CachedInfo().Config, stream) {
		if _, err := b.js.CreateOrUpdateStream(ctx, stream); err != nil {
			return nil, err
		}
	}
	consumer := jetstream.ConsumerConfig{
		Durable:       consumerName,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.AckWait,
		MaxAckPending: undecided,
		// However long the ledger is away, nothing is given up.
		MaxDeliver: -1,
	}
	pulls, err := b.js.Consumer(look, streamName, consumerName)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, err
	}
	if err != nil || !sameConsumer(pulls.CachedInfo().Config, consumer) {
		return b.js.CreateOrUpdateConsumer(ctx, streamName, consumer)
	}
	return pulls, nil
}

// sameStream says whether a stream is as it should be, in what we ask of it.
func sameStream(has, want jetstream.StreamConfig) bool {
	return slices.Equal(has.Subjects, want.Subjects) && has.Retention == want.Retention && has.Discard == want.Discard && has.Storage == want.Storage &&
		has.Replicas == want.Replicas && has.MaxBytes == want.MaxBytes && has.MaxMsgSize == want.MaxMsgSize && has.Duplicates == want.Duplicates
}

func sameConsumer(has, want jetstream.ConsumerConfig) bool {
	return has.AckPolicy == want.AckPolicy && has.AckWait == want.AckWait && has.MaxAckPending == want.MaxAckPending && has.MaxDeliver == want.MaxDeliver
}

// setupPermanent reports whether setting up the stream would fail every time.
func setupPermanent(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case errStorageExceeded, errInvalidConfig, errNoReplicas:
		return true
	}
	return permanent(api)
}

// Close lets publishes under way finish, for some seconds or until ctx is done, then
// hangs up and stops the embedded server. Takes end at once and give back what they
// have.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stop := context.AfterFunc(ctx, b.kill)
	b.close()
	b.calls.Wait()
	close(b.offers)
	b.background.Wait()
	stop()
	b.kill()

	var err error
	if b.conn != nil {
		// Drain also sends what is still in buffers: answers to deliveries.
		if err = b.conn.Drain(); err == nil {
			select {
			case <-b.gone:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		b.conn.Close()
		<-b.gone
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionReconnecting) {
			err = nil // nobody there to say goodbye to
		}
		if err != nil {
			err = fmt.Errorf("bus: closing: %w", err)
		}
	}
	if b.server != nil {
		err = errors.Join(err, b.server.stop())
	}
	return err
}

// enter counts a call in, so that Close waits for it. Call b.calls.Done after it.
func (b *Bus) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.calls.Add(1)
	return nil
}

// spawn runs f beside everything else. Close waits for it.
func (b *Bus) spawn(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.background.Go(f)
	return nil
}

// link lasts from when a connection is made until it is lost.
type link struct {
	context.Context
	lost context.CancelCauseFunc
}

// relink ends what waits for an answer over a connection that is lost.
func (b *Bus) relink() {
	ctx, lost := context.WithCancelCause(context.Background())
	if old := b.link.Swap(&link{ctx, lost}); old != nil {
		old.lost(nats.ErrDisconnected)
	}
}

// endingWith returns a context that is done when ctx or end is.
func endingWith(ctx, end context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(end, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}
