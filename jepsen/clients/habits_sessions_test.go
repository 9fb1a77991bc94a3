package clients

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// sessionHabits are about sessions of messages.
var sessionHabits = []habit{
	{"SE-2 detach", session, (*player).takesWishBack},
	{"SE-4 longest", session, (*player).namesLongSessions},
	{"SE-5 end", session + shortLock, (*player).losesSession},
	{"SE-5 detach", session, (*player).leavesSession},
	{"SE-6 renewal", session, (*player).renewsNoMessage},
	{"SE-7 large", session, (*player).keepsLargeState},
	{"SE-7 stranger", session, (*player).isStranger},
	{"SE-8 forwarded", "", (*player).forwardsWithoutSession},
	{"TR-7 sessions", "", (*player).beginsSessions},
}

// ofSession are the fields of an attach for a session; nil: the next one.
func (p *player) ofSession(id any, timeoutMillis int) frames.Fields {
	return frames.Fields{
		"source":     source("/"+p.queue, frames.Map{sessionFilter, id}),
		"properties": frames.Map{frames.Symbol("com.microsoft:timeout"), uint32(timeoutMillis)},
	}
}

// wish attaches a link from the next session, and does not wait for an answer.
func (p *player) wish(channel uint16, handle, timeoutMillis int) {
	p.t.Helper()
	f := p.ofSession(nil, timeoutMillis)
	f["name"], f["handle"], f["role"], f["target"] = fmt.Sprint("wish ", handle), handle, true, target(own)
	f["snd-settle-mode"], f["rcv-settle-mode"] = 0, 1
	p.must(p.Send(channel, "attach", f))
}

// heldBy is the session that the answer to an attach names.
func heldBy(answer frames.Fields) string {
	return frames.Text(answer.Of("source").Map("filter").Get(string(sessionFilter)))
}

// lockedUntil is the end of the lock of a session, in ms, as the answer to an attach says.
func (p *player) lockedUntil(answer frames.Fields) frames.Timestamp {
	p.t.Helper()
	ticks, ok := answer.Map("properties").Get("com.microsoft:locked-until-utc").(int64)
	if !ok {
		p.t.Fatalf("not locked: %v", answer)
	}
	return frames.Timestamp((ticks - ticks1970) / 10_000)
}

// takesWishBack: who waits for the next session and detaches, or ends the session of AMQP, gets none, and hears no more of it. The
// session is that of the next one who waits.
func (p *player) takesWishBack() {
	const ended, detached, waits, last = 1, 2, 3, 4
	const short, long = 1000, 30_000
	p.wish(ofOthers, ended, short)
	p.wish(ofLinks, detached, short)
	p.wish(ofLinks, waits, long)
	p.must(p.Send(ofOthers, "end", nil))
	p.await("end")
	p.detach(ofLinks, detached)
	p.bus.mustPlay(p.t, p.queue).send(grouped("a", "s"))
	f := p.await("attach").Fields
	if f.Int("handle") != waits || heldBy(f) != "s" {
		p.t.Fatalf("the session is that of %v", f)
	}
	p.flow(waits, 0, 1, nil)
	p.wantCounted(p.take(1), counted{"a", 0})
	// By the end of this one's time those of the others are over.
	p.wish(ofLinks, last, short)
	if f = p.await("attach").Fields; f.Int("handle") != last {
		p.t.Errorf("who waits no more is answered with %v", f)
	}
	p.refused(f, "source", "com.microsoft:timeout", "")
}

// namesLongSessions: an id has at most 128 characters, whatever bytes they are.
func (p *player) namesLongSessions() {
	const most = 128
	p.to(sender, "/"+p.queue)
	for i, character := range []string{"s", "ü", "語", "😀"} {
		id, text := strings.Repeat(character, most), fmt.Sprint(i)
		p.want(p.transfer(ofLinks, sender, nil, grouped(text, id+character)), "rejected com.microsoft:argument-error")
		p.refused(p.from(receiver, "", p.ofSession(id+character, 0)), "source", "com.microsoft:argument-error", "")
		p.want(p.transfer(ofLinks, sender, nil, grouped(text, id)), "accepted")
		for _, wanted := range []any{id, nil} {
			if answer := p.from(receiver, "", p.ofSession(wanted, 10_000)); heldBy(answer) != id {
				_, err := p.Await("transfer")
				p.t.Fatalf("the session is %q: %v", heldBy(answer), err)
			}
			r := p.requests()
			r.ask("set-session-state", 200, "session-id", id, "session-state", []byte(text))
			r.close()
			p.flow(receiver, 0, 1, nil)
			g := p.take(1)[0]
			if g.data != text || g.properties["group-id"] != id {
				p.t.Errorf("received %q of %v", g.data, g.properties)
			}
			if wanted == nil {
				p.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
				p.want(p.answer(false), "accepted")
			}
			p.detach(ofLinks, receiver)
		}
	}
}

// losesSession: when the lock of a session ends its link is detached, its messages come back with one more delivery counted, and the
// session is that of who waits.
func (p *player) losesSession() {
	p.send(grouped("a", "s"), grouped("b", "s"), grouped("c", "s"))
	until := p.lockedUntil(p.from(receiver, "", p.ofSession(nil, 30_000)))
	p.flow(receiver, 0, 2, nil)
	p.wantCounted(p.take(2), counted{"a", 0}, counted{"b", 0})
	other := p.bus.mustPlay(p.t, p.queue)
	other.wish(ofLinks, receiver, 30_000)
	p.detached("com.microsoft:session-lock-lost", "")
	f := other.await("attach").Fields
	if heldBy(f) != "s" || other.lockedUntil(f)-lockMillis < until {
		p.t.Errorf("it was held until %d, and again by %v", until, f)
	}
	other.flow(receiver, 0, 3, nil)
	other.wantCounted(other.take(3), counted{"a", 1}, counted{"b", 1}, counted{"c", 0})
	if a := p.requests().ask("renew-session-lock", 410, "session-id", "s"); a.condition != "com.microsoft:session-lock-lost" {
		p.t.Errorf("the condition is %q", a.condition)
	}
}

// leavesSession: a session whose link was detached is free at once, and nothing is counted.
func (p *player) leavesSession() {
	p.send(grouped("a", "s"), grouped("b", "s"))
	for range 3 {
		p.from(receiver, "", p.ofSession("s", 0))
		p.flow(receiver, 0, 2, nil)
		p.wantCounted(p.take(2), counted{"a", 0}, counted{"b", 0})
		p.detach(ofLinks, receiver)
		other := p.bus.mustPlay(p.t, p.queue)
		if heldBy(other.from(receiver, "", other.ofSession("s", 0))) != "s" {
			p.t.Fatal("the session is not free")
		}
		other.flow(receiver, 0, 2, nil)
		other.wantCounted(other.take(2), counted{"a", 0}, counted{"b", 0})
		other.must(other.Send(ofLinks, "end", nil))
		other.await("end")
	}
}

// renewsNoMessage: the lock of a message of a session is that of the session. It can be settled by its token.
func (p *player) renewsNoMessage() {
	p.send(grouped("a", "s"))
	p.from(receiver, "", p.ofSession("s", 0))
	p.flow(receiver, 0, 1, nil)
	g := p.take(1)[0]
	for _, k := range sdks {
		r := p.pair(k, ofOthers, p.queue+"/$management")
		if a := r.ask("renew-lock", 410, "lock-tokens", g.token(), "session-id", "s"); a.condition != "com.microsoft:message-lock-lost" {
			p.t.Errorf("%s: %v", k.name, a)
		}
		r.close()
	}
	r := p.requests()
	r.ask("renew-session-lock", 200, "session-id", "s")
	r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", g.token(), "session-id", "s")
}

// largestState is how large the state of a session may be.
const largestState = 256 << 10

// keepsLargeState: a state has a bound, and the one before it stays if another one is beyond that.
func (p *player) keepsLargeState() {
	p.from(receiver, "", p.ofSession("s", 0))
	r := p.requests()
	r.chunk = largestFrame - 512
	state := bytes.Repeat([]byte("0123456789abcdef"), largestState/16)
	r.ask("set-session-state", 200, "session-id", "s", "session-state", state)
	for _, more := range []int{1, 1 << 10} {
		r.ask("set-session-state", 403, "session-id", "s", "session-state", bytes.Repeat([]byte("x"), largestState+more))
	}
	a := r.ask("get-session-state", 200, "session-id", "s")
	if have, _ := a.body.Get("session-state").([]byte); !bytes.Equal(have, state) {
		p.t.Errorf("the state has %d bytes", len(have))
	}
}

// isStranger: what only the holder of a session may do is refused on any other connection, whether or not somebody holds it.
func (p *player) isStranger() {
	other := p.bus.mustPlay(p.t, p.queue)
	strange := func() {
		p.t.Helper()
		for _, k := range sdks {
			r := other.pair(k, ofRequests, p.queue+"/$management")
			for operation, body := range map[string]frames.Map{
				"set-session-state": {"session-state", []byte("strange")}, "get-session-state": nil, "renew-session-lock": nil,
			} {
				if a := r.ask(operation, 410, append(body, "session-id", "s")...); a.condition != "com.microsoft:session-lock-lost" {
					p.t.Errorf("%s, %s: %v", k.name, operation, a)
				}
			}
			r.close()
		}
	}
	p.from(receiver, "", p.ofSession("s", 0))
	r := p.requests()
	r.ask("set-session-state", 200, "session-id", "s", "session-state", []byte("mine"))
	strange()
	if a := r.ask("get-session-state", 200, "session-id", "s"); frames.Text(a.body.Get("session-state")) != "mine" {
		p.t.Errorf("the state is %v", a.body)
	}
	p.detach(ofLinks, receiver)
	strange()
}

// forwardsWithoutSession: what is forwarded to where a session is required, and has none, is a dead letter: of the subscription, if it
// came to its topic. A queue that forwards to a queue keeps what that does not take, whatever the cause: it may require sessions if it was
// created anew.
func (p *player) forwardsWithoutSession() {
	topic, to := p.queue+"-topic", p.queue+"-to"
	p.bus.mustPut(p.t, topic, "TopicDescription", "")
	p.bus.mustPut(p.t, topic+"/Subscriptions/sub", "SubscriptionDescription", session)
	p.bus.mustCreate(p.t, p.queue+"-1", "<ForwardTo>"+topic+"</ForwardTo>")
	p.bus.mustCreate(p.t, to, "")
	p.bus.mustCreate(p.t, p.queue+"-2", "<ForwardTo>"+to+"</ForwardTo>")
	p.bus.mustDelete(p.t, to)
	p.bus.mustCreate(p.t, to, session)
	for i, c := range []struct{ from, has, dead, reason string }{
		{p.queue + "-1", topic + "/Subscriptions/sub", topic + "/Subscriptions/sub", "Session ID is null."}, {p.queue + "-2", to, p.queue + "-2", "TransferRefused"},
	} {
		p.to(sender, "/"+c.from)
		p.want(p.transfer(ofLinks, sender, nil, message("none")), "accepted")
		p.want(p.transfer(ofLinks, sender, nil, grouped("some", "s")), "accepted")
		p.detach(ofLinks, sender)
		p.from(10+i, "/"+c.dead+"/$DeadLetterQueue", nil)
		p.flow(10+i, 0, 1, nil)
		g := p.take(1)[0]
		if reason := frames.Text(g.application.Get("DeadLetterReason")); g.data != "none" || reason != c.reason {
			p.t.Errorf("%s: %q is dead because of %q", c.from, g.data, reason)
		}
		p.from(20+i, "", frames.Fields{"source": source("/"+c.has, frames.Map{sessionFilter, nil})})
		p.flow(20+i, 0, 1, nil)
		if g := p.take(1)[0]; g.data != "some" {
			p.t.Errorf("%s has %q", c.has, g.data)
		}
	}
}

// beginsSessions: a program may have as many sessions of AMQP as Go makes for its receivers, and each costs little.
func (p *player) beginsSessions() {
	const most = 5000
	before, err := p.at.RSSBytes()
	p.must(err)
	_, f := p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host, "channel-max": 1<<16 - 1})
	p.putToken(ofNet, ofTokens)
	if f.Int("channel-max") < most-1 {
		p.t.Fatalf("opened with %v", f)
	}
	begin := time.Now()
	for channel := channels; channel < most; channel++ {
		p.must(p.Send(uint16(channel), "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": 1000, "outgoing-window": 1000}))
	}
	begun := map[uint16]bool{}
	for range most - channels {
		f := p.await("begin")
		begun[f.Channel] = f.Fields.Int("remote-channel") == int(f.Channel)
	}
	for channel := channels; channel < most; channel++ {
		if !begun[uint16(channel)] {
			p.t.Fatalf("session %d is not begun", channel)
		}
	}
	after, err := p.at.RSSBytes()
	p.must(err)
	p.t.Logf("%d sessions in %v: %d bytes of the node for each", most, time.Since(begin), (after-before)/most)
	last := uint16(most - 1)
	p.attach(last, sender, false, frames.Fields{"source": source(own, nil), "target": target("/" + p.queue)})
	p.want(p.transfer(last, sender, nil, message("a")), "accepted")
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, 1, nil)
	p.wantCounted(p.take(1), counted{"a", 0})
}
