package broker

import "sync"

// tallies counts what each user and each vhost has open at this node.
//
// Invariant: connections > 0 for whoever is listed; a user's channels are the sum
// of those of its connections that have entered and not left.
type tallies struct {
	mu sync.Mutex
	by map[tallied]*tally
}

// tallied is whose connections are counted: those of a user, or to a vhost.
type tallied struct {
	user bool
	name string
}

// tally is what a user has, or how many connections a vhost.
type tally struct{ connections, channels int64 }

// enter counts a connection.
func (t *tallies) enter(c *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.counted = true
	for _, of := range c.tallied() {
		if t.by[of] == nil {
			t.by[of] = &tally{}
		}
		t.by[of].connections++
	}
}

// leave counts it, and the channels that it has left, no more.
func (t *tallies) leave(c *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.counted {
		return
	}
	c.counted = false
	for _, of := range c.tallied() {
		one := t.by[of]
		if of.user {
			one.channels -= c.channels
		}
		if one.connections--; one.connections == 0 {
			delete(t.by, of)
		}
	}
}

// channel counts channels of a connection.
func (t *tallies) channel(c *Connection, more int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.channels += more
	if c.counted {
		t.by[tallied{true, c.user}].channels += more
	}
}

// of is what a user or a vhost has.
func (t *tallies) of(who tallied) tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.by[who]; one != nil {
		return *one
	}
	return tally{}
}

func (c *Connection) tallied() [2]tallied { return [2]tallied{{false, c.vhost}, {true, c.user}} }
