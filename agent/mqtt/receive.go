package mqtt

import (
	"errors"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"loadstar/agent/readings"
)

// receive handles a message. The library calls it for one message at a time.
func (c *Client) receive(r paho.PublishReceived) (bool, error) {
	p := r.Packet
	ack := func() {
		// If the connection was lost, the acknowledgement fails, and the broker sends the
		// message again.
		_ = r.Client.Ack(p)
	}
	if c.own(p) {
		ack()
		return true, nil
	}
	now, ok := c.config.Now()
	if !ok {
		now = time.Time{}
	}
	c.mu.Lock()
	// Until the connection is known, its backlog cannot be over.
	late := p.Duplicate() || c.link == nil || c.link.backlog
	decoder, count := c.decoder, c.count
	c.mu.Unlock()
	samples, outcome := decoder.Decode(Message{Topic: p.Topic, Payload: p.Payload, Arrived: now, Retained: p.Retain, Late: late})
	c.mu.Lock()
	c.status.Messages[outcome]++
	if outcome == UnknownTopic && len(c.stray) < maxSources {
		c.stray[p.Topic] = true
		c.signal()
	}
	// The first delivery of a repeated message may not be on disk yet. So even a
	// repetition without samples is acknowledged only after the next flush.
	store := len(samples) > 0 || p.Duplicate()
	stored := new(bool)
	if p.QoS > 0 {
		stored = count.add()
	}
	c.mu.Unlock()
	if store {
		c.intake.Add(samples, func(err error) {
			if errors.Is(err, readings.ErrClosed) {
				return // the agent stops, and the broker sends the message again
			} else if err != nil {
				select {
				case c.broken <- err:
				default:
				}
				return
			}
			ack()
			c.stored(count, stored)
		})
	} else {
		ack()
		c.stored(count, stored)
	}
	c.mu.Lock()
	// The intake may have been asked to store before it had this message.
	ask := count.full(c.flow.flushAt()) || count.asked == stored
	probe := c.flow.received(len(count.order))
	c.mu.Unlock()
	if ask {
		c.intake.Flush()
	}
	if probe {
		time.AfterFunc(c.config.probe, func() { c.paused(count) })
	}
	return true, nil
}

// paused determines whether the broker is waiting for acknowledgements.
func (c *Client) paused(count *counter) {
	c.mu.Lock()
	full := c.flow.probed(len(count.order))
	ask := full && count == c.count && count.full(c.flow.flushAt())
	c.mu.Unlock()
	if ask {
		c.intake.Flush()
	}
}

// stored records that a message was acknowledged. If the window is still nearly full, it
// asks the intake to store.
func (c *Client) stored(count *counter, stored *bool) {
	c.mu.Lock()
	count.done(stored)
	ask := count.full(c.flow.flushAt())
	c.mu.Unlock()
	if ask {
		c.intake.Flush()
	}
}

// own handles the agent's own messages.
func (c *Client) own(p *paho.Publish) bool {
	rest, ok := strings.CutPrefix(p.Topic, c.base())
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Topic == c.markTopic() && c.link != nil && string(p.Payload) == c.link.mark {
		c.link.backlog = false
	}
	if name, ok := strings.CutSuffix(rest, "/forecast"); ok && p.Retain && len(p.Payload) > 0 && len(c.gone) < maxSources {
		c.gone[name] = true
		c.signal()
	}
	return true
}
