package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

var (
	exchangeX = &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: "direct", Durable: true}
	fanoutX   = &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: "fanout", Durable: true}
	bindingX  = &logpb.Bind{Vhost: "/", Source: "x", Destination: "q", RoutingKey: "k"}
	specX     = fsm.ExchangeSpec{Name: "x", Type: "direct", Durable: true}
	boundX    = fsm.BindSpec{Source: "x", Destination: "q", RoutingKey: "k"}
)

func (w *world) mustExchange(d *logpb.DeclareExchange) {
	w.t.Helper()
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: d}})
}

func (w *world) mustNoExchange() {
	w.t.Helper()
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: &logpb.DeleteExchange{Vhost: "/", Name: "x"}}})
}

func (w *world) mustBind() {
	w.t.Helper()
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: bindingX}})
}

func (w *world) mustUnbind() {
	w.t.Helper()
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: bindingX}})
}

// behindCases are requests to a node whose view lacks what others have done meanwhile. By the view,
// each would be answered at once.
var behindCases = map[string]struct {
	before, meanwhile func(w *world)
	request           func(ctx context.Context, s *Session) error
	refused           fsm.Kind                   // 0: it is not
	then              func(v *catalog.View) bool // nil: nothing has to hold
}{
	"declare an exchange that was replaced": {
		before:    func(w *world) { w.mustExchange(exchangeX) },
		meanwhile: func(w *world) { w.mustNoExchange(); w.mustExchange(fanoutX) },
		request:   func(ctx context.Context, s *Session) error { return s.DeclareExchange(ctx, specX) },
		refused:   fsm.Precondition,
	},
	"declare an exchange that was deleted": {
		before:    func(w *world) { w.mustExchange(exchangeX) },
		meanwhile: (*world).mustNoExchange,
		request:   func(ctx context.Context, s *Session) error { return s.DeclareExchange(ctx, specX) },
		then:      func(v *catalog.View) bool { _, there := v.Exchange("/", "x"); return there },
	},
	"look for an exchange that was deleted": {
		before:    func(w *world) { w.mustExchange(exchangeX) },
		meanwhile: (*world).mustNoExchange,
		request: func(ctx context.Context, s *Session) error {
			return s.DeclareExchange(ctx, fsm.ExchangeSpec{Name: "x", Passive: true})
		},
		refused: fsm.NotFoundKind,
	},
	"delete an exchange that was declared": {
		before:    func(*world) {},
		meanwhile: func(w *world) { w.mustExchange(exchangeX) },
		request:   func(ctx context.Context, s *Session) error { return s.DeleteExchange(ctx, "x", false) },
		then:      func(v *catalog.View) bool { _, there := v.Exchange("/", "x"); return !there },
	},
	"bind what was unbound": {
		before:    func(w *world) { w.mustExchange(exchangeX); w.MustQueue("q"); w.mustBind() },
		meanwhile: (*world).mustUnbind,
		request:   func(ctx context.Context, s *Session) error { return s.Bind(ctx, boundX) },
		then:      func(v *catalog.View) bool { return len(v.Bindings("/")) == 1 },
	},
	"unbind what was bound": {
		before:    func(w *world) { w.mustExchange(exchangeX); w.MustQueue("q") },
		meanwhile: (*world).mustBind,
		request:   func(ctx context.Context, s *Session) error { return s.Unbind(ctx, boundX) },
		then:      func(v *catalog.View) bool { return len(v.Bindings("/")) == 0 },
	},
	"declare a queue that was replaced": {
		before: func(w *world) { w.MustQueue("q") },
		meanwhile: func(w *world) {
			q, _ := w.Catalog.View().Queue("/", "q")
			w.Delete(q)
			w.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: "q", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{Fields: []*logpb.Field{
				{Name: "x-max-length", Value: &logpb.Value{Tag: 'I', Int: 5}},
			}}})
		},
		request: func(ctx context.Context, s *Session) error {
			_, err := s.DeclareQueue(ctx, fsm.QueueSpec{Name: "q", Durable: true})
			return err
		},
		refused: fsm.Precondition,
	},
	"look for a queue that was deleted": {
		before:    func(w *world) { w.MustQueue("q") },
		meanwhile: func(w *world) { q, _ := w.Catalog.View().Queue("/", "q"); w.Delete(q) },
		request: func(ctx context.Context, s *Session) error {
			_, err := s.DeclareQueue(ctx, fsm.QueueSpec{Name: "q", Passive: true})
			return err
		},
		refused: fsm.NotFoundKind,
	},
	"delete a queue that was declared": {
		before:    func(*world) {},
		meanwhile: func(w *world) { w.MustQueue("q") },
		request: func(ctx context.Context, s *Session) error {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second) // the queue has no leader
			defer cancel()
			_, err := s.DeleteQueue(ctx, "q", false, false)
			return err
		},
		then: func(v *catalog.View) bool { _, there := v.Queue("/", "q"); return !there },
	},
}

// What a client is told is there, or gone, is so at every node: a node that may be behind does not
// answer by its view.
func TestNodeBehindTellsNothing(t *testing.T) {
	for name, x := range behindCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.mustSession(&recorder{})
			x.before(w)
			w.behind.Store(w.Catalog.View())
			x.meanwhile(w)
			w.stale.Store(true)
			w.heals = 1
			err := x.request(t.Context(), s)
			if x.refused != 0 && !isKind(err, x.refused) || x.refused == 0 && err != nil {
				t.Errorf("answered: %v", err)
			}
			if x.then != nil && !x.then(w.Catalog.View()) {
				t.Errorf("that was not true:\n%s", w.Catalog.View())
			}
		})
	}
}

// A node that does not come to know whether its view is the newest does not tell what is in it.
func TestNodeThatStaysBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.mustSession(&recorder{})
	w.mustExchange(exchangeX)
	w.stale.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
	defer cancel()
	if err := s.DeclareExchange(ctx, fsm.ExchangeSpec{Name: "x", Passive: true}); !isKind(err, fsm.Internal) {
		t.Errorf("answered: %v", err)
	}
	w.stale.Store(false)
	if err := s.DeclareExchange(t.Context(), fsm.ExchangeSpec{Name: "x", Passive: true}); err != nil {
		t.Error(err)
	}
}

// What is too large is refused by the node that the client is connected to, as its leader would refuse it: the leader
// is not bothered with it.
func TestTooLargeIsNotProposed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.mustSession(&recorder{})
	w.headless.Store(true)
	large := &fsm.Table{}
	for i := range 300 {
		large.Fields = append(large.Fields, &logpb.Field{Name: fmt.Sprint("x", i), Value: &logpb.Value{Tag: 'V'}})
	}
	_, err := s.DeclareQueue(t.Context(), fsm.QueueSpec{Name: "q", Durable: true, Arguments: large})
	if !isKind(err, fsm.Precondition) || !strings.Contains(err.Error(), "300 values") {
		t.Errorf("queue: %v", err)
	}
	if err := s.DeclareExchange(t.Context(), fsm.ExchangeSpec{Name: "x", Type: "direct", Arguments: large}); !isKind(err, fsm.Precondition) {
		t.Errorf("exchange: %v", err)
	}
	w.stale.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := s.DeclareQueue(ctx, fsm.QueueSpec{Name: "q", Durable: true, Arguments: large}); isKind(err, fsm.Precondition) {
		t.Errorf("a node that may not know the limit: %v", err)
	}
}
