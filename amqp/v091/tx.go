package v091

import (
	"context"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
)

// maxTxPublishes bounds what a transaction may hold, besides the bounds of all memory that is held for clients.
const maxTxPublishes = 1 << 16

// transaction is what a channel in transaction mode holds back until the
// commit, except settlements, which are in deliveries. The gate guards it;
// during a commit, busy does.
//
// Invariants: bytes is the sum of the weights, those of a commit in progress included, and counts in memory;
// len(publishes) ≤ maxTxPublishes; empty unless on.
type transaction struct {
	memory     *amqp.Account // of the channel
	on         bool          // the channel is in transaction mode
	publishes  []message
	bytes      int64
	committing bool
}

// weight is the memory that a message takes in a transaction, in bytes.
func (m *message) weight() int64 {
	return int64(unsafe.Sizeof(*m)) + int64(cap(m.publish.Payload))
}

// add holds back a message. The error is the channel's.
func (t *transaction) add(m *message) error {
	if len(t.publishes) == maxTxPublishes {
		return errTxTooLarge()
	}
	w := m.weight()
	if over := t.memory.Take(w); over != nil {
		return errHeld(wire.IDBasicPublish, over)
	}
	t.publishes = append(t.publishes, *m)
	t.bytes += w
	return nil
}

// begin returns what is to be committed. It counts until end.
func (t *transaction) begin() []message {
	publishes := t.publishes
	t.publishes, t.committing = nil, true
	return publishes
}

// end forgets what was committed.
func (t *transaction) end() {
	t.committing = false
	t.drop()
}

// drop empties the transaction, unless a commit has begun.
func (t *transaction) drop() {
	if !t.committing {
		t.memory.Add(-t.bytes)
		t.publishes, t.bytes = nil, 0
	}
}

// commits is the current commit of a channel, if any, which waits for the
// outcome of its publishes. Any goroutine may call note, which takes no lock
// while there is no commit.
type commits struct {
	current atomic.Pointer[commit]

	mu   sync.Mutex
	lost error // no more outcomes will come
}

// begin starts a commit whose first publish will have this number.
func (c *commits) begin(first uint64) (*commit, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return nil, c.lost
	}
	k := &commit{first: first, done: make(chan struct{})}
	c.current.Store(k)
	return k, nil
}

// end forgets the commit.
func (c *commits) end() { c.current.Store(nil) }

func (c *commits) resolve(first, last uint64, ok bool) {
	if k := c.current.Load(); k != nil {
		k.resolve(first, last, ok)
	}
}

// lose fails the commit and all later ones.
func (c *commits) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = err
	if k := c.current.Load(); k != nil {
		k.fail(err)
	}
}

// commit is a commit in progress: it waits for the outcome of its publishes.
//
// Invariants: resolved ≤ expected once that is known; done is closed when they
// are equal, or with err.
type commit struct {
	first uint64 // number of the first publish; other publishes do not count

	mu       sync.Mutex
	resolved uint64
	expected uint64 // 0: not all are published yet
	refused  bool
	err      error
	done     chan struct{}
}

// resolve records outcomes, of this commit's publishes or of earlier ones.
func (c *commit) resolve(first, last uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last < c.first {
		return
	}
	c.resolved += last - max(first, c.first) + 1
	c.refused = c.refused || !ok
	c.finish()
}

// published sets how many outcomes there will be.
func (c *commit) published(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = uint64(n)
	c.finish()
}

// fail reports that outcomes may no longer come.
func (c *commit) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && !(c.expected > 0 && c.resolved == c.expected) {
		c.err = err
		close(c.done)
	}
}

// finish ends the commit when all outcomes are there. mu is held.
func (c *commit) finish() {
	if c.expected > 0 && c.resolved == c.expected && c.err == nil {
		close(c.done)
	}
}

// selectTx switches transaction mode on. The gate is held.
func (ch *channel) selectTx() error {
	if ch.publisher.confirms.isOn() {
		return errTxMode(wire.IDTxSelect, "cannot switch from confirm to tx mode")
	}
	ch.tx.on = true
	ch.reply(false, &wire.TxSelectOK{})
	return nil
}

// rollBack drops the held-back publishes and unsettles the deliveries that were
// settled, which can then be settled again. The gate is held.
func (ch *channel) rollBack() error {
	if !ch.tx.on {
		return errTxMode(wire.IDTxRollback, "channel is not transactional")
	}
	ch.consumers.rollBack()
	ch.tx.drop()
	ch.reply(false, &wire.TxRollbackOK{})
	return nil
}

// commit performs tx.commit. The settlements are passed on after all publishes
// were accepted: if one is refused, or its outcome is unknown, nothing is
// settled. Busy is set.
func (ch *channel) commit() error {
	ch.gate.Lock()
	on, publishes := ch.tx.on, ch.tx.begin()
	ch.gate.Unlock()
	err := error(errTxMode(wire.IDTxCommit, "channel is not transactional"))
	if on {
		err = ch.commitPublishes(publishes)
	}
	ch.gate.Lock()
	defer ch.gate.Unlock()
	ch.tx.end()
	if err != nil {
		return err
	}
	if ch.end.sessionClosing {
		return nil
	}
	ch.settler.passAll(ch.consumers.commit())
	ch.reply(false, &wire.TxCommitOK{})
	return nil
}

// commitPublishes publishes messages and returns when all their queues have
// them. If one can no longer be published, none is.
func (ch *channel) commitPublishes(publishes []message) error {
	if len(publishes) == 0 {
		return nil
	}
	if !ch.awaitRoutes() {
		return errTxMode(wire.IDTxCommit, "partial tx completion")
	}
	ctx, cancel := context.WithTimeout(ch.conn.Context(), ch.conn.Config().OperationTimeout)
	defer cancel()
	for i := range publishes {
		m := &publishes[i]
		m.publish.Fresh = true
		if err := findRequester(ctx, ch.session, m); err != nil {
			return err
		}
	}
	k, err := ch.publishAll(publishes)
	if err != nil || k == nil {
		return err
	}
	defer ch.publisher.commits.end()
	select {
	case <-k.done:
	case <-ch.conn.Done():
		return amqp.ErrEnding
	}
	switch {
	case k.err != nil:
		return k.err
	case k.refused:
		return errTxMode(wire.IDTxCommit, "partial tx completion")
	}
	return nil
}

// publishAll begins a commit; nil: the channel is closing.
func (ch *channel) publishAll(publishes []message) (*commit, error) {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.end.sessionClosing {
		return nil, nil
	}
	return ch.publisher.publishAll(publishes)
}

// publishAll begins a commit, which the caller must end.
func (p *publisher) publishAll(publishes []message) (*commit, error) {
	for i := range publishes {
		if err := p.check(&publishes[i]); err != nil {
			return nil, err
		}
	}
	k, err := p.commits.begin(p.confirms.upcoming())
	if err != nil {
		return nil, err
	}
	for i := range publishes {
		if err := p.publish(&publishes[i]); err != nil {
			p.commits.end()
			return nil, err
		}
	}
	k.published(len(publishes))
	return k, nil
}
