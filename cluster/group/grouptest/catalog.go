package grouptest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Catalog is a catalog in memory, with node n1, vhost / and user guest, who may
// do everything. It is meant to be embedded into the node of a test.
type Catalog struct {
	t     Fatal
	Clock atomic.Int64 // ms
	view  atomic.Pointer[catalog.View]

	mu      sync.Mutex // guards what follows
	machine catalog.Catalog
	index   uint64
}

// NewCatalog returns a catalog whose refusals fail t.
func NewCatalog(t Fatal) *Catalog {
	c := &Catalog{t: t}
	c.view.Store(c.machine.View())
	c.Clock.Store(1_000_000)
	c.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
		Name: "n1", PeerAddress: "n1", Incarnation: []byte("0123456789abcdef"), OldestVersion: fsm.OldestVersion, NewestVersion: fsm.NewestVersion,
	}}})
	c.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
		Vhost:      &logpb.PutVhost{Name: "/"},
		User:       &logpb.PutUser{Name: "guest", Tags: []string{"administrator"}},
		Permission: &logpb.PutPermission{User: "guest", Vhost: "/", Configure: ".*", Write: ".*", Read: ".*"},
	}}})
	return c
}

// View is the newest view.
func (c *Catalog) View() *catalog.View { return c.view.Load() }

// Now is the time for durations, in milliseconds.
func (c *Catalog) Now() int64 { return c.Clock.Load() }

// Stamp is the same as an instant.
func (c *Catalog) Stamp() fsm.Time { return fsm.Time(c.Clock.Load()) }

// Refresh has nothing to wait for.
func (c *Catalog) Refresh(context.Context) error { return nil }

// Fresh is true: there is one view.
func (c *Catalog) Fresh() bool { return true }

// Converge has nobody to wait for.
func (c *Catalog) Converge(context.Context) error { return nil }

// Propose applies commands at once.
func (c *Catalog) Propose(_ context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return c.Apply(commands...), nil
}

// Note is Propose.
func (c *Catalog) Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return c.Propose(ctx, commands...)
}

// Leader is nobody: there are no replicas.
func (c *Catalog) Leader() string { return "" }

// Progress is none.
func (c *Catalog) Progress() replica.Progress { return replica.Progress{} }

// HashAt fails: there is no log.
func (c *Catalog) HashAt(uint64, time.Duration) (index uint64, hash string, err error) {
	return 0, "", replica.ErrNotReached
}

// NextQueue is the id of a queue that the next entry creates.
func (c *Catalog) NextQueue() fsm.QueueID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fsm.QueueID((c.index + 1) << 16)
}

// Apply makes one entry of commands.
func (c *Catalog) Apply(commands ...*logpb.CatalogCommand) []*logpb.CatalogResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	r := c.machine.Apply(c.index, &logpb.CatalogEntry{Version: 1, Now: c.Clock.Load(), Commands: commands})
	c.view.Store(c.machine.View())
	return r
}

// Commit makes an entry of a command, which must not be refused.
func (c *Catalog) Commit(command *logpb.CatalogCommand) *logpb.CatalogResult {
	c.t.Helper()
	r := c.Apply(command)[0]
	if r.Refusal != 0 {
		c.t.Fatalf("catalog refuses: %s", r.Text)
	}
	return r
}

// MustQueue makes a durable queue.
func (c *Catalog) MustQueue(name string) *catalog.Queue {
	c.t.Helper()
	return c.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: name, Durable: true, Members: []uint32{1}})
}

// MustDeclare makes a queue.
func (c *Catalog) MustDeclare(d *logpb.DeclareQueue) *catalog.Queue {
	c.t.Helper()
	r := c.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}})
	q, ok := c.View().QueueByID(fsm.QueueID(r.Queue))
	if !ok {
		c.t.Fatalf("queue %s is not there", d.Name)
	}
	return q
}

// Delete removes a queue.
func (c *Catalog) Delete(q *catalog.Queue) {
	c.t.Helper()
	c.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: q.VHost, Name: q.Name, Id: uint64(q.ID),
	}}})
}
