package clients

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/frames"
)

// lockHabits are about credit, locks and what counts as a delivery.
var lockHabits = []habit{
	{"LN-2 credit", "", (*player).isGivenCredit},
	{"LN-2 refused", session, (*player).sendsSettled},
	{"LN-6 order", "", (*player).isServedInOrder},
	{"LN-8 connection", shortLock, func(p *player) { p.losesLink((*player).again) }},
	{"LN-8 session", shortLock, func(p *player) { p.losesLink((*player).beginAgain) }},
	{"LN-8 detach", shortLock, func(p *player) { p.losesLink(func(p *player) { p.detach(ofLinks, receiver) }) }},
	{"LN-9 filter", "", (*player).filtersNoSessions},
	{"ST-5 lock", shortLock, func(p *player) { p.losesLink(func(*player) {}) }},
	{"ST-1 deferred", shortLock, (*player).countsDeferred},
}

// again connects anew, as SDKs do whose connection has broken.
func (p *player) again() {
	p.t.Helper()
	p.must(p.Conn.Close())
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	p.putToken(ofNet, ofTokens)
}

// beginAgain ends the session of the links, and begins another one.
func (p *player) beginAgain() {
	p.t.Helper()
	p.must(p.Send(ofLinks, "end", nil))
	p.await("end")
	p.next = 0
	p.must(p.Send(ofLinks, "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": 1<<32 - 1, "outgoing-window": 1<<31 - 1}))
	p.await("begin")
}

// requests are links for requests about the queue.
func (p *player) requests() *pair {
	p.t.Helper()
	return p.pair(ofNet, ofRequests, p.queue+"/$management")
}

// token is that of the lock of a delivery, as requests name it.
func (g got) token() frames.Array {
	return frames.Array{Code: 0x98, Values: []any{g.delivery.Get("x-opt-lock-token")}}
}

// time reads an annotation.
func (g got) time(annotation string) frames.Timestamp {
	t, _ := g.annotations.Get("x-opt-" + annotation).(frames.Timestamp)
	return t
}

// number is the sequence number.
func (g got) number() int64 {
	n, _ := g.annotations.Get("x-opt-sequence-number").(int64)
	return n
}

// until waits for a state.
func (p *player) until(what string, done func() bool) {
	p.t.Helper()
	p.must(await.Until(p.bus.ctx, 50*time.Millisecond, what, func() (bool, error) { return done(), nil }))
}

// becomesSuch waits until a queue is as is says.
func (p *player) becomesSuch(ctx context.Context, queue, what string, is func(cluster.Queue) bool) {
	p.t.Helper()
	p.must(await.Until(ctx, 50*time.Millisecond, what+" of "+queue, func() (bool, error) {
		q, err := p.bus.Nodes[2].Queue(ctx, queue)
		return err == nil && is(q), err
	}))
}

// ready waits until so many messages of the queue are ready.
func (p *player) ready(n int) {
	p.t.Helper()
	p.becomesSuch(p.bus.ctx, p.queue, "messages", func(q cluster.Queue) bool { return q.Ready == n })
}

// unlocked waits until no message of the queue is locked.
func (p *player) unlocked() {
	p.t.Helper()
	p.becomesSuch(p.bus.ctx, p.queue, "the locks", func(q cluster.Queue) bool { return q.Unacknowledged == 0 })
}

// counted is a message, and the count of its deliveries before.
type counted struct {
	text  string
	count int
}

// wantCounted wants messages in this order.
func (p *player) wantCounted(all []got, want ...counted) {
	p.t.Helper()
	var have []counted
	for _, g := range all {
		have = append(have, counted{g.data, g.header.Int("delivery-count")})
	}
	if !slices.Equal(have, want) {
		p.t.Errorf("received %v, not %v", have, want)
	}
}

// lockMillis is shortLock in ms.
const lockMillis = 5000

// anotherReceiver is the handle of a second link from the queue.
const anotherReceiver = 5

// losesLink: what was received stays locked until its lock ends, whatever becomes of its link, and may be settled by its token
// meanwhile. Then it is in front of what came later, in order, and one more delivery is counted (ST-1, ST-5). What was released has
// no count.
func (p *player) losesLink(lose func(*player)) {
	held := p.lock("a", "b", "c")
	p.send(message("d"), message("e"))
	lose(p)
	p.from(anotherReceiver, "/"+p.queue, nil)
	p.flow(anotherReceiver, 0, 1, nil)
	later := p.take(1)
	p.wantCounted(later, counted{"d", 0})
	r := p.requests()
	r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", held[1].token())
	p.dispose(later[0].id, later[0].id, false, frames.Composite{Name: "released"})
	p.want(p.answer(false), "released")
	p.ready(4)
	p.flow(anotherReceiver, 1, 4, nil)
	all := p.take(4)
	p.wantCounted(all, counted{"a", 1}, counted{"c", 1}, counted{"d", 0}, counted{"e", 0})
	for i, was := range []got{held[0], held[2]} {
		if until, again := was.time("locked-until"), all[i].time("locked-until")-lockMillis; until == 0 || again < until {
			p.t.Errorf("%s was locked until %d, and again at %d", was.data, until, again)
		}
		r.ask("renew-lock", 410, "lock-tokens", was.token())
	}
}

// countsDeferred: deferring counts no delivery, whatever an SDK says of it, and the end of the lock of a deferred message does.
func (p *player) countsDeferred() {
	r := p.requests()
	for _, failed := range []bool{false, true} {
		g := p.lock("a")[0]
		p.dispose(g.id, g.id, false, modified(frames.Fields{"delivery-failed": failed, "undeliverable-here": true}))
		p.want(p.answer(false), "modified")
		p.detach(ofLinks, receiver)
		if again := p.deferred(r, g.number()); again.header.Int("delivery-count") != 0 {
			p.t.Errorf("deferred with %v: %v", failed, again.header)
		}
		p.unlocked()
		if again := p.deferred(r, g.number()); again.header.Int("delivery-count") != 1 {
			p.t.Errorf("its lock has ended: %v", again.header)
		}
	}
}

// deferred receives a deferred message.
func (p *player) deferred(r *pair, number int64) got {
	p.t.Helper()
	return p.inAnswer(r.ask("receive-by-sequence-number", 200, "sequence-numbers", frames.Array{Code: 0x81, Values: []any{number}}, "receiver-settle-mode", uint32(1)))
}

// inAnswer is the only message in an answer.
func (p *player) inAnswer(a answered) (g got) {
	p.t.Helper()
	all := p.allIn(a)
	if len(all) != 1 {
		p.t.Fatalf("there are %d messages in %v", len(all), a)
	}
	return all[0]
}

// allIn are the messages in an answer.
func (p *player) allIn(a answered) (all []got) {
	p.t.Helper()
	found, _ := a.body.Get("messages").(frames.List)
	for _, entry := range found {
		entry, _ := entry.(frames.Map)
		b, _ := entry.Get("message").([]byte)
		var g got
		p.read(&g, b)
		all = append(all, g)
	}
	return all
}

// leastCredit is what a sender gets at once, and flood how many messages it then sends.
const (
	leastCredit = 100
	flood       = 1500
)

// isGivenCredit: a sender may send at once, and on and on. What it has settled is taken without an answer.
func (p *player) isGivenCredit() {
	p.to(sender, "/"+p.queue)
	f := p.await("flow").Fields
	credit := f.Int("link-credit")
	if f.Int("handle") != sender || f.Int("delivery-count") != 0 || credit < leastCredit {
		p.t.Errorf("the credit is %v", f)
	}
	sent, answered := 0, 0
	for answered < flood/2 {
		for ; sent < min(flood, credit); sent++ {
			p.must(p.Send(ofLinks, "transfer", frames.Fields{
				"handle": sender, "delivery-id": sent, "delivery-tag": []byte{byte(sent), byte(sent >> 8)}, "settled": sent%2 == 0, "batchable": true,
			}, message("m")...))
		}
		switch f, err := p.ReadFrame(); {
		case err != nil:
			p.t.Fatalf("%d were sent, %d answered: %v", sent, answered, err)
		case f.Name == "flow" && f.Fields["handle"] != nil:
			credit = f.Fields.Int("delivery-count") + f.Fields.Int("link-credit")
		case f.Name == "disposition":
			state, _ := f.Fields["state"].(frames.Composite)
			for id := f.Fields.Int("first"); id <= max(f.Fields.Int("first"), f.Fields.Int("last")); id++ {
				if answered++; id%2 == 0 || state.Name != "accepted" {
					p.t.Fatalf("answered with %v", f.Fields)
				}
			}
		case f.Name != "flow" && f.Name != "":
			p.t.Fatalf("%v", f)
		}
	}
	p.next = sent
	p.ready(flood)
}

// isServedInOrder: links with credit for one message each are served in the order in which it came. One with credit for more is behind
// the others again with each message.
func (p *player) isServedInOrder() {
	const links = 3
	for handle := 1; handle <= links; handle++ {
		p.from(handle, "/"+p.queue, nil)
	}
	other := p.bus.mustPlay(p.t, p.queue)
	count := map[int]int{}
	serves := func(want ...int) {
		p.t.Helper()
		other.send(message("a"), message("b"), message("c"))
		other.detach(ofLinks, sender)
		var have []int
		for _, g := range p.take(len(want)) {
			have = append(have, g.first.Int("handle"))
		}
		if !slices.Equal(have, want) {
			p.t.Errorf("served are the links %v, not %v", have, want)
		}
	}
	gives := func(handle, credit int) {
		p.t.Helper()
		p.flow(handle, count[handle], credit, frames.Fields{"echo": true})
		if f := p.await("flow").Fields; f.Int("handle") != handle || f.Int("link-credit") != credit {
			p.t.Fatalf("answered with %v", f)
		}
		count[handle] += credit
	}
	for _, order := range [][]int{{3, 1, 2}, {1, 3, 2}, {2, 3, 1}} {
		for _, handle := range order {
			gives(handle, 1)
		}
		serves(order...)
	}
	gives(2, 2)
	gives(3, 1)
	serves(2, 3, 2)
}

// filtersNoSessions: an entity without sessions has none to receive from.
func (p *player) filtersNoSessions() {
	for _, id := range []any{nil, "s", described("s"), described(nil)} {
		p.refused(p.from(receiver, "", frames.Fields{"source": source("/"+p.queue, frames.Map{sessionFilter, id})}), "source", "amqp:not-allowed", "")
	}
}

// sendsSettled: what is refused is counted, if the client has settled it and is told nothing.
func (p *player) sendsSettled() {
	const refused = 3
	before, err := p.at.Metric(p.bus.ctx, metricRefused)
	p.must(err)
	p.to(sender, "/"+p.queue)
	for range refused {
		p.must(p.Send(ofLinks, "transfer", frames.Fields{"handle": sender, "delivery-id": p.next, "delivery-tag": []byte{byte(p.next)}, "settled": true}, message("a")...))
		p.next++
	}
	p.want(p.transfer(ofLinks, sender, nil, grouped("b", "s")), "accepted")
	p.until("the count of what is refused", func() bool {
		n, err := p.at.Metric(p.bus.ctx, metricRefused)
		p.must(err)
		return n >= before+refused
	})
	if n := p.bus.holds(p.t, p.queue); n != 1 {
		p.t.Errorf("the queue has %d messages", n)
	}
}

// metricRefused counts what was refused and settled.
const metricRefused = "quorate_settled_refused_total"
