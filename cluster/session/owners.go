package session

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// ownersAgain is when the exclusive queues of a connection that has ended are deleted again if that has failed,
// and how long an attempt may take.
const (
	ownersAgain = time.Second
	ownersWait  = 10 * time.Second
)

// owners are the connections of this node that may have exclusive queues. Once one has ended its queues are
// deleted, whatever comes between: a catalog without a leader, or a declaration that takes effect later. What
// a former boot of the node owned is the catalog's business.
type owners struct {
	*self.Node
	ended *worker.Queue[catalog.Owner]

	mu   sync.Mutex
	open map[uint64]struct{} // by number
}

func newOwners(n *self.Node) *owners {
	o := &owners{Node: n, open: map[uint64]struct{}{}}
	o.ended = worker.NewQueue(n.Guard, "delete exclusive queues", 8, o.delete)
	o.ended.Start()
	return o
}

// add records that a connection is about to declare an exclusive queue.
func (o *owners) add(c *Connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[c.number] = struct{}{}
}

// end deletes the exclusive queues of a connection.
func (o *owners) end(ctx context.Context, c *Connection) {
	if !o.remove(c) {
		return
	}
	if _, err := o.Catalog.Propose(ctx, deleteOwned(c.owner())); err != nil {
		o.Logger.Warn("exclusive queues are not deleted yet", "connection", c.number, "error", err)
		o.ended.Add(c.owner())
	}
}

// remove forgets a connection, and reports whether it was known.
func (o *owners) remove(c *Connection) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, was := o.open[c.number]
	delete(o.open, c.number)
	return was
}

// queueAdded deletes a queue whose connection to this node has ended already.
func (o *owners) queueAdded(q *catalog.Queue) {
	if !q.Exclusive || !o.Is(q.Owner.Node) || q.Owner.Boot != o.Boot.Load() {
		return
	}
	o.mu.Lock()
	_, lives := o.open[q.Owner.Connection]
	o.mu.Unlock()
	if !lives {
		o.ended.Add(q.Owner)
	}
}

// delete deletes the queues of a connection that has ended.
func (o *owners) delete(owner catalog.Owner) (again time.Duration) {
	open, cancel := o.WhileOpen()
	defer cancel()
	ctx, cancel := context.WithTimeout(open, ownersWait)
	defer cancel()
	if _, err := o.Catalog.Note(ctx, deleteOwned(owner)); err != nil {
		return ownersAgain
	}
	return 0
}

func deleteOwned(owner catalog.Owner) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteOwned{DeleteOwned: &logpb.DeleteOwned{Owner: owner.Proto()}}}
}
