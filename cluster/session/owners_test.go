package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// mustOwn opens a connection with an exclusive queue.
func (w *world) mustOwn(name string) (*Connection, *Session) {
	w.t.Helper()
	n, _ := w.View().NodeByName("n1")
	w.node.Boot.Store(n.GetBoot())
	s := w.mustSession(&recorder{})
	if _, _, err := s.declare(w.t.(*testing.T).Context(), fsm.QueueSpec{Name: name, Exclusive: true}, false); err != nil {
		w.t.Fatalf("declare %s: %v", name, err)
	}
	w.mustHave(name, true)
	return s.conn, s
}

// mustHave fails if a queue is there, or is not.
func (w *world) mustHave(name string, want bool) {
	w.t.Helper()
	if _, ok := w.View().Queue("/", name); ok != want {
		w.t.Fatalf("the queue %s is there: %v", name, ok)
	}
}

// A connection that ends while the catalog has no leader leaves no exclusive queue behind.
func TestOwnerEndsWithoutCatalog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		conn, _ := w.mustOwn("mine")
		w.mustOwn("another's")
		w.headless.Store(true)
		conn.Close(t.Context())
		time.Sleep(time.Hour)
		w.mustHave("mine", true)
		w.headless.Store(false)
		time.Sleep(ownersAgain)
		synctest.Wait()
		w.mustHave("mine", false)
		w.mustHave("another's", true)
		w.close()
	})
}

// A declaration that takes effect when its connection has ended leaves no queue behind, and one of a
// connection that lives is left alone.
func TestOwnerDeclaresTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		late, _ := w.mustOwn("first")
		lives, _ := w.mustOwn("kept")
		late.Close(t.Context())
		w.mustHave("first", false)
		for name, conn := range map[string]*Connection{"late": late, "lives": lives} {
			w.Apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
				Vhost: "/", Name: name, Exclusive: true, Local: true, Owner: conn.owner().Proto(), Members: []uint32{1},
			}}})
			w.mustHave(name, true)
			q, _ := w.View().Queue("/", name)
			w.sessions.QueueAdded(q)
		}
		synctest.Wait()
		w.mustHave("late", false)
		w.mustHave("lives", true)
		w.close()
	})
}
