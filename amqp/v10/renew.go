package v10

import "time"

// renewWait is how long the deliveries that a client wants to hold for longer are gathered, once some were renewed: each
// renewal is an entry in the log of their queue.
const renewWait = 100 * time.Millisecond

// renew marks the unsettled deliveries of a range. What is lost is no more the client's.
func (c *counts) renew(first, last uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.deliveries
	to := u.whole(last)
	for i := u.at(u.whole(first)); i < len(u.list) && int64(u.list[i].id) <= to; i++ {
		if d := &u.list[i]; d.link != nil && !d.lost {
			d.renew, c.renews = true, true
		}
	}
}

// takeRenewals appends to dst what is to be renewed now. The wait for what comes next begins.
func (c *counts) takeRenewals(dst []delivery) []delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !c.renews || c.renewal != nil {
		return dst
	}
	c.renews = false
	for i := c.deliveries.head; i < len(c.deliveries.list); i++ {
		if d := &c.deliveries.list[i]; d.renew {
			if d.renew = false; d.link != nil && !d.lost {
				dst = append(dst, *d)
			}
		}
	}
	c.renewal = time.AfterFunc(renewWait, c.renewAgain)
	return dst
}

// renewAgain ends the wait, and has renewed what has come meanwhile.
func (c *counts) renewAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.renewal = nil; c.renews && !c.closed {
		s := c.session
		s.post(func() {
			s.gate.Lock()
			defer s.gate.Unlock()
			if s.state == sessionOpen {
				s.renew()
			}
		})
	}
}

// renew renews what is to be renewed, unless some was a moment ago. The gate is held.
func (s *session) renew() {
	s.giving = s.counts.takeRenewals(s.giving[:0])
	s.eachLink(s.giving, func(l *outgoingLink, _ []delivery, ids []uint64) { s.broker.Renew(l.consumer, ids) })
}
