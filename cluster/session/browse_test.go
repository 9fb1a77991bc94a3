package session

import (
	"context"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/fsm"
)

// page is what a queue shows of messages with some numbers.
func page(seen uint64, size int, numbers ...uint64) *queues.Browsed {
	p := &queues.Browsed{Seen: seen, Newest: 10, Ready: 7}
	for _, n := range numbers {
		p.Messages = append(p.Messages, queues.Peeked{Number: n, Message: fsm.Message{Payload: grouptest.Payload(strings.Repeat("x", size))}})
	}
	return p
}

// A browser goes on behind what it has taken: credit may be taken back while it is asked for, and the channel may have no
// space. A drain or an echo is answered by a round that began after it, and nothing is given to one that is over.
func TestBrowser(t *testing.T) {
	w := newWorld(t)
	w.mustHost()
	defer w.close()
	c := &recorder{}
	s := w.mustSession(c)
	q := w.MustQueue("q")
	if err := s.Consume(context.Background(), fsm.ConsumeSpec{Queue: "q", Number: 4, Credit: true, Browse: true}); err != nil {
		t.Fatal(err)
	}
	b := s.browser(4)
	s.Credit(4, fsm.Flow{Credit: 3})
	if wish, ok := b.wish(); !ok || wish.limit != 3 || wish.after != 0 {
		t.Errorf("wish %+v", wish)
	}
	s.Credit(4, fsm.Flow{Credit: 2})
	b.give(page(9, 1, 2, 5, 8))
	if b.after != 5 || b.count != 2 || len(c.messages) != 2 {
		t.Errorf("after %d, %d given", b.after, len(c.messages))
	}
	if _, ok := b.wish(); ok {
		t.Error("it takes nothing, and wants something")
	}
	s.Credit(4, fsm.Flow{DeliveryCount: 2, Credit: 10})
	b.give(page(9, maxUnwritten, 6, 8))
	if b.after != 6 || len(c.messages) != 3 {
		t.Errorf("without space: after %d, %d given", b.after, len(c.messages))
	}
	if wish, ok := b.wish(); ok || wish.limit != 0 {
		t.Error("it asks for more than there is space for")
	}
	s.Written(1, maxUnwritten)
	b.give(page(9, 1, 8))
	if b.after != 9 || len(c.messages) != 4 {
		t.Errorf("after %d, %d given", b.after, len(c.messages))
	}
	before, _ := b.wish()
	s.Credit(4, fsm.Flow{DeliveryCount: 4, Credit: 10, Drain: true})
	b.answer(before, page(0, 0))
	now, _ := b.wish()
	b.answer(now, page(0, 0)) // it is not at the end
	if b.give(page(10, 1)); len(c.log) != 3 {
		t.Errorf("too early: %v", c.log)
	}
	b.answer(now, page(0, 0))
	if want := "credited 4 {DeliveryCount:14 Credit:0 Available:7 Drained:true}"; c.log[len(c.log)-1] != want {
		t.Errorf("%v, want %s", c.log, want)
	}
	s.Settle(4, []uint64{1, 2}, fsm.Requeue)
	s.Credit(4, fsm.Flow{DeliveryCount: 14, Credit: 10})
	s.Drop(4)
	if b.give(page(11, 1, 11)); len(c.messages) != 4 || len(s.conn.in.browsing.of) != 0 {
		t.Error("it was dropped, and is given something")
	}
	if err := s.Consume(context.Background(), fsm.ConsumeSpec{Queue: "q", Number: 5, Credit: true, Browse: true}); err != nil {
		t.Fatal(err)
	}
	w.deleteQueue(q)
	w.sessions.QueueGone(q.ID)
	w.sessions.browsing.rounds.Wait()
	if c.log[len(c.log)-1] != "cancelled" {
		t.Errorf("its queue is gone: %v", c.log)
	}
}

// A browser that comes when its channel has closed is not kept: nobody would end it.
func TestBrowserOfClosedSession(t *testing.T) {
	w := newWorld(t)
	w.mustHost()
	defer w.close()
	s := w.mustSession(&recorder{})
	w.MustQueue("q")
	s.Close(t.Context())
	if err := s.Consume(t.Context(), fsm.ConsumeSpec{Queue: "q", Number: 4, Credit: true, Browse: true}); err == nil || len(s.conn.in.browsing.of) != 0 {
		t.Errorf("%v, and %d queues are browsed", err, len(s.conn.in.browsing.of))
	}
}
