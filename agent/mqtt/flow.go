package mqtt

// counter counts a connection's messages since the oldest unacknowledged one.
// Acknowledgements are sent in order, so the count shows how much of the broker's window
// is used.
type counter struct {
	order []*bool // whether each message is stored
	// asked is the newest message at the last request to store. It is nil once that
	// message is stored.
	asked *bool
}

func (c *counter) add() *bool {
	stored := new(bool)
	c.order = append(c.order, stored)
	return stored
}

func (c *counter) done(stored *bool) {
	*stored = true
	for len(c.order) > 0 && *c.order[0] {
		c.order = c.order[1:]
	}
	if c.asked != nil && *c.asked {
		c.asked = nil
	}
}

// full reports whether the intake must be asked to store.
func (c *counter) full(limit int) bool {
	if c.asked != nil || len(c.order) < limit {
		return false
	}
	for _, stored := range c.order {
		if !*stored {
			c.asked = stored
		}
	}
	return true
}

// flow decides how many messages may wait for their acknowledgement before the intake is
// asked to store them. Otherwise a broker with a full window would send nothing until the
// next regular flush.
//
// Brokers do not state the size of this window. They state only their limit for messages
// from the agent. Some brokers use this limit in both directions. Others, such as Mosquitto,
// send as many messages as the agent allows. So flow observes the broker. If more messages wait
// than the stated limit, the agent's limit applies. If the flow stops at the stated limit for
// some time, the stated limit applies. A larger window saves flushes, each of which writes to
// the agent's disk.
type flow struct {
	stated  int
	known   bool
	wide    bool // the window is the agent's limit
	probing bool
}

// state sets the limit that the broker states when it accepts a connection.
func (f *flow) state(stated int) {
	if stated = max(1, stated); stated != f.stated {
		*f = flow{stated: stated, probing: f.probing}
	}
	if f.stated >= window {
		f.known, f.wide = true, true
	}
}

// flushAt returns the number of messages at which the intake is asked to store.
func (f *flow) flushAt() int {
	switch {
	case f.wide || !f.known:
		return window * 3 / 4
	default:
		return max(1, f.stated*3/4)
	}
}

// received records the number of waiting messages. It reports whether to call probed after a
// while.
func (f *flow) received(waiting int) bool {
	if waiting > f.stated {
		f.known, f.wide = true, true
	}
	if f.known || f.probing || waiting < f.stated {
		return false
	}
	f.probing = true
	return true
}

// probed records the number of waiting messages some time after the stated window was full.
// It reports whether the window is still full.
func (f *flow) probed(waiting int) bool {
	f.probing = false
	if waiting < f.stated {
		return false
	}
	if waiting == f.stated && !f.known {
		f.known = true
	}
	return true
}
