package amqp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// Bounds of what a transaction may hold; one message of any size fits.
const (
	maxTxPublishes = 1 << 16
	maxTxBytes     = 64 << 20
)

// transaction is what a channel in transaction mode holds back until it is
// committed, all but settlements: see channel.txSettles. The gate guards it.
type transaction struct {
	publishes []message
	bytes     int
}

// txSettle is one delivery that the client has settled.
type txSettle struct {
	held    held
	outcome fsm.Outcome
}

// selectTx switches transaction mode on.
func (ch *channel) selectTx() error {
	if ch.confirms.isOn() {
		return errTxMode(wire.IDTxSelect, "cannot switch from confirm to tx mode")
	}
	if ch.tx == nil {
		ch.tx = &transaction{}
	}
	ch.reply(false, &wire.TxSelectOK{})
	return nil
}

// rollback drops what was published, and takes the deliveries back that were
// settled: they can be settled again.
func (ch *channel) rollback() error {
	t := ch.tx
	if t == nil {
		return errTxMode(wire.IDTxRollback, "channel is not transactional")
	}
	ch.mu.Lock()
	for _, s := range ch.txSettles {
		ch.unacked.putBack(s.held)
	}
	ch.unacked.restored()
	ch.txSettles = nil
	ch.mu.Unlock()
	*t = transaction{}
	ch.reply(false, &wire.TxRollbackOK{})
	return nil
}

// holdPublish keeps a message until the commit, if it could be published now.
func (ch *channel) holdPublish(m *message) error {
	t := ch.tx
	size := len(m.publish.Payload)
	if len(t.publishes) == maxTxPublishes || len(t.publishes) > 0 && t.bytes+size > maxTxBytes {
		return errTxTooLarge()
	}
	if err := ch.check(m); err != nil {
		return err
	}
	t.publishes = append(t.publishes, *m)
	t.bytes += size
	return nil
}

// check returns the error that the broker would refuse a message with.
func (ch *channel) check(m *message) error {
	ch.prepare(m)
	defer ch.prepare(nil)
	return ch.session.Check(&m.publish)
}

// commit is a commit under way: it waits for the outcome of its publishes.
type commit struct {
	first uint64 // number of the first one; those of others do not count

	mu       sync.Mutex
	settled  uint64
	expected uint64 // 0: not all are published yet
	refused  bool
	err      error
	done     chan struct{}
}

// note takes outcomes, of this commit's publishes or of earlier ones.
func (c *commit) note(first, last uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last < c.first {
		return
	}
	c.settled += last - max(first, c.first) + 1
	c.refused = c.refused || !ok
	c.finish()
}

// published says how many outcomes there will be.
func (c *commit) published(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = uint64(n)
	c.finish()
}

// fail says that outcomes may not come any more.
func (c *commit) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !(c.expected > 0 && c.settled == c.expected) {
		c.err = err
		close(c.done)
	}
}

// finish ends the commit when all outcomes are there. mu is held.
func (c *commit) finish() {
	if c.expected > 0 && c.settled == c.expected && c.err == nil {
		close(c.done)
	}
}

// commitTx does tx.commit. The settlements go out after all publishes were
// accepted: if one is refused, or its outcome is not known, nothing is settled.
func (ch *channel) commitTx() error {
	ch.gate.Lock()
	t := ch.tx
	ch.gate.Unlock()
	if t == nil {
		return errTxMode(wire.IDTxCommit, "channel is not transactional")
	}
	// Nobody else touches the transaction while busy is set.
	publishes := t.publishes
	*t = transaction{}
	if err := ch.commitPublishes(publishes); err != nil {
		return err
	}
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.closing {
		return nil
	}
	ch.settleTx()
	ch.reply(false, &wire.TxCommitOK{})
	return nil
}

// settleTx passes settlements on, those of one outcome in a row at once. The
// gate is held.
func (ch *channel) settleTx() {
	ch.mu.Lock()
	settles := ch.txSettles
	ch.txSettles = nil
	ch.mu.Unlock()
	for len(settles) > 0 {
		outcome := settles[0].outcome
		ch.taken = ch.taken[:0]
		for len(settles) > 0 && settles[0].outcome == outcome {
			ch.taken = append(ch.taken, settles[0].held)
			settles = settles[1:]
		}
		ch.settleTaken(outcome)
	}
}

// commitPublishes publishes messages and returns when all their queues have
// them. If one cannot be published any more, none is.
func (ch *channel) commitPublishes(publishes []message) error {
	if len(publishes) == 0 {
		return nil
	}
	if !ch.awaitRoutes() {
		return errTxMode(wire.IDTxCommit, "partial tx completion")
	}
	ctx, cancel := context.WithTimeout(ch.conn.ctx, ch.conn.server.cfg.OperationTimeout)
	defer cancel()
	for i := range publishes {
		m := &publishes[i]
		m.publish.Fresh = true
		if err := ch.askRequester(ctx, m); err != nil {
			return err
		}
	}
	c, err := ch.publishAll(publishes)
	if err != nil || c == nil {
		return err
	}
	defer ch.committing.Store(nil)
	select {
	case <-c.done:
	case <-ch.conn.done:
		return errEnding
	}
	switch {
	case c.err != nil:
		return c.err
	case c.refused:
		return errTxMode(wire.IDTxCommit, "partial tx completion")
	}
	return nil
}

// publishAll begins a commit; nil: the channel is closing.
func (ch *channel) publishAll(publishes []message) (*commit, error) {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.closing {
		return nil, nil
	}
	for i := range publishes {
		if err := ch.check(&publishes[i]); err != nil {
			return nil, err
		}
	}
	c := &commit{first: ch.confirms.upcoming(), done: make(chan struct{})}
	ch.committing.Store(c)
	ch.mu.Lock()
	lost := ch.lost
	ch.mu.Unlock()
	if lost != nil {
		ch.committing.Store(nil)
		return nil, lost
	}
	for i := range publishes {
		if err := ch.enqueue(&publishes[i]); err != nil {
			ch.committing.Store(nil)
			return nil, err
		}
	}
	c.published(len(publishes))
	return c, nil
}

// isReply reports whether a message has to be returned if the channel that it
// replies to is gone.
func (m *message) isReply() bool {
	return m.mandatory && m.publish.Exchange == "" && strings.HasPrefix(m.publish.RoutingKey, fsm.ReplyQueue)
}

// askRequester finds out whether the channel that a mandatory message replies
// to is there.
func (ch *channel) askRequester(ctx context.Context, m *message) error {
	m.publish.RequesterGone = false
	if !m.isReply() {
		return nil
	}
	_, err := ch.session.DeclareQueue(ctx, fsm.QueueSpec{Name: m.publish.RoutingKey, Passive: true})
	r := new(fsm.Refusal)
	if errors.As(err, &r) && r.Kind == fsm.NotFoundKind {
		m.publish.RequesterGone, err = true, nil
	}
	return err
}

// putBack adds a delivery that was taken. restored must be called before
// anything else.
func (u *unacked) putBack(h held) {
	u.list = append(u.list, h)
	u.live++
}

// restored puts the list in order after putBack.
func (u *unacked) restored() {
	u.compact()
	slices.SortFunc(u.list, func(a, b held) int {
		if a.tag < b.tag {
			return -1
		}
		return 1
	})
}
