package clients

import (
	"net/http"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/frames"
)

// TestServiceBusOutages is about what clients of the front are told while nodes are short of memory, stop, or have no majority: to
// try again, and nothing else. Links live on wherever their node does.
func TestServiceBusOutages(t *testing.T) {
	b := mustStartBus(t, limit)
	for name, play := range map[string]func(*player){"alarm": (*player).duringAlarm, "stop": (*player).whileNodeStops, "majority": (*player).withoutMajority} {
		t.Run(name, func(t *testing.T) {
			queue := "outage-" + name
			b.mustCreate(t, queue, "")
			play(b.mustPlay(t, queue))
		})
	}
}

// busy is what clients are told that are to try again.
const busy = "com.microsoft:server-busy"

// becomes sends messages until the answer is what is wanted.
func (p *player) becomes(want string) {
	p.t.Helper()
	p.must(await.Until(p.bus.ctx, 20*time.Millisecond, "a message that is "+want, func() (bool, error) {
		return p.outcome(p.transfer(ofLinks, sender, nil, message("again"))) == want, nil
	}))
}

// outcome is outcomeName, whose error is one that the log names.
func (p *player) outcome(state frames.Composite) string {
	p.t.Helper()
	if e := state.Fields.Of("error"); e != nil {
		p.tracked(e.Text("description"))
	}
	return outcomeName(state)
}

// duringAlarm: while a node is short of memory, messages are refused at all of them; locks are renewed and settled, and tokens put
// (LI-3).
func (p *player) duringAlarm() {
	g := p.lock("held")[0]
	p.to(sender, p.queue)
	r := p.pair(ofNet, ofRequests, p.queue+"/$management")
	short := func(limit float64) {
		p.must(p.bus.Nodes[0].Call(p.bus.ctx, http.MethodPut, "/api/quorate/limits/vm_memory_high_watermark", map[string]float64{"relative": limit}, nil))
	}
	short(0)
	p.becomes("rejected " + busy)
	tokens := frames.Array{Code: 0x98, Values: []any{g.delivery.Get("x-opt-lock-token")}}
	r.ask("renew-lock", 200, "lock-tokens", tokens)
	later := frames.Append(nil, frames.Described{Descriptor: uint64(0x72), Value: frames.Map{frames.Symbol("x-opt-scheduled-enqueue-time"), inAnHour}})
	schedule := []any{"messages", frames.List{frames.Map{"message-id", "later", "message", append(later, message("later")...)}}}
	if a := r.ask("schedule-message", 503, schedule...); a.condition != busy {
		p.t.Errorf("scheduled: %v", a)
	}
	p.bus.mustPlay(p.t, p.queue)
	p.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
	p.want(p.answer(false), "accepted")
	short(0.9)
	p.becomes("accepted")
	r.ask("schedule-message", 200, schedule...)
}

// whileNodeStops: a node that stops closes its connections with a condition at which SDKs connect anew; what was locked there is
// settled at another one (ER-2).
func (p *player) whileNodeStops() {
	g := p.lock("held")[0]
	stopped := p.at
	gone := make(chan error, 1)
	go func() { gone <- stopped.Shutdown(p.bus.ctx) }()
	p.ended("close", "amqp:connection:forced")
	p.must(p.Send(0, "close", frames.Fields{}))
	p.must(<-gone)
	p.at = p.bus.other(stopped)
	p.open(frames.Fields{"mechanism": "MSSBCBS"}, frames.Fields{"hostname": p.host})
	p.putToken(ofNet, ofTokens)
	tokens := frames.Array{Code: 0x98, Values: []any{g.delivery.Get("x-opt-lock-token")}}
	r := p.pair(ofNet, ofRequests, p.queue+"/$management")
	r.ask("renew-lock", 200, "lock-tokens", tokens)
	r.ask("update-disposition", 200, "disposition-status", "completed", "lock-tokens", tokens)
	if n := p.bus.holds(p.t, p.queue); n != 0 {
		p.t.Errorf("%d messages are left", n)
	}
	p.must(stopped.Restart())
	p.must(stopped.AwaitReady(p.bus.ctx))
}

// withoutMajority: as long as there is no leader, who sends or asks is told to try again after a while, and nothing is guessed; a
// link that waits does so, and all go on when there is one (ER-1, MG-5).
func (p *player) withoutMajority() {
	g := p.lock("held")[0]
	p.to(sender, p.queue)
	r := p.pair(ofNet, ofRequests, p.queue+"/$management")
	for _, n := range p.bus.Nodes {
		if n != p.at {
			p.must(n.Kill(p.bus.ctx))
		}
	}
	began := time.Now()
	if have := p.outcome(p.transfer(ofLinks, sender, nil, message("in vain"))); have != "rejected "+busy {
		p.t.Errorf("sent without a majority: %s", have)
	}
	p.t.Logf("told after %v", time.Since(began))
	tokens := frames.Array{Code: 0x98, Values: []any{g.delivery.Get("x-opt-lock-token")}}
	r.timeout = frames.Map{"com.microsoft:server-timeout", uint32(300)}
	for operation, body := range map[string][]any{
		"peek-message": {"from-sequence-number", int64(1), "message-count", int32(1)}, "renew-lock": {"lock-tokens", tokens},
		"receive-by-sequence-number": {"sequence-numbers", frames.List{int64(1)}, "receiver-settle-mode", uint32(0)},
		"update-disposition":         {"disposition-status", "completed", "lock-tokens", tokens},
		"cancel-scheduled-message":   {"sequence-numbers", frames.List{int64(1)}},
		"schedule-message":           {"messages", frames.List{frames.Map{"message-id", "m", "message", message("m")}}},
	} {
		if a := r.ask(operation, 503, body...); a.condition != busy {
			p.t.Errorf("%s: %v", operation, a)
		}
	}
	p.dispose(g.id, g.id, false, frames.Composite{Name: "accepted"})
	for _, n := range p.bus.Nodes {
		if n != p.at {
			p.must(n.Restart())
		}
	}
	p.want(p.answer(false), "accepted")
	p.becomes("accepted")
	for _, n := range p.bus.Nodes {
		p.must(n.AwaitReady(p.bus.ctx))
	}
}
