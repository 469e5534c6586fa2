package mqtt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"loadstar/agent/readings"
)

// Intake stores samples. [readings.Intake] implements it.
type Intake interface {
	// Add takes samples and returns soon. It calls done once, with nil when the results of
	// these and all earlier samples are on disk, or with an error if they cannot be stored.
	Add(samples []readings.Sample, done func(error))
	// Flush requests that all added samples are stored, and does not wait.
	Flush()
}

// Client is the connection of an agent to a broker.
type Client struct {
	config    Config
	intake    Intake
	forecasts Forecasts

	wake   chan struct{} // signals that there is something to publish or to subscribe to
	up     chan *link    // receives each new connection
	broken chan error    // reports that samples could not be stored

	mu      sync.Mutex
	decoder *Decoder
	topics  map[string]bool // topics that were subscribed to over the current connection
	link    *link           // current connection, or nil
	dirty   map[string]bool // clients with forecasts to publish
	gone    map[string]bool // topic levels of clients that no longer exist
	stray   map[string]bool // topics that no client has any more
	status  Status
	count   *counter
	flow    flow
	// announced contains the clients whose sensors this connection has described.
	announced map[string]bool
}

// link is one connection.
type link struct {
	manager *autopaho.ConnectionManager
	mark    string // content of the message that ends the backlog
	// backlog means that messages may have been published before the connection.
	// Client.mu guards it.
	backlog bool
}

// Status describes the connection.
type Status struct {
	Connected bool
	Since     time.Time // time at which the connection came up or broke
	Problem   string    // reason why there is no connection
	Messages  map[Outcome]uint64
}

// New checks the configuration. Call [Client.Run] to connect.
func New(c Config, intake Intake, forecasts Forecasts) (*Client, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	d, err := NewDecoder(c.Sources)
	if err != nil {
		return nil, err
	}
	return &Client{
		config: c, intake: intake, forecasts: forecasts, decoder: d,
		wake: make(chan struct{}, 1), up: make(chan *link, 1), broken: make(chan error, 1),
		dirty: map[string]bool{}, gone: map[string]bool{}, stray: map[string]bool{},
		announced: map[string]bool{}, topics: map[string]bool{}, count: &counter{}, flow: flow{stated: smallWindow},
		status: Status{Messages: map[Outcome]uint64{}},
	}, nil
}

// Status returns the state of the connection.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Messages = maps.Clone(s.Messages)
	return s
}

// SetSources replaces the sources. Clients that are no longer in [Forecasts] are removed
// from Home Assistant.
func (c *Client) SetSources(sources []Source) error {
	d, err := NewDecoder(sources)
	if err != nil {
		return err
	}
	c.mu.Lock()
	for topic := range c.decoder.sources {
		if d.sources[topic] == nil {
			c.stray[topic] = true
		}
	}
	c.decoder = d
	c.mu.Unlock()
	c.signal()
	return nil
}

// signal wakes the goroutine that communicates with the broker.
func (c *Client) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run keeps a connection until the context ends.
func (c *Client) Run(ctx context.Context) error {
	if u, err := url.Parse(c.config.Broker); err == nil && u.Scheme == "mqtt" && c.config.PasswordFile != "" && !loopback(u.Hostname()) {
		c.config.Log.Warn("the broker's password is sent without encryption; use mqtts://", "broker", c.config.Broker)
	}
	for ctx.Err() == nil {
		if err := c.connect(ctx); err != nil {
			return err
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// connect runs one session of the library, which reconnects by itself. It returns when the
// context ends, or if samples cannot be stored. The broker sends the messages of these samples
// again only over a new connection.
func (c *Client) connect(ctx context.Context) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	u, err := url.Parse(c.config.Broker)
	if err != nil {
		return err
	}
	config := autopaho.ClientConfig{
		ServerUrls:            []*url.URL{u},
		KeepAlive:             keepAlive,
		SessionExpiryInterval: sessionExpiry,
		ConnectTimeout:        20 * time.Second,
		ReconnectBackoff:      c.backoff(),
		AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			return c.config.dial(ctx)
		},
		ConnectPacketBuilder: c.greet,
		OnConnectionUp:       c.connected,
		OnConnectionDown: func() bool {
			c.lost(errors.New("the connection to the broker was lost"))
			return true
		},
		OnConnectError: func(err error) { c.lost(explain(err)) },
		ClientConfig: paho.ClientConfig{
			ClientID:                   c.config.clientID(),
			EnableManualAcknowledgment: true,
			OnPublishReceived:          []func(paho.PublishReceived) (bool, error){c.receive},
			OnServerDisconnect: func(d *paho.Disconnect) {
				if d.ReasonCode == 0x8e {
					c.config.Log.Error("another program connected with this agent's client ID; give the agents different names", "client_id", c.config.clientID())
				}
			},
		},
	}
	manager, err := autopaho.NewConnection(inner, config)
	if err != nil {
		return fmt.Errorf("cannot connect to the broker: %w", err)
	}
	var present *link
	for {
		select {
		case <-ctx.Done():
			c.leave(manager)
			return nil
		case err := <-c.broken:
			c.config.Log.Error("readings could not be stored; reconnecting so that the broker repeats the messages", "error", err)
			c.disconnect(manager)
			select {
			case <-ctx.Done():
			case <-time.After(min(30*time.Second, c.config.retry)):
			}
			return nil
		case present = <-c.up:
			c.begin(ctx, present)
			c.publish(ctx, present)
		case <-c.wake:
			if present != nil {
				c.subscribe(ctx, present)
				c.publish(ctx, present)
			}
		}
	}
}

// backoff waits before every attempt but the first. Otherwise the agent would flood a
// broker that accepts connections and drops them.
func (c *Client) backoff() func(int) time.Duration {
	first := true
	low := min(time.Second, c.config.retry/2)
	next := autopaho.NewExponentialBackoff(low, c.config.retry, low, 2)
	return func(attempt int) time.Duration {
		if attempt == 0 && first {
			first = false
			return 0
		}
		return next(attempt + 1)
	}
}

// greet completes the first packet of a connection.
func (c *Client) greet(p *paho.Connect, _ *url.URL) (*paho.Connect, error) {
	secret, err := c.config.password()
	if err != nil {
		return nil, err
	}
	c.config.credentials(p, secret)
	receive, size, delay := uint16(window), uint32(maxPacket), uint32(10)
	p.Properties.ReceiveMaximum, p.Properties.MaximumPacketSize = &receive, &size
	p.WillMessage = &paho.WillMessage{Retain: true, QoS: 1, Topic: c.statusTopic(), Payload: []byte("offline")}
	// The delay prevents sensors from becoming unavailable at every short loss of connection.
	p.WillProperties = &paho.WillProperties{WillDelayInterval: &delay}
	return p, nil
}

func (c *Config) credentials(p *paho.Connect, secret []byte) {
	p.Username, p.UsernameFlag = c.User, c.User != ""
	p.Password, p.PasswordFlag = secret, len(secret) > 0
}

func (c *Client) connected(manager *autopaho.ConnectionManager, ack *paho.Connack) {
	l := &link{manager: manager, mark: rand.Text(), backlog: ack.SessionPresent}
	names := c.forecasts.Clients()
	stated := window
	if ack.Properties != nil && ack.Properties.ReceiveMaximum != nil {
		stated = min(stated, int(*ack.Properties.ReceiveMaximum))
	}
	c.mu.Lock()
	c.flow.state(stated)
	c.link, c.topics, c.announced = l, map[string]bool{}, map[string]bool{}
	c.status.Connected, c.status.Since, c.status.Problem = true, time.Now(), ""
	for _, name := range names {
		c.dirty[name] = true // the broker may have forgotten them
	}
	c.mu.Unlock()
	c.config.Log.Info("connected to the broker", "broker", c.config.Broker)
	select { // only the newest connection counts
	case <-c.up:
	default:
	}
	c.up <- l
}

func (c *Client) lost(err error) {
	c.mu.Lock()
	if c.link != nil || c.status.Problem != err.Error() {
		c.config.Log.Warn("no connection to the broker", "broker", c.config.Broker, "error", err)
	}
	if c.status.Connected || c.status.Since.IsZero() {
		c.status.Since = time.Now()
	}
	c.link, c.count = nil, &counter{}
	c.status.Connected, c.status.Problem = false, err.Error()
	c.mu.Unlock()
}

// begin subscribes and determines which messages were published before the connection.
//
// The broker first delivers the messages that it stored for an absent agent. After
// subscribing, the agent sends itself a message. When this message arrives, all stored
// messages have arrived.
func (c *Client) begin(ctx context.Context, l *link) {
	c.subscribe(ctx, l)
	if l.waiting(c) {
		err := c.send(ctx, l, c.markTopic(), []byte(l.mark), false)
		wait := time.Minute
		if err != nil { // the broker does not allow the agent to publish
			wait = 5 * time.Second
		}
		time.AfterFunc(wait, func() { c.endBacklog(l) })
	}
	if err := c.send(ctx, l, c.statusTopic(), []byte("online"), true); err != nil && ctx.Err() == nil {
		c.config.Log.Warn("cannot publish the agent's status", "error", err)
	}
}

func (l *link) waiting(c *Client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.backlog
}

func (c *Client) endBacklog(l *link) {
	c.mu.Lock()
	l.backlog = false
	c.mu.Unlock()
}

// subscribe subscribes to the topics that the connection lacks and unsubscribes from those that
// no client uses any more. The broker may remember subscriptions of an earlier configuration.
func (c *Client) subscribe(ctx context.Context, l *link) {
	c.mu.Lock()
	var missing []paho.SubscribeOptions
	for _, topic := range slices.Sorted(maps.Keys(c.decoder.sources)) {
		if !c.topics[topic] {
			// The broker sends retained messages only for a new subscription (1), not at every
			// connection.
			missing = append(missing, paho.SubscribeOptions{Topic: topic, QoS: 1, RetainHandling: 1})
		}
	}
	if len(c.topics) == 0 {
		missing = append(missing, paho.SubscribeOptions{Topic: c.markTopic(), QoS: 1, RetainHandling: 2})
		// The agent learns the clients of earlier configurations from its own retained
		// forecasts.
		missing = append(missing, paho.SubscribeOptions{Topic: c.forecastTopic("+"), QoS: 1})
	}
	stray := slices.Sorted(maps.Keys(c.stray))
	clear(c.stray)
	c.mu.Unlock()
	if len(stray) > 0 {
		if _, err := l.manager.Unsubscribe(ctx, &paho.Unsubscribe{Topics: stray}); err != nil && ctx.Err() == nil {
			c.config.Log.Warn("cannot leave topics that no client has", "topics", stray, "error", err)
		}
	}
	for part := range slices.Chunk(missing, 64) {
		ack, err := l.manager.Subscribe(ctx, &paho.Subscribe{Subscriptions: part})
		if ack == nil {
			if ctx.Err() == nil {
				c.config.Log.Warn("cannot subscribe", "error", err)
			}
			return
		}
		c.mu.Lock()
		for i, reason := range ack.Reasons {
			if i < len(part) && reason < 0x80 {
				c.topics[part[i].Topic] = true
			} else if i < len(part) {
				c.config.Log.Error("the broker refuses a subscription; check its access rules", "topic", part[i].Topic, "reason", reason)
			}
		}
		c.mu.Unlock()
	}
}

// leave publishes that the agent is offline and ends the connection. The broker
// keeps the session and stores the messages of the next hours.
func (c *Client) leave(manager *autopaho.ConnectionManager) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		if err := c.send(ctx, l, c.statusTopic(), []byte("offline"), true); err == nil {
			// The library sends acknowledgements every 50 ms and loses pending ones when it
			// stops.
			time.Sleep(150 * time.Millisecond)
		}
	}
	c.disconnect(manager)
}

func (c *Client) disconnect(manager *autopaho.ConnectionManager) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = manager.Disconnect(ctx) // the connection may already be broken
	c.mu.Lock()
	c.link, c.status.Connected = nil, false
	c.mu.Unlock()
}

// send publishes a message and waits for the broker's acknowledgement.
func (c *Client) send(ctx context.Context, l *link, topic string, payload []byte, retain bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := l.manager.Publish(ctx, &paho.Publish{QoS: 1, Retain: retain, Topic: topic, Payload: payload})
	return err
}
