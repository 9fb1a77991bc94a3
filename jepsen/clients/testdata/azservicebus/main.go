// Command azservicebus takes the unmodified SDK of Azure Service Bus through the steps that it is given, at queues of which
// it is given the prefix. It says "ok" once all are done. A line "do WHAT" asks for something to be done to the cluster: it
// reads a line once that is done.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
)

// A program is called with a connection string, a prefix of queues, and the names of steps.
func main() {
	steps := map[string]func(*run){
		"sends": sends, "settles": settles, "dead-letters": deadLetters, "batches": batches, "deletes": deletes, "refusals": refusals,
		"peeks": peeks, "renews": renews, "defers": defers, "schedules": schedules, "later": later, "sessions": sessions, "states": states,
		"killed-settles": killedSettles, "killed-sessions": killedSessions, "killed-schedules": killedSchedules,
		"queues": queues, "topics": topics, "subscriptions": subscriptions, "rules": rules, "strangers": strangers,
		"publishes": publishes, "filters": filters, "lives": lives, "forwards": forwards, "duplicates": duplicates, "statuses": statuses,
		"connects": connects, "killed-publishes": killedPublishes, "transferred": transferred, "emulated": emulated, "emulated-again": emulatedAgain,
	}
	for _, name := range os.Args[3:] {
		r := &run{prefix: os.Args[2]}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		r.ctx = ctx
		r.client = need(azservicebus.NewClientFromConnectionString(os.Args[1], nil))
		steps[name](r)
		need(0, r.client.Close(ctx))
		cancel()
		fmt.Println("done", name)
	}
	fmt.Println("ok")
}

// run is one step.
type run struct {
	ctx    context.Context
	client *azservicebus.Client
	prefix string
}

func need[T any](v T, err error) T {
	check(err == nil, err)
	return v
}

func check(ok bool, about ...any) {
	if !ok {
		_, _, line, _ := runtime.Caller(2)
		_, _, own, _ := runtime.Caller(1)
		fmt.Println("line", own, line, fmt.Sprint(about...))
		os.Exit(1)
	}
}

// queue returns a sender and a receiver of a queue.
func (r *run) queue(name string) (string, *azservicebus.Sender, *azservicebus.Receiver) {
	q := r.prefix + name
	return q, need(r.client.NewSender(q, nil)), need(r.client.NewReceiverForQueue(q, nil))
}

// message is one with an id and a body.
func message(id string) *azservicebus.Message {
	return &azservicebus.Message{MessageID: &id, Body: []byte("body of " + id), ApplicationProperties: map[string]any{"n": int64(7), "text": "t"}}
}

func (r *run) send(s *azservicebus.Sender, ids ...string) {
	for _, id := range ids {
		need(0, s.SendMessage(r.ctx, message(id), nil))
	}
}

// receive receives messages with these ids, in order.
func (r *run) receive(from *azservicebus.Receiver, ids ...string) (all []*azservicebus.ReceivedMessage) {
	for len(all) < len(ids) {
		all = append(all, need(from.ReceiveMessages(r.ctx, len(ids)-len(all), nil))...)
	}
	for i, m := range all {
		check(m.MessageID == ids[i] && string(m.Body) == "body of "+ids[i], m.MessageID, " not ", ids[i])
	}
	return all
}

// none wants nothing to receive.
func (r *run) none(from *azservicebus.Receiver) {
	short, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	got, err := from.ReceiveMessages(short, 1, nil)
	check(len(got) == 0 && errors.Is(err, context.DeadlineExceeded), err)
}

// fails wants an error of a code.
func fails(err error, code azservicebus.Code) {
	var e *azservicebus.Error
	check(errors.As(err, &e) && e.Code == code, err, " not ", code)
}

func sends(r *run) {
	_, s, from := r.queue("sends")
	ttl, subject, session, reply := time.Hour, "subject", "session", "reply"
	m := message("a")
	m.TimeToLive, m.Subject, m.SessionID, m.ReplyTo = &ttl, &subject, &session, &reply
	before := time.Now().Add(-time.Second)
	need(0, s.SendMessage(r.ctx, m, nil))
	got := r.receive(from, "a")[0]
	check(*got.Subject == subject && *got.SessionID == session && *got.ReplyTo == reply && got.ApplicationProperties["n"] == int64(7), got)
	check(got.DeliveryCount == 1 && *got.TimeToLive == ttl && got.EnqueuedTime.After(before) && got.State == azservicebus.MessageStateActive, got)
	check(got.ExpiresAt.Equal(got.EnqueuedTime.Add(ttl)) && got.LockedUntil.After(time.Now().Add(50*time.Second)), got.ExpiresAt, got.LockedUntil)
	inside, _ := got.RawAMQPMessage.DeliveryAnnotations["x-opt-lock-token"].(amqp.UUID)
	check(got.LockToken != [16]byte{} && got.LockToken == inside, got.LockToken)
	need(0, from.CompleteMessage(r.ctx, got, nil))
	first := *got.SequenceNumber
	r.send(s, "b", "c")
	for i, m := range r.receive(from, "b", "c") {
		check(*m.SequenceNumber == first+1+int64(i) && *m.TimeToLive == 0, *m.SequenceNumber, m.TimeToLive)
		need(0, from.CompleteMessage(r.ctx, m, nil))
	}
	need(0, s.SendMessage(r.ctx, &azservicebus.Message{Body: []byte("no id")}, nil))
	all := need(from.ReceiveMessages(r.ctx, 1, nil))
	check(len(all[0].MessageID) == 32, all[0].MessageID)
	annotated := &azservicebus.AMQPAnnotatedMessage{
		MessageAnnotations: map[any]any{"plain": "a", "x-opt-partition-key": nil, "x-opt-sequence-number": nil},
		Body:               azservicebus.AMQPAnnotatedMessageBody{Value: "text"},
	}
	need(0, s.SendAMQPAnnotatedMessage(r.ctx, annotated, nil))
	more := need(from.ReceiveMessages(r.ctx, 1, nil))
	check(more[0].RawAMQPMessage.MessageAnnotations["plain"] == "a" && *more[0].SequenceNumber > 0, more[0].RawAMQPMessage.MessageAnnotations)
	need(0, from.CompleteMessage(r.ctx, more[0], nil))
	need(0, from.CompleteMessage(r.ctx, all[0], nil))
	r.none(from)
}

func settles(r *run) {
	_, s, from := r.queue("settles")
	r.send(s, "a", "b")
	got := r.receive(from, "a", "b")
	need(0, from.CompleteMessage(r.ctx, got[0], nil))
	for count := uint32(2); count < 4; count++ {
		need(0, from.AbandonMessage(r.ctx, got[1], &azservicebus.AbandonMessageOptions{PropertiesToModify: map[string]any{fmt.Sprint("p", count): "v"}}))
		got[1] = r.receive(from, "b")[0]
		check(got[1].DeliveryCount == count && got[1].ApplicationProperties["p2"] == "v" && got[1].ApplicationProperties["text"] == "t", got[1])
	}
	check(got[1].ApplicationProperties["p3"] == "v", "changes add up")
	// The link ends, and with it nothing: the lock is settled by its token from another.
	need(0, from.Close(r.ctx))
	other := need(r.client.NewReceiverForQueue(r.prefix+"settles", nil))
	r.none(other)
	need(0, other.CompleteMessage(r.ctx, got[1], nil))
	fails(other.CompleteMessage(r.ctx, got[1], nil), azservicebus.CodeLockLost)
}

func deadLetters(r *run) {
	q, s, from := r.queue("dead-letters")
	dead := need(r.client.NewReceiverForQueue(q, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}))
	reason, description := "why", "because"
	r.send(s, "a", "b")
	got := r.receive(from, "a", "b")
	need(0, from.AbandonMessage(r.ctx, got[0], nil))
	got[0] = r.receive(from, "a")[0]
	need(0, from.DeadLetterMessage(r.ctx, got[0], &azservicebus.DeadLetterOptions{Reason: &reason, ErrorDescription: &description, PropertiesToModify: map[string]any{"p": int64(1)}}))
	need(0, from.DeadLetterMessage(r.ctx, got[1], nil))
	letters := r.receive(dead, "a", "b")
	check(*letters[0].DeadLetterReason == reason && *letters[0].DeadLetterErrorDescription == description && letters[0].ApplicationProperties["p"] == int64(1), letters[0])
	check(letters[0].DeliveryCount == 2 && letters[1].DeliveryCount == 1, letters[0].DeliveryCount, letters[1].DeliveryCount)
	need(0, dead.AbandonMessage(r.ctx, letters[0], nil))
	letters[0] = r.receive(dead, "a")[0]
	check(letters[0].DeliveryCount == 2, "counted among dead letters")
	var refused *amqp.Error
	err := dead.DeadLetterMessage(r.ctx, letters[1], nil)
	check(errors.As(err, &refused) && refused.Condition == amqp.ErrCondNotAllowed, "a dead letter of a dead letter: ", err)
	for _, letter := range letters {
		need(0, dead.CompleteMessage(r.ctx, letter, nil))
	}
	// The tenth delivery is the last, and an expired message dies if its queue says so.
	r.send(s, "c")
	for count := uint32(1); count <= 10; count++ {
		m := r.receive(from, "c")[0]
		check(m.DeliveryCount == count, m.DeliveryCount)
		need(0, from.AbandonMessage(r.ctx, m, nil))
	}
	last := r.receive(dead, "c")[0]
	check(*last.DeadLetterReason == "MaxDeliveryCountExceeded" && *last.DeadLetterErrorDescription != "", *last.DeadLetterReason)
	need(0, dead.CompleteMessage(r.ctx, last, nil))
	r.none(dead)
}

func batches(r *run) {
	_, s, from := r.queue("batches")
	b := need(s.NewMessageBatch(r.ctx, nil))
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprint("m", i))
		need(0, b.AddMessage(message(ids[i]), nil))
	}
	need(0, s.SendMessageBatch(r.ctx, b, nil))
	first := int64(0)
	for i, m := range r.receive(from, ids...) {
		if i == 0 {
			first = *m.SequenceNumber
		}
		check(*m.SequenceNumber == first+int64(i), *m.SequenceNumber)
		need(0, from.CompleteMessage(r.ctx, m, nil))
	}
	one := need(s.NewMessageBatch(r.ctx, nil))
	need(0, one.AddMessage(message("one"), nil))
	need(0, s.SendMessageBatch(r.ctx, one, nil))
	need(0, from.CompleteMessage(r.ctx, r.receive(from, "one")[0], nil))
}

func deletes(r *run) {
	q, s, from := r.queue("deletes")
	r.send(s, "a", "b")
	gone := need(r.client.NewReceiverForQueue(q, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}))
	r.receive(gone, "a", "b")
	r.none(gone)
	need(0, gone.Close(r.ctx))
	r.none(from)
}

func refusals(r *run) {
	nowhere := need(r.client.NewSender(r.prefix+"nowhere", nil))
	err := nowhere.SendMessage(r.ctx, message("a"), nil)
	fails(err, azservicebus.CodeNotFound)
	check(strings.Contains(err.Error(), "could not be found"), err)
	_, s, _ := r.queue("refusals")
	m := message("large")
	m.Body = make([]byte, 2<<20)
	check(errors.Is(s.SendMessage(r.ctx, m, nil), azservicebus.ErrMessageTooLarge), "a message that is too large")
	r.send(s, "small")
	wrong := need(azservicebus.NewClientFromConnectionString(strings.Replace(os.Args[1], "SharedAccessKey=", "SharedAccessKey=x", 1), nil))
	fails(need(wrong.NewSender(r.prefix+"refusals", nil)).SendMessage(r.ctx, message("a"), nil), azservicebus.CodeUnauthorizedAccess)
	need(0, wrong.Close(r.ctx))
}

func peeks(r *run) {
	_, s, from := r.queue("peeks")
	r.send(s, "a", "b", "c")
	all := need(from.PeekMessages(r.ctx, 2, nil))
	check(len(all) == 2 && all[0].MessageID == "a" && all[1].MessageID == "b" && all[0].LockedUntil == nil, all)
	all = need(from.PeekMessages(r.ctx, 5, nil))
	check(len(all) == 1 && all[0].MessageID == "c", all)
	check(len(need(from.PeekMessages(r.ctx, 1, nil))) == 0, "more")
	from0 := int64(0)
	check(len(need(from.PeekMessages(r.ctx, 10, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from0}))) == 3, "again from the start")
}

func renews(r *run) {
	_, s, from := r.queue("renews")
	r.send(s, "a")
	m := r.receive(from, "a")[0]
	until := *m.LockedUntil
	time.Sleep(20 * time.Millisecond)
	need(0, from.RenewMessageLock(r.ctx, m, nil))
	check(m.LockedUntil.After(until), m.LockedUntil, until)
	need(0, from.CompleteMessage(r.ctx, m, nil))
	fails(from.RenewMessageLock(r.ctx, m, nil), azservicebus.CodeLockLost)
}

func defers(r *run) {
	_, s, from := r.queue("defers")
	r.send(s, "a", "b", "c", "d")
	var numbers []int64
	for _, m := range r.receive(from, "a", "b", "c", "d") {
		numbers = append(numbers, *m.SequenceNumber)
		need(0, from.DeferMessage(r.ctx, m, &azservicebus.DeferMessageOptions{PropertiesToModify: map[string]any{"deferred": true}}))
	}
	r.none(from)
	_, err := from.ReceiveDeferredMessages(r.ctx, []int64{numbers[0], 1 << 40}, nil)
	fails(err, azservicebus.CodeNotFound)
	all := need(from.ReceiveDeferredMessages(r.ctx, numbers, nil))
	check(len(all) == 4 && all[0].MessageID == "a" && all[0].State == azservicebus.MessageStateDeferred && all[0].ApplicationProperties["deferred"] == true, all)
	shown := need(from.PeekMessages(r.ctx, 1, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &numbers[0]}))
	check(len(shown) == 1 && shown[0].State == azservicebus.MessageStateDeferred, "it is deferred while it is held")
	need(0, from.CompleteMessage(r.ctx, all[0], nil))
	need(0, from.AbandonMessage(r.ctx, all[1], nil))
	need(0, from.DeferMessage(r.ctx, all[2], nil))
	need(0, from.DeadLetterMessage(r.ctx, all[3], nil))
	r.none(from)
	all = need(from.ReceiveDeferredMessages(r.ctx, numbers[1:3], nil))
	check(len(all) == 2 && all[0].DeliveryCount == 2 && all[1].DeliveryCount == 1, all[0].DeliveryCount, all[1].DeliveryCount)
	for _, m := range all {
		need(0, from.CompleteMessage(r.ctx, m, nil))
		fails(from.CompleteMessage(r.ctx, m, nil), azservicebus.CodeLockLost)
	}
}

func schedules(r *run) {
	_, s, from := r.queue("schedules")
	soon := time.Now().Add(2 * time.Second)
	numbers := need(s.ScheduleMessages(r.ctx, []*azservicebus.Message{message("a"), message("b")}, soon, nil))
	check(len(numbers) == 2 && numbers[1] == numbers[0]+1, numbers)
	shown := need(from.PeekMessages(r.ctx, 5, nil))
	check(len(shown) == 2 && shown[0].State == azservicebus.MessageStateScheduled, shown)
	need(0, s.CancelScheduledMessages(r.ctx, numbers[:1], nil))
	fails(s.CancelScheduledMessages(r.ctx, numbers, nil), azservicebus.CodeNotFound)
	got := r.receive(from, "b")[0]
	check(!time.Now().Before(soon) && !got.EnqueuedTime.Before(soon.Truncate(time.Millisecond)) && *got.SequenceNumber != numbers[1], got.EnqueuedTime)
	need(0, from.CompleteMessage(r.ctx, got, nil))
}

// later schedules with an annotation.
func later(r *run) {
	_, s, from := r.queue("later")
	soon := time.Now().Add(time.Second)
	m := message("a")
	m.ScheduledEnqueueTime = &soon
	need(0, s.SendMessage(r.ctx, m, nil))
	got := r.receive(from, "a")[0]
	check(!time.Now().Before(soon) && got.ScheduledEnqueueTime != nil, time.Now())
	need(0, from.CompleteMessage(r.ctx, got, nil))
}

func sessions(r *run) {
	q := r.prefix + "sessions"
	s := need(r.client.NewSender(q, nil))
	send := func(session string, ids ...string) {
		for _, id := range ids {
			m := message(id)
			m.SessionID = &session
			need(0, s.SendMessage(r.ctx, m, nil))
		}
	}
	check(s.SendMessage(r.ctx, message("none"), nil) != nil, "a message without a session")
	send("x", "1", "2")
	send("y", "3")
	x := need(r.client.AcceptSessionForQueue(r.ctx, q, "x", nil))
	check(x.SessionID() == "x" && x.LockedUntil().After(time.Now().Add(50*time.Second)), x.LockedUntil())
	_, err := r.client.AcceptSessionForQueue(r.ctx, q, "x", nil)
	check(err != nil && strings.Contains(err.Error(), "session-cannot-be-locked"), err)
	next := need(r.client.AcceptNextSessionForQueue(r.ctx, q, nil))
	check(next.SessionID() == "y", next.SessionID())
	for _, id := range []string{"1", "2"} {
		m := need(x.ReceiveMessages(r.ctx, 1, nil))[0]
		check(m.MessageID == id && *m.SessionID == "x", m.MessageID)
		need(0, x.CompleteMessage(r.ctx, m, nil))
	}
	until := x.LockedUntil()
	time.Sleep(20 * time.Millisecond)
	need(0, x.RenewSessionLock(r.ctx, nil))
	check(x.LockedUntil().After(until), x.LockedUntil())
	need(0, x.Close(r.ctx))
	// One that has no message is locked, too, and gets what comes later.
	empty := need(r.client.AcceptSessionForQueue(r.ctx, q, "z", nil))
	send("z", "4")
	m := need(empty.ReceiveMessages(r.ctx, 1, nil))[0]
	check(m.MessageID == "4", m.MessageID)
	need(0, empty.CompleteMessage(r.ctx, m, nil))
	need(0, empty.Close(r.ctx))
	blank := need(r.client.AcceptSessionForQueue(r.ctx, q, "", nil))
	send("", "5")
	m = need(blank.ReceiveMessages(r.ctx, 1, nil))[0]
	check(m.MessageID == "5" && *m.SessionID == "", m.MessageID)
	need(0, blank.CompleteMessage(r.ctx, m, nil))
	need(0, blank.Close(r.ctx))
	m = need(next.ReceiveMessages(r.ctx, 1, nil))[0]
	need(0, next.CompleteMessage(r.ctx, m, nil))
	need(0, next.Close(r.ctx))
	short, cancel := context.WithTimeout(r.ctx, 2*time.Second)
	defer cancel()
	_, err = r.client.AcceptNextSessionForQueue(short, q, nil)
	check(err != nil, "a session without messages")
}

func states(r *run) {
	q := r.prefix + "states-sessions"
	x := need(r.client.AcceptSessionForQueue(r.ctx, q, "x", nil))
	check(need(x.GetSessionState(r.ctx, nil)) == nil, "a state")
	need(0, x.SetSessionState(r.ctx, []byte("half done"), nil))
	check(string(need(x.GetSessionState(r.ctx, nil))) == "half done", "the state")
	need(0, x.Close(r.ctx))
	x = need(r.client.AcceptSessionForQueue(r.ctx, q, "x", nil))
	check(string(need(x.GetSessionState(r.ctx, nil))) == "half done", "the state")
	need(0, x.SetSessionState(r.ctx, nil, nil))
	check(need(x.GetSessionState(r.ctx, nil)) == nil, "a state")
	need(0, x.Close(r.ctx))
}
