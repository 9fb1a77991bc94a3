package stream

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// messages of one consumer, by their delivery numbers.
func messages(consumer uint64, ids ...uint64) DeliveryBatch {
	var d DeliveryBatch
	for _, id := range ids {
		d.Messages = append(d.Messages, fsm.Message{Consumer: consumer, ID: id, Payload: grouptest.Payload(fmt.Sprint(id))})
	}
	return d
}

func answerOf(consumer, last uint64, ids ...uint64) DeliveryBatch {
	d := messages(consumer, ids...)
	d.Resync, d.Consumer, d.Last = true, consumer, last
	return d
}

func TestDeliveries(t *testing.T) {
	for _, tc := range []struct {
		name  string
		come  []DeliveryBatch
		want  []uint64
		asked bool // the leader is asked and has not answered
	}{
		{"in order", []DeliveryBatch{messages(5, 1, 2), messages(5, 3)}, []uint64{1, 2, 3}, false},
		{"twice", []DeliveryBatch{messages(5, 1, 2), messages(5, 1, 2, 3)}, []uint64{1, 2, 3}, false},
		{"a gap", []DeliveryBatch{messages(5, 1), messages(5, 3, 4)}, []uint64{1}, true},
		{"a gap is closed", []DeliveryBatch{messages(5, 1), messages(5, 3, 4), answerOf(5, 4, 2, 3, 4), messages(5, 5)}, []uint64{1, 2, 3, 4, 5}, false},
		{"what is settled stays away", []DeliveryBatch{messages(5, 3), answerOf(5, 4, 2, 4), messages(5, 5)}, []uint64{2, 4, 5}, false},
		{"nothing is held", []DeliveryBatch{messages(5, 3), answerOf(5, 3), messages(5, 4)}, []uint64{4}, false},
		{"an answer in two parts", []DeliveryBatch{messages(5, 9), answerOf(5, 2, 1, 2), answerOf(5, 9, 7, 9), messages(5, 10)}, []uint64{1, 2, 7, 9, 10}, false},
		{"an answer that comes late", []DeliveryBatch{messages(5, 1, 2), answerOf(5, 1, 1), messages(5, 3)}, []uint64{1, 2, 3}, false},
		{"the next one before the answer", []DeliveryBatch{messages(5, 2), messages(5, 1), messages(5, 2), answerOf(5, 2, 1, 2)}, []uint64{1, 2}, false},
		{"a gap behind an answer", []DeliveryBatch{answerOf(5, 2, 1, 2), messages(5, 4)}, []uint64{1, 2}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &client{}
			s := newHost(t).mustStream(c)
			x := c.consumer(5)
			for _, d := range tc.come {
				s.Receive(d)
			}
			var got []uint64
			for _, m := range c.messages {
				got = append(got, m.ID)
				if m.Consumer != 5 || string(m.Payload.Body()) != fmt.Sprint(m.ID) {
					t.Errorf("delivery %d is %+v", m.ID, m)
				}
			}
			if _, asked, _ := x.Position(); !slices.Equal(got, tc.want) || asked != tc.asked || x.Unsettled != len(got) {
				t.Errorf("delivered %v, asked %v, %d to be settled; want %v, %v", got, asked, x.Unsettled, tc.want, tc.asked)
			}
		})
	}
}

// What has never come, and the leader has no more, is settled: it may have been taken back from a consumer that is
// served again only then.
func TestSkippedIsSettled(t *testing.T) {
	c := &client{}
	s := newHost(t).mustStream(c)
	c.consumer(5)
	s.Receive(answerOf(5, 5, 2, 3))
	s.Receive(answerOf(5, 5))
	var told []uint64
	for _, got := range grouptest.Commands(t, take(s)[0]) {
		told = append(told, ids(got.Settle.Ranges)...)
	}
	if !slices.Equal(told, []uint64{1, 4, 5}) {
		t.Errorf("%v are settled", told)
	}
}

// What comes for a consumer that is no more goes back to the queue.
func TestUnknownConsumer(t *testing.T) {
	c := &client{}
	s := newHost(t).mustStream(c)
	s.Receive(messages(5, 1, 2))
	got := grouptest.Commands(t, take(s)[0])
	if len(got) != 1 || got[0].Settle.GetOutcome() != fsm.Requeue || !slices.Equal(ids(got[0].Settle.Ranges), []uint64{1, 2}) {
		t.Errorf("the queue is told %v", got)
	}
	if len(c.messages) != 0 {
		t.Errorf("the client is given %v", c.messages)
	}
}

// What the receiver has no room for stays with the leader, and is asked for when
// there is room.
func TestReceiverIsFull(t *testing.T) {
	h, c := newHost(t), &client{full: true}
	s := h.mustStream(c)
	x := c.consumer(5)
	s.route.Lead("n2", 1)
	h.requested = nil
	s.Receive(answerOf(5, 0))
	s.Receive(messages(5, 1, 2))
	if last, asked, behind := x.Position(); last != 0 || asked || !behind || len(h.requested) != 0 || len(c.messages) != 0 {
		t.Errorf("last %d, asked %v, behind %v, questions %v, messages %v", last, asked, behind, h.requested, c.messages)
	}
	c.full = false
	s.CatchUp()
	if want := []Resync{{Session: s.id, Consumer: 5}}; !slices.Equal(h.requested, want) {
		t.Errorf("asks %v, want %v", h.requested, want)
	}
}

// A question to the leader that is not answered is asked again.
func TestAskAgain(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	c.consumer(5)
	s.Receive(messages(5, 2))
	now := h.Now()
	if asks := s.overdue(now + stuckAfter); len(asks) != 0 {
		t.Errorf("asked too early: %v", asks)
	}
	if asks := s.overdue(now + stuckAfter + 1); len(asks) != 1 || asks[0] != (Resync{Session: s.id, Consumer: 5}) {
		t.Errorf("asks %v", asks)
	}
	if asks := s.overdue(now + stuckAfter + 2); len(asks) != 0 {
		t.Errorf("asked twice: %v", asks)
	}
}

// A session without a receiver is handed nothing, and hears no notices.
func TestNoReceiver(t *testing.T) {
	h, c := newHost(t), &client{}
	r := h.table.Route(h.MustQueue("q"))
	c.stream = New(c, nil, fsm.SessionID{Boot: 9}, r)
	r.Attach(c.stream)
	c.stream.Receive(messages(5, 1))
	c.stream.Notice(Notice{Kind: peerpb.Notice_CANCELLED, Consumer: 5})
	k := c.request(&logpb.Command{Kind: logpb.Command_TOUCH})
	r.Lead("n2", 1)
	grouptest.Eventually(t, func() bool { return !r.isRunning() })
	if len(c.messages)+len(h.requested)+len(c.notices) != 0 || isDone(k) || c.stream.Next() != 2 {
		t.Errorf("messages %v, questions %v, %d commands", c.messages, h.requested, c.stream.Next()-1)
	}
}

// What comes for a session that uses no such queue, here or anywhere, is for nobody.
func TestNobodysStream(t *testing.T) {
	h := newHost(t)
	used := h.table.Route(h.MustQueue("q"))
	for _, id := range []fsm.QueueID{used.Queue(), used.Queue() + 1} {
		s := h.table.Stream(id, fsm.SessionID{Node: 1, Boot: 1, Num: 1})
		if s != nil {
			t.Errorf("queue %d has a stream", id)
		}
		s.Receive(messages(1, 1))
		s.Answer("n1", []group.Outcome{grouptest.OK(1, 1)})
		s.Notice(Notice{})
	}
}
