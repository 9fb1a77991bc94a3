package clients

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// messageHabits are about messages, deliveries and their outcomes.
var messageHabits = []habit{
	{"LN-5 tag", "", (*player).readsTags},
	{"ST-2 late", "", (*player).settlesLate},
	{"ST-3 range", "", (*player).settlesRanges},
	{"ST-8 first", "", func(p *player) { p.settlesIn(0) }},
	{"ST-8 second", "", func(p *player) { p.settlesIn(1) }},
	{"MP-3 expiry", "", (*player).expires},
	{"BA-1 batch", "", (*player).sendsBatches},
	{"BA-1 frames", "", (*player).sendsFrames},
}

// guid is a token in the other order of its octets: as UUIDs are written, or as .NET has them.
func guid(b []byte) (u frames.UUID) {
	copy(u[:], b)
	slices.Reverse(u[:4])
	slices.Reverse(u[4:6])
	slices.Reverse(u[6:8])
	return u
}

// readsTags: the tag of a delivery is the token of its lock, in the order of octets that .NET and Java read.
func (p *player) readsTags() {
	g := p.lock("a", "b")[1]
	tag, _ := g.first["delivery-tag"].([]byte)
	token, ok := g.delivery.Get("x-opt-lock-token").(frames.UUID)
	if len(tag) != 16 || !ok || guid(tag) != token {
		p.t.Fatalf("the tag is %x, the token %x", tag, token)
	}
	if _, ok := g.annotations.Get("x-opt-sequence-number").(int64); !ok || g.header.Int("delivery-count") != 0 {
		p.t.Errorf("received %v %v", g.header, g.annotations)
	}
	r := p.pair(ofNet, ofRequests, p.queue+"/$management")
	r.ask("renew-lock", 200, "lock-tokens", frames.Array{Code: 0x98, Values: []any{guid(tag)}})
	if a := r.ask("renew-lock", 410, "lock-tokens", frames.Array{Code: 0x98, Values: []any{frames.UUID(tag)}}); a.condition != "com.microsoft:message-lock-lost" {
		p.t.Errorf("the condition is %q", a.condition)
	}
}

// outcome is what an SDK sends for a message, and what becomes of that.
type outcome struct {
	name  string
	state frames.Composite
	// It is there again, with this count; -1: it is not.
	count int
	dead  bool
}

func modified(f frames.Fields) frames.Composite { return frames.Composite{Name: "modified", Fields: f} }

// outcomes are all of them: .NET says of an abandoned message nothing at all.
var outcomes = []outcome{
	{"complete", frames.Composite{Name: "accepted"}, -1, false},
	{"abandon (.NET)", modified(nil), 1, false},
	{"abandon (Java)", modified(frames.Fields{"delivery-failed": nil, "undeliverable-here": false, "message-annotations": frames.Map{frames.Symbol("k"), int32(1)}}), 1, false},
	{"abandon (Python)", modified(frames.Fields{"delivery-failed": true, "undeliverable-here": false}), 1, false},
	{"defer (.NET)", modified(frames.Fields{"undeliverable-here": true}), -1, false},
	{"defer (Python)", modified(frames.Fields{"delivery-failed": true, "undeliverable-here": true, "message-annotations": frames.Map{}}), -1, false},
	{"dead-letter (.NET)", frames.Composite{Name: "rejected"}, -1, true},
	{"dead-letter (Java)", frames.Composite{Name: "rejected", Fields: frames.Fields{"error": frames.Composite{Name: "error", Fields: frames.Fields{
		"condition": "com.microsoft:dead-letter", "info": frames.Map{frames.Symbol("DeadLetterReason"), "why", frames.Symbol("DeadLetterErrorDescription"), "how"},
	}}}}, -1, true},
	{"dead-letter (Python)", frames.Composite{Name: "rejected", Fields: frames.Fields{"error": frames.Composite{Name: "error", Fields: frames.Fields{
		"condition": "com.microsoft:dead-letter", "description": "how", "info": frames.Map{"DeadLetterReason", "why", "DeadLetterErrorDescription", "how"},
	}}}}, -1, true},
	{"release", frames.Composite{Name: "released"}, 0, false},
}

// settlesIn: an outcome is answered with its own kind, and without an error, if the client waits for an answer, whatever its
// rcv-settle-mode is; else it is not answered, and takes effect all the same.
func (p *player) settlesIn(mode int) {
	for i, o := range outcomes {
		for _, settled := range []bool{false, true} {
			text, handle := fmt.Sprint(o.name, settled), 2+i
			p.send(message(text))
			p.detach(ofLinks, sender)
			p.from(handle, "/"+p.queue, frames.Fields{"rcv-settle-mode": mode})
			p.flow(handle, 0, 1, nil)
			g := p.take(1)[0]
			if g.data != text {
				p.t.Fatalf("received %q, not %q", g.data, text)
			}
			p.dispose(g.id, g.id, settled, o.state)
			if !settled {
				f := p.await("disposition").Fields
				if state, _ := f["state"].(frames.Composite); state.Name != o.state.Name || state.Fields["error"] != nil || f["settled"] != true || f.Int("first") != g.id {
					p.t.Errorf("%s is answered with %v", text, f)
				}
				p.dispose(g.id, g.id, true, o.state) // Java and Python settle what is settled, which nobody answers
			}
			p.follow(o, handle, text)
			p.detach(ofLinks, handle)
		}
	}
}

// follow wants what becomes of a message that was received by a link, which has nothing else to receive.
func (p *player) follow(o outcome, handle int, text string) {
	p.t.Helper()
	switch {
	case o.count >= 0:
		p.flow(handle, 1, 1, nil)
		g := p.take(1)[0]
		if g.data != text || g.header.Int("delivery-count") != o.count {
			p.t.Errorf("%s: %q, %v", text, g.data, g.header)
		}
		p.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
		p.want(p.answer(false), "accepted")
	case o.dead:
		p.from(1, "/"+p.queue+"/$deadletterqueue", frames.Fields{"snd-settle-mode": 1, "rcv-settle-mode": 0})
		p.flow(1, 0, 1, nil)
		g, want := p.take(1)[0], ""
		if len(o.state.Fields) > 0 {
			want = "why how"
		}
		have := strings.TrimSpace(frames.Text(g.application.Get("DeadLetterReason")) + " " + frames.Text(g.application.Get("DeadLetterErrorDescription")))
		if g.data != text || have != want {
			p.t.Errorf("%s: %q, %q", text, g.data, have)
		}
		p.detach(ofLinks, 1)
	}
}

// detach closes a link.
func (p *player) detach(channel uint16, handle int) {
	p.t.Helper()
	p.must(p.Send(channel, "detach", frames.Fields{"handle": handle, "closed": true}))
	p.await("detach")
}

// settlesRanges: a range is settled at once, answered in runs if it is not settled already, and one of it that is lost does not keep
// the others.
func (p *player) settlesRanges() {
	r := p.pair(ofJava, ofRequests, p.queue+"/$management")
	all := p.lock("a", "b", "c", "d", "e")
	first, last := all[0].id, all[4].id
	r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", frames.Array{Code: 0x98, Values: []any{all[2].delivery.Get("x-opt-lock-token")}})
	p.dispose(first, last, false, frames.Composite{Name: "accepted"})
	answers := map[int]string{}
	for len(answers) < len(all) {
		f := p.await("disposition").Fields
		state, _ := f["state"].(frames.Composite)
		have := state.Name
		if e := state.Fields.Of("error"); e != nil {
			have += " " + e.Text("condition")
			p.tracked(e.Text("description"))
		}
		if f["settled"] != true || f["role"] != false {
			p.t.Fatalf("answered with %v", f)
		}
		for id := f.Int("first"); id <= max(f.Int("first"), f.Int("last")); id++ {
			answers[id] = have
		}
	}
	for i, g := range all {
		want := "accepted"
		if i == 2 {
			want = "rejected com.microsoft:message-lock-lost"
		}
		if answers[g.id] != want {
			p.t.Errorf("%s is %s, not %s", g.data, answers[g.id], want)
		}
	}
	p.detach(ofLinks, receiver)
	all = p.lock("f", "g", "h")
	p.dispose(all[0].id, all[1].id, true, frames.Composite{Name: "accepted"})
	p.dispose(all[2].id, all[2].id, false, frames.Composite{Name: "accepted"})
	if f := p.await("disposition").Fields; f.Int("first") != all[2].id {
		p.t.Errorf("what was settled is answered with %v", f)
	}
	if n := p.bus.holds(p.t, p.queue); n != 0 {
		p.t.Errorf("%d messages are left", n)
	}
}

// settlesLate: whoever settles a message whose lock is lost is told so, with an id that is in the log.
func (p *player) settlesLate() {
	r := p.pair(ofPython, ofRequests, p.queue+"/$management")
	for i, o := range outcomes {
		g := p.lock(o.name)[0]
		token := frames.List{g.delivery.Get("x-opt-lock-token")}
		r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", token)
		p.dispose(g.id, g.id, false, o.state)
		state := p.answer(false)
		p.want(state, "rejected com.microsoft:message-lock-lost")
		p.tracked(state.Fields.Of("error").Text("description"))
		status := []string{"completed", "abandoned", "suspended", "defered", "unlocked", "renewed"}[i%6]
		if a := r.ask("update-disposition", 410, "disposition-status", status, "lock-tokens", token); !strings.HasPrefix(a.description, "The lock supplied is invalid.") {
			p.t.Errorf("%s: %v", status, a)
		}
		p.detach(ofLinks, receiver)
	}
}

// expires: .NET writes when a message expires by its own clock, too. What counts is its time to live.
func (p *player) expires() {
	b := frames.Append(nil, frames.Composite{Name: "header", Fields: frames.Fields{"ttl": 600_000}})
	b = frames.Append(b, frames.Composite{Name: "properties", Fields: frames.Fields{
		"message-id": "a", "creation-time": frames.Timestamp(1000), "absolute-expiry-time": frames.Timestamp(601_000),
	}})
	p.send(frames.Append(b, frames.Described{Descriptor: uint64(0x75), Value: []byte("a")}))
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, 1, nil)
	g := p.take(1)[0]
	enqueued, ok := g.annotations.Get("x-opt-enqueued-time").(frames.Timestamp)
	if !ok || g.properties["absolute-expiry-time"] != enqueued+600_000 || g.header.Int("ttl") != 600_000 || time.Since(time.UnixMilli(int64(enqueued))) > time.Minute {
		p.t.Errorf("received %v %v %v", g.header, g.properties, g.annotations)
	}
}

// batchFormat is the message-format of a batch.
const batchFormat = 0x80013700

// batch is one: an envelope with the properties of the first message, and the messages as its data.
func batch(all ...[]byte) []byte {
	b := frames.Append(nil, frames.Composite{Name: "properties", Fields: frames.Fields{"message-id": "envelope", "group-id": "g"}})
	for _, m := range all {
		b = frames.Append(b, frames.Described{Descriptor: uint64(0x75), Value: m})
	}
	return b
}

// sendIn sends a message in frames of a size: only the first one says what it is.
func (p *player) sendIn(size int, format any, payload []byte) {
	p.t.Helper()
	p.sendOn(sender, size, format, payload)
}

func (p *player) sendOn(handle, size int, format any, payload []byte) {
	p.t.Helper()
	f := frames.Fields{"handle": handle, "delivery-id": p.next, "delivery-tag": []byte{byte(p.next)}, "message-format": format, "settled": false, "batchable": true}
	p.next++
	for n := 0; len(payload) > 0; n++ {
		part := payload[:min(size, len(payload))]
		if payload = payload[len(part):]; n > 0 {
			f = frames.Fields{"handle": handle}
		}
		f["more"] = len(payload) > 0
		p.must(p.Send(ofLinks, "transfer", f, part...))
	}
}

// sendsBatches: a batch is sent in several frames, has one answer, and its messages have numbers in a row.
func (p *player) sendsBatches() {
	p.to(sender, "/"+p.queue)
	var texts []string
	for _, c := range []struct{ messages, frame int }{{1, largestFrame - 512}, {3, 100}, {40, 7}} {
		var all [][]byte
		for range c.messages {
			texts = append(texts, fmt.Sprint(len(texts)))
			all = append(all, message(texts[len(texts)-1]))
		}
		p.sendIn(c.frame, batchFormat, batch(all...))
		f := p.await("disposition").Fields
		if state, _ := f["state"].(frames.Composite); state.Name != "accepted" || f.Int("first") != p.next-1 || f["settled"] != true {
			p.t.Fatalf("the batch is answered with %v", f)
		}
	}
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, len(texts), nil)
	for i, g := range p.take(len(texts)) {
		if g.data != texts[i] || g.properties["message-id"] != texts[i] || g.properties["group-id"] != nil || g.annotations.Get("x-opt-sequence-number") != int64(i+1) {
			p.t.Errorf("message %d is %q, %v %v", i, g.data, g.properties, g.annotations)
		}
	}
}

// sendsFrames: a message larger than a frame is sent in several, and received in those that the client reads.
func (p *player) sendsFrames() {
	text := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
	p.to(sender, "/"+p.queue)
	p.sendIn(largestFrame-512, nil, message(string(text)))
	p.want(p.answer(true), "accepted")
	p.from(receiver, "/"+p.queue, nil)
	p.flow(receiver, 0, 1, nil)
	if g := p.take(1)[0]; g.data != string(text) || g.frames < 6 {
		p.t.Errorf("%d bytes in %d frames", len(g.data), g.frames)
	}
}
