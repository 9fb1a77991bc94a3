package main

import (
	"bytes"
	"cmp"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/exp/trace"
)

// span is a time of the machine's clock.
type span struct{ from, to time.Duration }

// burst is a time in which a goroutine runs or is in system calls, without waiting for anything else.
type burst struct {
	node   int
	name   string
	number string
	woken  bool // and not begun anew, or preempted
	ready  time.Duration
	span
	calls []span
}

// goroutine is what a trace says of one.
type goroutine struct {
	function string // one of hopNames
	confirms bool
	next     burst // which is under way if it has begun
	bursts   []*burst
}

// becomes notes a change of the goroutine's state.
func (g *goroutine) becomes(from, to trace.GoState, now time.Duration) {
	t := &g.next
	if n := len(t.calls); n > 0 && from == trace.GoSyscall {
		t.calls[n-1].to = now
	}
	switch to {
	case trace.GoRunning:
		t.from = cmp.Or(t.from, now)
		t.ready = cmp.Or(t.ready, now)
		return
	case trace.GoSyscall:
		t.calls = append(t.calls, span{now, now})
		return
	}
	if t.from != 0 {
		done := *t
		done.to = now
		g.bursts, g.next = append(g.bursts, &done), burst{}
	}
	if to == trace.GoRunnable {
		t.ready, t.woken = now, from == trace.GoWaiting
	}
}

// tracing reads the trace of a node.
type tracing struct {
	node       int
	ahead      time.Duration // the machine's clock, of the trace's
	processors uint64
	known      map[trace.GoID]*goroutine
}

func (t *tracing) read(text []byte) error {
	r, err := trace.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	for {
		e, err := r.ReadEvent()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		t.add(e)
	}
}

func (t *tracing) add(e trace.Event) {
	switch e.Kind() {
	case trace.EventSync:
		if c := e.Sync().ClockSnapshot; c != nil {
			t.ahead = time.Duration(c.Mono) - time.Duration(c.Trace)
		}
	case trace.EventMetric:
		if m := e.Metric(); m.Name == "/sched/gomaxprocs:threads" {
			t.processors = m.Value.Uint64()
		}
	case trace.EventStateTransition:
		tr := e.StateTransition()
		if tr.Resource.Kind != trace.ResourceGoroutine {
			return
		}
		g := t.known[tr.Resource.Goroutine()]
		if g == nil {
			g = &goroutine{}
			t.known[tr.Resource.Goroutine()] = g
		}
		if g.function == "" {
			g.function = outermost(tr.Stack, func(name string) bool { return hopNames[name].name != "" })
		}
		from, to := tr.Goroutine()
		if to == trace.GoRunnable && outermost(e.Stack(), func(name string) bool { return name == confirming }) != "" {
			g.confirms = true
		}
		g.becomes(from, to, time.Duration(e.Time())+t.ahead)
	}
}

// outermost returns the name of the outermost function of a stack that is one of those, without its package's path.
func outermost(s trace.Stack, is func(name string) bool) (found string) {
	for f := range s.Frames() {
		if name := f.Func[strings.LastIndexByte(f.Func, '/')+1:]; is(name) {
			found = name
		}
	}
	return found
}

// bursts are those of the goroutines that messages wake. The publisher's reader is the one that reads most.
func (t *tracing) bursts() (all []*burst) {
	var publisher *goroutine
	for _, g := range t.known {
		if hopNames[g.function].name == theReader && (publisher == nil || len(g.bursts) > len(publisher.bursts)) {
			publisher = g
		}
	}
	for _, g := range t.known {
		is := hopNames[g.function]
		switch {
		case is.name == "":
			continue
		case is.name == theReader && g != publisher, is.name == theWriter && !g.confirms:
			is.name, is.number = "consumer's "+is.name, [2]string{}
		}
		for _, b := range g.bursts {
			b.node, b.name, b.number = t.node, is.name, is.number[min(t.node, 1)]
			all = append(all, b)
		}
	}
	return all
}

// passage is what nodes do from the arrival of a message on until the next one arrives.
type passage struct {
	span   // until the confirm is written
	bursts []*burst
}

func (p *passage) lasted() time.Duration { return p.to - p.from }

// passagesOf splits bursts into passages. Of what the network brings, a goroutine is ready as soon as the other side writes it: a
// follower hears from the leader, and the leader from followers.
func passagesOf(all []*burst) (passages []*passage) {
	slices.SortFunc(all, func(a, b *burst) int { return cmp.Compare(a.from, b.from) })
	var now *passage
	var written [2]time.Duration // last, by the leader, and by a follower
	proposed := false
	for _, t := range all {
		leads := t.node == 0
		if leads && t.name == theReader && t.woken {
			now = &passage{span: span{from: t.ready}}
			passages, proposed = append(passages, now), false
		}
		if now == nil {
			continue
		}
		now.bursts = append(now.bursts, t)
		switch {
		case t.name == linkWriter && len(t.calls) > 0:
			written[min(t.node, 1)] = t.calls[0].from
		case t.name == linkReader && t.woken:
			if sent := written[1-min(t.node, 1)]; sent > now.from && sent < t.ready {
				t.ready = sent
			}
		case leads && t.name == mainLoop && proposed:
			t.number = commit
		case leads && t.name == mainLoop:
			proposed = true
		case leads && t.name == theWriter && now.to == 0 && len(t.calls) > 0:
			now.to = t.calls[0].to
		}
	}
	if len(passages) > 0 {
		passages = passages[:len(passages)-1] // it may not be whole
	}
	return slices.DeleteFunc(passages, func(p *passage) bool { return p.to == 0 })
}

// typical is the message of median duration.
func typical(all []*passage) *passage {
	all = slices.SortedFunc(slices.Values(all), func(a, b *passage) int { return cmp.Compare(a.lasted(), b.lasted()) })
	return all[(len(all)-1)/2]
}
