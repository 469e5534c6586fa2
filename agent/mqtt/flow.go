package mqtt

// counter counts the messages of one connection since the oldest that is not acknowledged:
// so much of the broker's window is used, because acknowledgements are sent in order.
type counter struct {
	order []*bool // whether each message is stored
	// asked is the newest message when the intake was asked to store. It is nil after that
	// message was stored.
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
// asked to store them. A broker stops sending when its window is full, and would wait for
// the next regular flush.
//
// How large the window is, brokers do not say: they state the limit for messages of the
// agent. Some use it for both directions, and some send as many as the agent allows, such
// as Mosquitto. So flow finds it out: if more messages come than stated, the window is the
// agent's. If no more come for some time, it is the stated one. It is worth finding out,
// because each flush writes to the agent's disk.
type flow struct {
	stated  int
	known   bool
	wide    bool // the window is the agent's
	probing bool
}

// state takes what the broker states at a connection.
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

// received notes how many messages wait. It reports whether to call probed after a while.
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

// probed notes how many messages wait some time after the stated window was full. It
// reports whether the window is full still.
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
