package clients

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ten "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/frames"
)

// The lock of the queues of transactions, and what a transaction of these tests sends besides settling a message.
const (
	shortLock = "<LockDuration>PT5S</LockDuration>"
	given     = "given"
)

var sent = []string{"a", "b", "c"}

// TestTransactions sends the frames of transactions to three nodes, as the SDKs of .NET and Java do, which alone have them: what is
// done in one is there as a whole or not at all, whoever dies meanwhile.
func TestTransactions(t *testing.T) {
	b := mustStartBus(t, limit)
	t.Run("calm", func(t *testing.T) {
		for name, f := range map[string]func(*bus, *testing.T, string){
			"commit": (*bus).commits, "rollback": (*bus).rollsBack, "lost": (*bus).losesLock, "via": (*bus).sendsVia,
			"refused": (*bus).isRefused, "second": (*bus).touchesSecond, "bounds": (*bus).reachesBounds,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(b, t, "transaction-"+name)
			})
		}
	})
	t.Run("before", func(t *testing.T) { b.killsLeader(t, "transaction-before", true) })
	t.Run("meanwhile", func(t *testing.T) { b.killsLeader(t, "transaction-meanwhile", false) })
	t.Run("own node", func(t *testing.T) { b.losesNode(t, "transaction-own") })
	t.Run("asked", func(t *testing.T) { b.losesAnswer(t, "transaction-asked", false) })
	t.Run("committed", func(t *testing.T) { b.losesAnswer(t, "transaction-committed", true) })
}

// buyer is a client of transactions: it settles the message of a queue, and sends others there.
type buyer struct {
	*frames.Conn
	t     *testing.T
	queue string
	next  int // delivery-id
	at    *cluster.Node
}

// Channels and handles of a buyer.
const (
	ofLinks, ofController = 0, 1
	sender, receiver      = 0, 1
	viaSender             = 2
	viaOther, viaTopic    = 3, 4
)

// mustBuy creates a queue that has a message, and connects to a node that does not lead it.
func (b *bus) mustBuy(t *testing.T, queue string) *buyer {
	t.Helper()
	b.mustCreate(t, queue, shortLock)
	leader, err := b.Leader(b.ctx, queue)
	if err != nil {
		t.Fatal(err)
	}
	c := &buyer{t: t, queue: queue, at: b.other(leader)}
	c.Conn, err = frames.Login(b.ctx, c.at.Bus, busRule, busKey, "buyer")
	c.must(err)
	t.Cleanup(func() { c.Conn.Close() })
	for _, channel := range []uint16{ofLinks, ofController} {
		c.must(c.Send(channel, "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": 1000, "outgoing-window": 1000}))
		c.await("begin")
	}
	c.attach(ofController, sender, frames.Composite{Name: "coordinator"}, nil)
	c.attach(ofLinks, sender, target(queue), nil)
	c.want(c.transfer(ofLinks, sender, nil, message(given)), "accepted")
	return c
}

func target(address string) frames.Composite {
	return frames.Composite{Name: "target", Fields: frames.Fields{"address": address}}
}

func message(text string) []byte {
	b := frames.Append(nil, frames.Composite{Name: "properties", Fields: frames.Fields{"message-id": text}})
	b = frames.Append(b, frames.Described{Descriptor: uint64(0x74), Value: frames.Map{"of", text}})
	return frames.Append(b, frames.Described{Descriptor: uint64(0x75), Value: []byte(text)})
}

// control is a message for the controller.
func control(name string, f frames.Fields) []byte {
	return frames.Append(nil, frames.Described{Descriptor: uint64(0x77), Value: frames.Composite{Name: name, Fields: f}})
}

func (c *buyer) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *buyer) await(name string) frames.Frame {
	c.t.Helper()
	f, err := c.Await(name)
	c.must(err)
	return f
}

// attach opens a link on which the buyer sends.
func (c *buyer) attach(channel uint16, handle int, to frames.Composite, properties frames.Map) {
	c.t.Helper()
	c.must(c.Send(channel, "attach", frames.Fields{
		"name": fmt.Sprint("to ", handle), "handle": handle, "role": false, "initial-delivery-count": 0, "source": frames.Composite{Name: "source"}, "target": to, "properties": properties,
	}))
	c.await("attach")
}

// receive receives a message by peek-lock.
func (c *buyer) receive() (id int) {
	c.t.Helper()
	c.must(c.Send(ofLinks, "attach", frames.Fields{
		"name": "from", "handle": receiver, "role": true, "rcv-settle-mode": 1, "source": frames.Composite{Name: "source", Fields: frames.Fields{"address": c.queue}}, "target": frames.Composite{Name: "target"},
	}))
	c.await("attach")
	c.must(c.Send(ofLinks, "flow", frames.Fields{
		"next-incoming-id": 0, "incoming-window": 1000, "next-outgoing-id": c.next, "outgoing-window": 1000, "handle": receiver, "delivery-count": 0, "link-credit": 1,
	}))
	return c.await("transfer").Fields.Int("delivery-id")
}

// post sends a message, in a transaction unless its id is nil.
func (c *buyer) post(channel uint16, handle int, txn, payload []byte) {
	c.t.Helper()
	f := frames.Fields{"handle": handle, "delivery-id": c.next, "delivery-tag": fmt.Sprint(c.next)}
	if c.next++; txn != nil {
		f["state"] = frames.Composite{Name: "transactional-state", Fields: frames.Fields{"txn-id": txn}}
	}
	c.must(c.Send(channel, "transfer", f, payload...))
}

// transfer sends a message, and returns the answer.
func (c *buyer) transfer(channel uint16, handle int, txn, payload []byte) frames.Composite {
	c.t.Helper()
	c.post(channel, handle, txn, payload)
	return c.answer(true)
}

// answer returns what is said of a delivery of one direction.
func (c *buyer) answer(sent bool) frames.Composite {
	c.t.Helper()
	f := c.await("disposition")
	if f.Fields["role"] != sent {
		c.t.Fatalf("answered with %v", f)
	}
	state, _ := f.Fields["state"].(frames.Composite)
	return state
}

// complete settles a delivery, in a transaction unless its id is nil.
func (c *buyer) complete(id int, txn []byte) frames.Composite {
	c.t.Helper()
	state := frames.Composite{Name: "accepted"}
	if txn != nil {
		state = frames.Composite{Name: "transactional-state", Fields: frames.Fields{"txn-id": txn, "outcome": state}}
	}
	c.must(c.Send(ofLinks, "disposition", frames.Fields{"role": true, "first": id, "settled": false, "state": state}))
	return c.answer(false)
}

// declare begins a transaction.
func (c *buyer) declare() []byte {
	c.t.Helper()
	return c.declareBy(ofController, sender)
}

// declareBy is declare by the link of a coordinator.
func (c *buyer) declareBy(channel uint16, handle int) []byte {
	c.t.Helper()
	state := c.transfer(channel, handle, nil, control("declare", nil))
	txn, _ := state.Fields["txn-id"].([]byte)
	if state.Name != "declared" || len(txn) == 0 {
		c.t.Fatalf("declared is %v", state)
	}
	return txn
}

// ask asks for the end of a transaction.
func (c *buyer) ask(txn []byte, fail bool) {
	c.t.Helper()
	c.post(ofController, sender, nil, control("discharge", frames.Fields{"txn-id": txn, "fail": fail}))
}

func (c *buyer) discharge(txn []byte, fail bool) frames.Composite {
	c.t.Helper()
	c.ask(txn, fail)
	return c.answer(true)
}

// want wants an outcome, provisional or not, or the condition of a rejection.
func (c *buyer) want(state frames.Composite, want string) {
	c.t.Helper()
	if have := outcomeName(state); have != want {
		c.t.Fatalf("the outcome is %q, not %q", have, want)
	}
}

// outcomeName is the name of an outcome, with that of the one in a transaction, and the condition of an error.
func outcomeName(state frames.Composite) string {
	name := state.Name
	if outcome, ok := state.Fields["outcome"].(frames.Composite); ok {
		name += " " + outcome.Name
	}
	if e := state.Fields.Of("error"); e != nil {
		name += fmt.Sprint(" ", e["condition"])
	}
	return name
}

const (
	provisional = "transactional-state accepted"
	rolledBack  = "rejected amqp:transaction:rollback"
)

// buy receives the message, settles it in a transaction, and sends others in it.
func (c *buyer) buy(handle int) (id int, txn []byte) {
	c.t.Helper()
	id, txn = c.receive(), c.declare()
	for _, text := range sent {
		c.want(c.transfer(ofLinks, handle, txn, message(text)), provisional)
	}
	c.want(c.complete(id, txn), provisional)
	return id, txn
}

// holds is how many messages a queue has.
func (b *bus) holds(t *testing.T, queue string) int {
	t.Helper()
	var n int
	if err := await.Until(b.ctx, 50*time.Millisecond, "messages of "+queue, func() (bool, error) {
		q, err := b.Nodes[2].Queue(b.ctx, queue)
		n = int(q.Messages)
		return err == nil, err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// drain receives and removes the messages of a queue until there are no more, and returns them in order.
func (b *bus) drain(t *testing.T, queue string) (all []string) {
	t.Helper()
	conn, err := ten.Dial(b.ctx, "amqp://"+b.Nodes[0].Bus, &ten.ConnOptions{SASLType: ten.SASLTypePlain(busRule, busKey)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := conn.NewSession(b.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	from, err := s.NewReceiver(b.ctx, queue, &ten.ReceiverOptions{Credit: 10, RequestedSenderSettleMode: ten.SenderSettleModeSettled.Ptr(), SettlementMode: ten.ReceiverSettleModeFirst.Ptr()})
	if err != nil {
		t.Fatal(err)
	}
	for last := false; ; { // a count may be that of a moment ago
		waiting, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
		m, err := from.Receive(waiting, nil)
		cancel()
		switch {
		case err == nil:
			all, last = append(all, string(m.GetData())), false
		case !errors.Is(err, context.DeadlineExceeded) || b.ctx.Err() != nil:
			t.Fatalf("%s: %v after %q", queue, err, all)
		case last:
			slices.Sort(all)
			return all
		default:
			last = b.holds(t, queue) == 0
		}
	}
}

// mustHave wants these messages in a queue, each once.
func (b *bus) mustHave(t *testing.T, queue string, want ...string) {
	t.Helper()
	if have := b.drain(t, queue); !slices.Equal(have, want) {
		t.Errorf("%s has %q, not %q", queue, have, want)
	}
}

// commits: nothing is there before the discharge (TX-2), and all of it afterwards (TX-4).
func (b *bus) commits(t *testing.T, queue string) {
	c := b.mustBuy(t, queue)
	id, txn := c.buy(sender)
	if n := b.holds(t, queue); n != 1 {
		t.Errorf("%d messages before the discharge", n)
	}
	c.want(c.discharge(txn, false), "accepted")
	c.want(c.complete(id, nil), "rejected com.microsoft:message-lock-lost")
	c.want(c.discharge(txn, false), "rejected amqp:transaction:unknown-id")
	b.mustHave(t, queue, sent...)
}

// rollsBack: what failed has no effect, and the lock is as it was (TX-7).
func (b *bus) rollsBack(t *testing.T, queue string) {
	c := b.mustBuy(t, queue)
	id, txn := c.buy(sender)
	c.want(c.discharge(txn, true), "accepted")
	if n := b.holds(t, queue); n != 1 {
		t.Errorf("%d messages", n)
	}
	c.want(c.complete(id, nil), "accepted")
	if n := b.holds(t, queue); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// losesLock: a lock that ends before the discharge rolls all of it back (TX-4).
func (b *bus) losesLock(t *testing.T, queue string) {
	c := b.mustBuy(t, queue)
	_, txn := c.buy(sender)
	if err := await.Until(b.ctx, 50*time.Millisecond, "the end of the lock", func() (bool, error) {
		q, err := b.Nodes[2].Queue(b.ctx, queue)
		return err == nil && q.Ready == 1, err
	}); err != nil {
		t.Fatal(err)
	}
	c.want(c.discharge(txn, false), rolledBack)
	b.mustHave(t, queue, given)
}

// sendsVia: a queue hands messages on, once (TX-5), or not if it is rolled back.
func (b *bus) sendsVia(t *testing.T, queue string) {
	to := queue + "-to"
	b.mustCreate(t, to, "")
	c := b.mustBuy(t, queue)
	c.attachVia(viaSender, queue, to)
	txn := c.declare()
	c.want(c.transfer(ofLinks, viaSender, txn, message("nowhere")), provisional)
	c.want(c.discharge(txn, true), "accepted")
	_, txn = c.buy(viaSender)
	if n := b.holds(t, to); n != 0 {
		t.Errorf("%d messages before the discharge", n)
	}
	c.want(c.discharge(txn, false), "accepted")
	b.mustHave(t, to, sent...)
	if n := b.holds(t, queue); n != 0 {
		t.Errorf("%s has %d messages", queue, n)
	}
}

// attachVia opens a link to an entity that hands messages on.
func (c *buyer) attachVia(handle int, via, to string) {
	c.t.Helper()
	c.attach(ofLinks, handle, target(via), frames.Map{frames.Symbol("com.microsoft:transfer-destination-address"), to})
}

// isRefused: what cannot be handed on, because its destination was deleted or disabled since it was sent, is a dead letter of the
// entity that was to hand it on (TX-5).
func (b *bus) isRefused(t *testing.T, queue string) {
	gone, off, topic := queue+"-gone", queue+"-off", queue+"-topic"
	b.mustCreate(t, gone, "")
	b.mustCreate(t, off, "")
	b.mustPut(t, topic, "TopicDescription", "")
	b.mustPut(t, topic+"/Subscriptions/sub", "SubscriptionDescription", "")
	c := b.mustBuy(t, queue)
	c.attachVia(viaSender, queue, gone)
	c.attachVia(viaOther, queue, off)
	c.attachVia(viaTopic, topic, gone)
	id, txn, other := c.receive(), c.declare(), c.declare()
	c.want(c.transfer(ofLinks, viaSender, txn, message("gone")), provisional)
	c.want(c.transfer(ofLinks, viaOther, txn, message("off")), provisional)
	c.want(c.complete(id, txn), provisional)
	c.want(c.transfer(ofLinks, viaTopic, other, message("topic")), provisional)
	b.mustChange(t, off, "QueueDescription", "<Status>SendDisabled</Status>")
	b.mustDelete(t, gone)
	c.await("detach") // of the link to what is disabled
	c.want(c.discharge(txn, false), "accepted")
	c.want(c.discharge(other, false), "accepted")
	cmd, err := azureGo(b.ctx, t.TempDir())
	if errors.As(err, new(missing)) {
		t.Skip(err)
	}
	c.must(err)
	b.take(t, cmd, queue, busStep{name: "transferred"})
}

// killsLeader kills the leader before a discharge, or while one is answered: the outcome is then the truth (TX-10).
func (b *bus) killsLeader(t *testing.T, queue string, before bool) {
	c := b.mustBuy(t, queue)
	_, txn := c.buy(sender)
	leader, err := b.Leader(b.ctx, queue)
	c.must(err)
	b.killed = leader
	if !before {
		c.ask(txn, false)
	}
	c.must(leader.Kill(b.ctx))
	if before {
		c.ask(txn, false)
	}
	state := c.answer(true)
	t.Logf("the outcome is %v", state)
	c.must(b.restart())
	if state.Name == "accepted" {
		b.mustHave(t, queue, sent...)
		return
	}
	c.want(state, rolledBack)
	b.mustHave(t, queue, given)
}

// losesNode: a transaction ends with the node that keeps it (TX-7), and its message comes back when the lock has ended.
func (b *bus) losesNode(t *testing.T, queue string) {
	c := b.mustBuy(t, queue)
	c.buy(sender)
	b.killed = c.at
	c.must(c.at.Kill(b.ctx))
	if _, err := c.Await("disposition"); err == nil || errors.Is(err, frames.ErrEnded) && !strings.Contains(err.Error(), "close") {
		t.Errorf("answered by a node that was killed: %v", err)
	}
	c.must(b.restart())
	b.mustHave(t, queue, given)
}

// losesAnswer: the client's own node dies while it answers a discharge, or has committed and its client has not read the answer: all
// of the transaction is there, or nothing (TX-10).
func (b *bus) losesAnswer(t *testing.T, queue string, committed bool) {
	c := b.mustBuy(t, queue)
	_, txn := c.buy(sender)
	elsewhere := b.other(c.at)
	b.killed = c.at
	c.ask(txn, false)
	if committed {
		c.must(await.Until(b.ctx, time.Millisecond, "the commit at another node", func() (bool, error) {
			q, err := elsewhere.Queue(b.ctx, queue)
			return err == nil && q.Messages == len(sent), err
		}))
	}
	c.must(c.at.Kill(b.ctx))
	c.must(b.restart())
	switch have := b.drain(t, queue); {
	case slices.Equal(have, sent):
		t.Log("it was done")
	case committed || !slices.Equal(have, []string{given}):
		t.Errorf("%s has %q", queue, have)
	default:
		t.Log("it was not done")
	}
}

// touchesSecond: what is about a second entity is refused, and nothing of the transaction is done (TX-3).
func (b *bus) touchesSecond(t *testing.T, queue string) {
	second := queue + "-other"
	b.mustCreate(t, second, "")
	c := b.mustBuy(t, queue)
	c.attach(ofLinks, viaOther, target(second), nil)
	id, txn := c.buy(sender)
	c.want(c.transfer(ofLinks, viaOther, txn, message("second")), "rejected amqp:not-allowed")
	c.want(c.transfer(ofLinks, sender, txn, message("more")), "rejected amqp:not-allowed") // it has failed
	c.want(c.discharge(txn, false), rolledBack)
	c.want(c.transfer(ofLinks, viaOther, nil, message("plain")), "accepted")
	if n := b.holds(t, queue); n != 1 {
		t.Errorf("%d messages", n)
	}
	// The other way round it is the settlement that is refused.
	txn = c.declare()
	c.want(c.transfer(ofLinks, viaOther, txn, message("second")), provisional)
	c.want(c.complete(id, txn), "rejected amqp:not-allowed")
	c.want(c.discharge(txn, false), rolledBack)
	b.mustHave(t, second, "plain")
	c.want(c.complete(id, nil), "accepted")
	if n := b.holds(t, queue); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// The bounds of transactions.
const (
	maxSteps        = 1000
	maxStepBytes    = 4 << 20
	maxTransactions = 64
)

// transferIn sends a delivery of a transaction in several frames, of which the first one says so.
func (c *buyer) transferIn(txn []byte, format any, payload []byte) frames.Composite {
	c.t.Helper()
	f := frames.Fields{
		"handle": sender, "delivery-id": c.next, "delivery-tag": fmt.Sprint(c.next), "message-format": format,
		"state": frames.Composite{Name: "transactional-state", Fields: frames.Fields{"txn-id": txn}},
	}
	c.next++
	for part := range slices.Chunk(payload, largestFrame) {
		payload = payload[len(part):]
		f["more"] = len(payload) > 0
		c.must(c.Send(ofLinks, "transfer", f, part...))
		f = frames.Fields{"handle": sender}
	}
	return c.answer(true)
}

// reachesBounds: a transaction has as many steps and bytes as it may, or nothing of it is done (TX-8).
func (b *bus) reachesBounds(t *testing.T, queue string) {
	const exceeded = "rejected amqp:resource-limit-exceeded"
	c := b.mustBuy(t, queue)
	id, txn := c.receive(), c.declare()
	sends := func(n int) frames.Composite {
		all := make([][]byte, n)
		for i := range all {
			all[i] = message("m")
		}
		return c.transferIn(txn, batchFormat, batch(all...))
	}
	c.want(sends(maxSteps), provisional)
	c.want(c.complete(id, txn), exceeded)
	c.want(c.discharge(txn, false), rolledBack)
	txn = c.declare()
	c.want(sends(maxSteps-1), provisional)
	c.want(c.complete(id, txn), provisional)
	if n := b.holds(t, queue); n != 1 {
		t.Errorf("%d messages before the discharge", n)
	}
	c.want(c.discharge(txn, false), "accepted")
	if n := b.holds(t, queue); n != maxSteps-1 {
		t.Errorf("%d messages", n)
	}
	b.drain(t, queue)

	const size = maxStepBytes/5 - 1024
	large := func() frames.Composite {
		return c.transferIn(txn, nil, frames.Append(message("l"), frames.Described{Descriptor: uint64(0x75), Value: make([]byte, size)}))
	}
	for _, n := range []int{6, 5} {
		txn = c.declare()
		for range 5 {
			c.want(large(), provisional)
		}
		want := "accepted"
		if n > 5 {
			c.want(large(), exceeded)
			want = rolledBack
		}
		c.want(c.discharge(txn, false), want)
	}
	if n := b.holds(t, queue); n != 5 {
		t.Errorf("%d messages of %d bytes", n, size)
	}
	for range maxTransactions {
		txn = c.declare()
	}
	c.want(c.transfer(ofController, sender, nil, control("declare", nil)), exceeded)
	c.want(c.discharge(txn, true), "accepted")
	c.declare()
}
