package sqlstore

import (
	"net"
	"sync"
	"time"
)

// limitedConn is a connection whose reads and writes fail after a time limit, whatever
// deadline the driver has set. The driver reads only while it waits for an answer, so an
// idle connection stays open.
type limitedConn struct {
	net.Conn
	limit func() time.Duration

	mu          sync.Mutex
	read, write time.Time // the driver's deadlines, or zero
}

func (c *limitedConn) Read(b []byte) (int, error) {
	if err := c.arm(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *limitedConn) Write(b []byte) (int, error) {
	if err := c.arm(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// arm sets each deadline to the driver's deadline or to the limit, whichever is earlier.
func (c *limitedConn) arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := time.Now().Add(c.limit())
	if err := c.Conn.SetReadDeadline(earlier(c.read, end)); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(earlier(c.write, end))
}

func earlier(deadline, end time.Time) time.Time {
	if deadline.IsZero() || end.Before(deadline) {
		return end
	}
	return deadline
}

func (c *limitedConn) set(read, write *time.Time) error {
	c.mu.Lock()
	if read != nil {
		c.read = *read
	}
	if write != nil {
		c.write = *write
	}
	c.mu.Unlock()
	return c.arm()
}

func (c *limitedConn) SetDeadline(t time.Time) error      { return c.set(&t, &t) }
func (c *limitedConn) SetReadDeadline(t time.Time) error  { return c.set(&t, nil) }
func (c *limitedConn) SetWriteDeadline(t time.Time) error { return c.set(nil, &t) }
