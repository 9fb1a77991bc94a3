package expiry

import (
	"context"
	"log/slog"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const idle = 600_000 // ms, of the exchange x, to which the queue q is bound

// world is a catalog, and what the leader of q answers.
type world struct {
	catalog.Catalog
	t        *testing.T
	leader   string
	now      fsm.Time
	activity *peerpb.QueueStats // nil: nothing
}

func (w *world) Leader() string { return w.leader }

func (w *world) Note(_ context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return w.Apply(w.View().Index()+1, &logpb.CatalogEntry{Version: 1, Now: int64(w.now), Commands: commands}), nil
}

func newWorld(t *testing.T) (*world, *Exchanges) {
	w := &world{t: t, leader: "n1", now: 1_000_000}
	table := &fsm.Table{Fields: []*logpb.Field{{Name: "x-auto-delete-on-idle", Value: &logpb.Value{Tag: 'l', Int: idle}}}}
	for _, c := range []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", Incarnation: []byte("n1"), OldestVersion: 1, NewestVersion: 3}}},
		{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}},
		{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: "direct", Durable: true, Arguments: table}}},
		{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: "q", Durable: true, Members: []uint32{1}}}},
		{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{Vhost: "/", Source: "x", Destination: "q"}}},
	} {
		r, err := w.Note(t.Context(), c)
		if err != nil || catalog.Refused(r[0]) != nil {
			t.Fatalf("%v: %v, %v", c, catalog.Refused(r[0]), err)
		}
	}
	e := New(Config{Self: "n1", Catalog: w, Now: func() fsm.Time { return w.now }, Logger: slog.New(slog.DiscardHandler),
		Activity: func(_ context.Context, ids ...fsm.QueueID) map[fsm.QueueID]*peerpb.QueueStats {
			if len(ids) != 1 {
				t.Errorf("asked for %v", ids)
			}
			if w.activity == nil {
				return nil
			}
			return map[fsm.QueueID]*peerpb.QueueStats{ids[0]: w.activity}
		}})
	return w, e
}

// check lets time pass and has the exchange checked.
func (w *world) check(e *Exchanges, after fsm.Millis, kept bool, why string) {
	w.t.Helper()
	w.now = w.now.Add(after)
	e.check(w.t.Context())
	if _, is := w.View().Exchange("/", "x"); is != kept || (e.Expired() == 0) != kept {
		w.t.Errorf("%s: it is there: %v, %d expired", why, is, e.Expired())
	}
}

const long = 2 * idle // beyond the time of the exchange, and the slack of notes

// TestExpiry: an exchange goes once its queues have said that nobody has used it.
func TestExpiry(t *testing.T) {
	w, e := newWorld(t)
	w.activity = &peerpb.QueueStats{}
	w.check(e, long, true, "the time begins when the node leads")
	w.check(e, idle-1, true, "not yet")
	w.activity = nil
	w.check(e, long, true, "its queue does not answer")
	w.activity = &peerpb.QueueStats{InUse: true}
	w.check(e, long, true, "its queue has a consumer")
	w.activity = &peerpb.QueueStats{LastActive: int64(w.now.Add(long))}
	w.check(e, long, true, "its queue was used just now")
	w.activity = &peerpb.QueueStats{}
	w.check(e, idle-1, true, "that use was noted")
	w.check(e, long, false, "nobody has used it")
}

// TestOnlyTheLeader: others leave exchanges alone, and time begins anew with each
// leadership.
func TestOnlyTheLeader(t *testing.T) {
	w, e := newWorld(t)
	w.activity = &peerpb.QueueStats{}
	w.check(e, 0, true, "begins to lead")
	w.leader = "n2"
	w.check(e, long, true, "another node leads")
	w.leader = "n1"
	w.check(e, long, true, "begins to lead again")
	w.check(e, long, false, "has led for long")
}

// TestPartsWait: what is scheduled in a part of an exchange is going to use it.
func TestPartsWait(t *testing.T) {
	w, e := newWorld(t)
	for _, c := range []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.FSMVersion, Value: 3}}},
		{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: "store", Durable: true, Members: []uint32{1}, PartOf: "x", PartOfExchange: true}}},
		{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: "q"}}},
	} {
		if r, err := w.Note(t.Context(), c); err != nil || catalog.Refused(r[0]) != nil {
			t.Fatalf("%v: %v, %v", c, catalog.Refused(r[0]), err)
		}
	}
	w.activity = &peerpb.QueueStats{MessagesScheduled: 1}
	w.check(e, 0, true, "begins to lead")
	w.check(e, long, true, "a message is scheduled")
	w.activity = &peerpb.QueueStats{}
	w.check(e, long, false, "there is none any more")
}
