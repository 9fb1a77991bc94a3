package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

var answers = bufio.NewReader(os.Stdin)

// ask has something done to the cluster.
func ask(what string) {
	fmt.Println("do", what)
	need(answers.ReadString('\n'))
}

// names are the ids of n messages from a number on.
func names(prefix string, from, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s%02d", prefix, from+i))
	}
	return ids
}

// source is a receiver, or one of a session.
type source interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
	CompleteMessage(context.Context, *azservicebus.ReceivedMessage, *azservicebus.CompleteMessageOptions) error
}

// rest receives and completes messages with these ids in whatever order, and then nothing. counts are how often those were
// delivered that were delivered more than once.
func (r *run) rest(from source, counts map[string]uint32, ids ...string) {
	var got []string
	for len(got) < len(ids) {
		for _, m := range need(from.ReceiveMessages(r.ctx, len(ids)-len(got), nil)) {
			got = append(got, m.MessageID)
			check(m.DeliveryCount == max(counts[m.MessageID], 1), m.MessageID, " was delivered ", m.DeliveryCount)
			need(0, from.CompleteMessage(r.ctx, m, nil))
		}
	}
	slices.Sort(got)
	slices.Sort(ids)
	check(slices.Equal(got, ids), got, " not ", ids)
	short, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	more, err := from.ReceiveMessages(short, 1, nil)
	check(len(more) == 0 && errors.Is(err, context.DeadlineExceeded), more, err)
}

// killedSettles settles messages in all ways while the leader of their queue is gone, and more by their tokens once the node was
// gone to which the program is connected.
func killedSettles(r *run) {
	q, s, from := r.queue("killed-settles")
	dead := need(r.client.NewReceiverForQueue(q, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}))
	r.send(s, names("m", 0, 16)...)
	got := r.receive(from, names("m", 0, 12)...)
	ask("kill " + q)
	var deferred []int64
	for i, m := range got[:8] {
		switch i % 4 {
		case 0:
			need(0, from.CompleteMessage(r.ctx, m, nil))
		case 1:
			need(0, from.AbandonMessage(r.ctx, m, nil))
		case 2:
			deferred = append(deferred, *m.SequenceNumber)
			need(0, from.DeferMessage(r.ctx, m, nil))
		case 3:
			need(0, from.DeadLetterMessage(r.ctx, m, nil))
		}
	}
	r.send(s, names("m", 16, 4)...)
	ask("restart")
	ask("bounce")
	for _, m := range got[8:] { // the SDK settles by the token what has no link
		m := &azservicebus.ReceivedMessage{LockToken: m.LockToken}
		need(0, from.CompleteMessage(r.ctx, m, nil))
		fails(from.CompleteMessage(r.ctx, m, nil), azservicebus.CodeLockLost)
	}
	r.rest(from, map[string]uint32{"m01": 2, "m05": 2}, append(names("m", 12, 8), "m01", "m05")...)
	r.rest(dead, nil, "m03", "m07")
	all := need(from.ReceiveDeferredMessages(r.ctx, deferred, nil))
	check(len(all) == 2 && all[0].MessageID == "m02" && all[1].MessageID == "m06", all)
	for _, m := range all {
		need(0, from.CompleteMessage(r.ctx, m, nil))
	}
	first := int64(0)
	check(len(need(from.PeekMessages(r.ctx, 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &first}))) == 0, "more is there")
}

// killedSessions holds a session while the leader of its queue is gone, and takes it again once the node was gone to which the
// program is connected.
func killedSessions(r *run) {
	q := r.prefix + "killed-sessions"
	s := need(r.client.NewSender(q, nil))
	send := func(session string, ids ...string) {
		for _, id := range ids {
			m := message(id)
			m.SessionID = &session
			need(0, s.SendMessage(r.ctx, m, nil))
		}
	}
	send("x", names("x", 0, 6)...)
	send("y", names("y", 0, 2)...)
	x := need(r.client.AcceptSessionForQueue(r.ctx, q, "x", nil))
	next := func(id string) *azservicebus.ReceivedMessage {
		m := need(x.ReceiveMessages(r.ctx, 1, nil))[0]
		check(m.MessageID == id && m.DeliveryCount == 1, m.MessageID, m.DeliveryCount)
		return m
	}
	m := next("x00")
	ask("kill " + q)
	need(0, x.CompleteMessage(r.ctx, m, nil))
	need(0, x.SetSessionState(r.ctx, []byte("one"), nil))
	need(0, x.CompleteMessage(r.ctx, next("x01"), nil))
	need(0, x.RenewSessionLock(r.ctx, nil))
	_, err := r.client.AcceptSessionForQueue(r.ctx, q, "x", nil)
	check(err != nil, "a session at two receivers")
	send("x", names("x", 6, 2)...)
	ask("restart")
	check(string(need(x.GetSessionState(r.ctx, nil))) == "one", "the state")
	ask("bounce")
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	_ = x.Close(ctx) // its connection is gone
	cancel()
	for { // until nobody holds it
		if x, err = r.client.AcceptSessionForQueue(r.ctx, q, "x", nil); err == nil {
			break
		}
		check(r.ctx.Err() == nil, err)
	}
	check(string(need(x.GetSessionState(r.ctx, nil))) == "one", "the state")
	r.rest(x, nil, names("x", 2, 6)...)
	need(0, x.Close(r.ctx))
	y := need(r.client.AcceptNextSessionForQueue(r.ctx, q, nil))
	check(y.SessionID() == "y", y.SessionID())
	r.rest(y, nil, names("y", 0, 2)...)
	need(0, y.Close(r.ctx))
}

// killedSchedules has messages scheduled that become due after the leader of their queue is gone, and then others after the node
// was gone to which the program is connected. Some are cancelled.
func killedSchedules(r *run) {
	q, s, from := r.queue("killed-schedules")
	round := func(prefix string, disturb func()) {
		schedule := func(at time.Time, ids ...string) []int64 {
			var all []*azservicebus.Message
			for _, id := range ids {
				all = append(all, message(id))
			}
			return need(s.ScheduleMessages(r.ctx, all, at, nil))
		}
		soon := time.Now().Add(3 * time.Second)
		schedule(soon, names(prefix, 0, 8)...)
		numbers := schedule(time.Now().Add(time.Hour), names(prefix, 8, 4)...)
		disturb()
		need(0, s.CancelScheduledMessages(r.ctx, numbers, nil))
		fails(s.CancelScheduledMessages(r.ctx, numbers[:1], nil), azservicebus.CodeNotFound)
		var got []*azservicebus.ReceivedMessage
		for len(got) == 0 { // there are none, and no error, when the link was lost
			got = need(from.ReceiveMessages(r.ctx, 1, nil))
		}
		first := got[0]
		check(!time.Now().Before(soon), "early")
		need(0, from.CompleteMessage(r.ctx, first, nil))
		left := slices.DeleteFunc(names(prefix, 0, 8), func(id string) bool { return id == first.MessageID })
		check(len(left) == 7, first.MessageID)
		r.rest(from, nil, left...)
	}
	round("a", func() { ask("kill " + q) })
	ask("restart")
	round("b", func() { ask("bounce") })
}
