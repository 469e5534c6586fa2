// Package bus carries checked results from gateways to aggregators, and notifies all
// processes that wait for an event in a run. It uses NATS, either as a server inside this
// process or as an external cluster.
//
// The bus is a queue, not the ledger. A result that Publish accepted is on disk. The bus
// delivers it until an aggregator calls Done: possibly more than once, to more than one
// aggregator, and in any order. The ledger decides whether a result counts.
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
	// ErrFull means that the queue has reached Config.MaxBytes or the disk is nearly full.
	// The caller should retry later.
	ErrFull = errors.New("bus: no room for more results")
	// ErrTooLarge means that a result is larger than Config.MaxMessage.
	ErrTooLarge = errors.New("bus: the result is too large")
	// ErrClosed means that Close has been called.
	ErrClosed = errors.New("bus: closed")
)

const (
	streamName    = "LOADSTAR_RESULTS"
	consumerName  = "aggregators"
	resultSubject = "loadstar.results"
	wakeSubject   = "loadstar.wake"
	// dedupWindow is how long the stream remembers message ids to discard repeated
	// messages.
	dedupWindow = 2 * time.Minute
	// maxUnanswered is the maximum number of unanswered deliveries, over all aggregators.
	maxUnanswered = 4096
)

// Bus is a connection to NATS. All methods may be called concurrently.
type Bus struct {
	config     Config
	log        *slog.Logger
	server     *embedded // nil with an external cluster
	conn       *nats.Conn
	connClosed chan struct{} // closed when the connection is closed permanently
	js         jetstream.JetStream
	consumer   jetstream.Consumer
	offers     chan *offer // from Publish calls to the goroutines that write messages
	// link is cancelled when the connection is lost, because no answer can arrive after
	// that.
	link atomic.Pointer[link]
	// pending limits the bytes that the server is sending over this connection.
	pending *semaphore.Weighted
	// typicalSize estimates the size of recent messages. It rises at once and decays
	// slowly, so it is more often too large than too small.
	typicalSize atomic.Int64
	// idle is since when the consumer has nothing to deliver although there are messages, in
	// nanoseconds; 0 means that this is not so.
	idle atomic.Int64
	// forged counts messages without a valid MAC, and forgedLogged is when that was logged.
	forged       atomic.Uint64
	forgedLogged atomic.Int64

	// closing is cancelled when Close begins, killed when Close stops waiting for calls.
	closing, killed context.Context
	close, kill     context.CancelFunc
	mu              sync.Mutex // guards closed and adding to calls
	closed          bool
	calls           sync.WaitGroup // Publish and Take calls in progress
	background      sync.WaitGroup // goroutines that end after closing is cancelled

	recreating sync.Mutex
	recreated  time.Time // guarded by recreating
}

// Open starts the embedded server or connects to the cluster, and creates the stream if
// necessary. It waits for a cluster that is not ready until ctx is done.
func Open(ctx context.Context, c Config, log *slog.Logger) (*Bus, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Bus{config: c, log: log, connClosed: make(chan struct{}), offers: make(chan *offer), pending: semaphore.NewWeighted(inFlight)}
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
		return fmt.Errorf("bus: the NATS server accepts messages of at most %d bytes, results need more: set max_payload to %d in its configuration", b.conn.MaxPayload(), need)
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
		if b.consumer, err = b.ensureStream(ctx); err == nil {
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
	options := []nats.Option{
		nats.Name("loadstar"),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250 * time.Millisecond),
		// A server that answers "not authorized" may still be loading its accounts.
		nats.IgnoreAuthErrorAbort(),
		// Do not buffer while there is no connection. The caller gets an error and
		// decides what to do.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(5 * time.Second),
		nats.DrainTimeout(5 * time.Second),
		nats.ClosedHandler(func(*nats.Conn) { close(b.connClosed) }),
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
			// Losing wake-up notifications is harmless.
			if sub == nil || sub.Subject != wakeSubject {
				b.log.Warn("NATS", "err", err)
			}
		}),
	}
	return append(options, b.config.security()...)
}

// security returns the options that prove who this process is, and check who answers.
func (c Config) security() (options []nats.Option) {
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
	for logged := time.Now(); !b.conn.IsConnected(); {
		err := b.conn.LastError()
		if errors.Is(err, nats.ErrAuthorization) || b.conn.IsClosed() {
			return fmt.Errorf("bus: connecting to NATS: %w", err)
		}
		if time.Since(logged) > 5*time.Second {
			logged = time.Now()
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

// ensureStream creates or updates the stream and its only consumer. It does not retry. It
// writes only if something differs: a write needs JetStream's meta leader, which a cluster
// lacks for some seconds after it loses a server.
func (b *Bus) ensureStream(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	look, done := context.WithTimeout(ctx, 2*time.Second)
	defer done()
	c := b.config
	stream := jetstream.StreamConfig{
		Name:        streamName,
		Description: "checked results on their way to an aggregator",
		Subjects:    []string{resultSubject},
		Retention:   jetstream.WorkQueuePolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		Replicas:    c.Replicas,
		MaxBytes:    c.MaxBytes,
		MaxMsgSize:  int32(c.MaxMessage + envelope),
		Duplicates:  dedupWindow,
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
		MaxAckPending: maxUnanswered,
		// Results must not be dropped, however long the ledger is unavailable.
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

// sameStream compares the settings that ensureStream sets.
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

// Close ends Take calls at once; they return their results to the queue. It waits up to
// 10 seconds, or until ctx is done, for Publish calls in progress. Then it disconnects
// and stops the embedded server.
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
		// Drain also sends the answers to deliveries that are still buffered.
		if err = b.conn.Drain(); err == nil {
			select {
			case <-b.connClosed:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		b.conn.Close()
		<-b.connClosed
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionReconnecting) {
			err = nil // there is no connection to drain
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

// enter registers a call that Close must wait for. The caller must call b.calls.Done.
func (b *Bus) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.calls.Add(1)
	return nil
}

// spawn runs f in a goroutine that Close waits for.
func (b *Bus) spawn(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.background.Go(f)
	return nil
}

// link is a context that lasts as long as one connection.
type link struct {
	context.Context
	lost context.CancelCauseFunc
}

// relink cancels all calls that wait for an answer over the lost connection.
func (b *Bus) relink() {
	ctx, lost := context.WithCancelCause(context.Background())
	if old := b.link.Swap(&link{ctx, lost}); old != nil {
		old.lost(nats.ErrDisconnected)
	}
}

// endingWith returns a context that is done when ctx or end is done.
func endingWith(ctx, end context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(end, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}
