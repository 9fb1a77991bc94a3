package group

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of one entry, and of what a group has under way.
const (
	maxEntryBytes    = 256 << 10
	maxEntryCommands = 512
	maxEntryLight    = maxEntryCommands / 2 // of these, commands that overtook others
	maxFlights       = 4
	maxFlightBytes   = 1 << 20
)

// Field numbers of logpb.Entry: version, now, commands.
const (
	fieldVersion  = 1
	fieldNow      = 2
	fieldCommands = 4
)

// Batch is a run of commands from one node.
type Batch struct {
	// Commands is the commands field of a logpb.Entry, encoded; see
	// AppendCommand. It belongs to the group from now on.
	Commands []byte
	Count    int
	// Payloads of the enqueues among the commands, in their order. Nobody
	// changes them any more.
	Payloads [][]byte
	Bytes    int    // sum of the payloads' lengths
	From     string // the submitting node; empty: this one
	// Light says that the batch may overtake batches that are not: nothing in
	// it has to follow anything in them. It has no payloads.
	Light bool
}

// AppendCommand appends c to the encoded commands of a batch.
func AppendCommand(dst []byte, c *logpb.Command) []byte {
	n := c.SizeVT()
	dst = protowire.AppendTag(dst, fieldCommands, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(n))
	at := len(dst)
	dst = append(dst, make([]byte, n)...)
	if _, err := c.MarshalToSizedBufferVT(dst[at:]); err != nil {
		panic(err) // a buffer of the computed size is always enough
	}
	return dst
}

// BatchOf returns a batch of commands without payloads.
func BatchOf(cs ...*logpb.Command) Batch {
	var b Batch
	for _, c := range cs {
		b.Commands = AppendCommand(b.Commands, c)
		b.Count++
	}
	return b
}

// proposer gathers what arrives while earlier entries are under way. Its two
// goroutines live only while there is something to do: one builds entries,
// the other waits for them.
type proposer struct {
	mu      sync.Mutex
	room    sync.Cond // signalled when a flight ends
	light   []Batch
	heavy   []Batch
	tick    bool
	running bool
	flights []flight
	waiting bool
	idle    chan struct{} // closed when neither runs any more; nil: nobody asks. See landed
	bytes   int
	commits uint64 // entries of a local queue that have been applied
	stamper clock.Stamper
	done    sync.WaitGroup
}

type flight struct {
	future raft.ApplyFuture
	bytes  int
	from   []string
}

// Submit queues commands for the log.
func (g *Group) Submit(b Batch) error {
	p := &g.proposer
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.Leading() == 0 {
		return ErrNotLeading
	}
	if !g.host.intake.take(&b) {
		return ErrFull
	}
	if b.Light {
		p.light = append(p.light, b)
	} else {
		p.heavy = append(p.heavy, b)
	}
	p.start(g)
	return nil
}

// proposeTick asks for an entry with a tick unless one is asked for already. It
// reports whether there will be one: not while the group takes no commands.
func (g *Group) proposeTick() bool {
	p := &g.proposer
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.Leading() == 0 {
		return false
	}
	if !p.tick {
		p.tick = true
		p.start(g)
	}
	return true
}

// start runs the proposer's goroutine if it does not run. The caller holds mu.
func (p *proposer) start(g *Group) {
	if !p.running {
		p.running = true
		g.host.watch.add(g)
		p.done.Add(1)
		go p.run(g)
	}
}

func (p *proposer) run(g *Group) {
	defer p.done.Done()
	defer g.contain("propose an entry")
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.ended()
	for {
		for len(p.flights) >= maxFlights || p.bytes >= maxFlightBytes {
			p.room.Wait()
		}
		if len(p.light) == 0 && len(p.heavy) == 0 && !p.tick {
			return
		}
		if g.leading.Load() == 0 {
			p.giveUp(g)
			continue
		}
		p.propose(g)
	}
}

// ended notes that the goroutine that builds entries ends. The caller holds mu.
func (p *proposer) ended() {
	p.running = false
	p.room.Broadcast()
	p.rested()
}

// giveUp reports everything that waits as undecided. The caller holds mu.
func (p *proposer) giveUp(g *Group) {
	from := origins(origins(nil, p.light), p.heavy)
	g.host.intake.put(p.light)
	g.host.intake.put(p.heavy)
	p.light, p.heavy, p.tick = drop(p.light, len(p.light)), drop(p.heavy, len(p.heavy)), false
	p.mu.Unlock()
	defer p.mu.Lock()
	g.undecided(from)
}

// undecided tells nodes that what they have submitted may be lost.
func (g *Group) undecided(from []string) {
	defer g.contain("report undecided commands")
	for _, f := range from {
		g.host.outside.Undecided(g, f)
	}
}

// propose makes one entry of what waits. The caller holds mu, which is
// released while raft takes the entry.
func (p *proposer) propose(g *Group) {
	light, commands := take(p.light, 0, maxEntryLight)
	heavy, _ := take(p.heavy, commands, maxEntryCommands)
	bytes := 0
	for i := range heavy {
		bytes += heavy[i].Bytes
	}
	log := raft.Log{Data: p.header(g.host.config.Version(), p.stamper.Next(), light, heavy)}
	if bytes > 0 {
		log.Extensions = joinPayloads(heavy, bytes)
	}
	f := flight{bytes: bytes + len(log.Data), from: origins(origins(nil, light), heavy)}
	g.host.intake.put(light)
	g.host.intake.put(heavy)
	p.light, p.heavy = drop(p.light, len(light)), drop(p.heavy, len(heavy))
	if f.future = p.enter(g, &log); f.future == nil {
		p.commits++
		p.room.Broadcast()
		return
	}
	p.bytes += f.bytes
	p.flights = append(p.flights, f)
	if !p.waiting {
		p.waiting = true
		p.done.Add(1)
		go p.land(g)
	}
}

// enter puts an entry into the log; nil: it has been applied. The caller holds
// mu, which is released meanwhile.
func (p *proposer) enter(g *Group, log *raft.Log) raft.ApplyFuture {
	p.mu.Unlock()
	defer p.mu.Lock()
	return g.order.commit(log)
}

// take returns the first of the batches that fit into an entry which has so
// many commands already, and how many it has then. One batch of each kind
// always fits.
func take(from []Batch, commands, most int) ([]Batch, int) {
	n, bytes := 0, 0
	for n < len(from) {
		b := &from[n]
		if n > 0 && (bytes+b.Bytes > maxEntryBytes || commands+b.Count > most) {
			break
		}
		commands, bytes = commands+b.Count, bytes+b.Bytes
		n++
	}
	return from[:n], commands
}

// drop removes the first n batches.
func drop(from []Batch, n int) []Batch {
	rest := append(from[:0], from[n:]...)
	clear(from[len(rest):])
	return rest
}

// header encodes the entry's header and clears the wish for a tick.
func (p *proposer) header(version uint32, now fsm.Time, light, heavy []Batch) []byte {
	size := 32
	for _, batches := range [][]Batch{light, heavy} {
		for i := range batches {
			size += len(batches[i].Commands)
		}
	}
	h := make([]byte, 0, size)
	h = protowire.AppendTag(h, fieldVersion, protowire.VarintType)
	h = protowire.AppendVarint(h, uint64(version))
	h = protowire.AppendTag(h, fieldNow, protowire.VarintType)
	h = protowire.AppendVarint(h, protowire.EncodeZigZag(int64(now)))
	for _, batches := range [][]Batch{light, heavy} {
		for i := range batches {
			h = append(h, batches[i].Commands...)
		}
	}
	if p.tick {
		p.tick = false
		h = AppendCommand(h, &tickCommand)
	}
	return h
}

var tickCommand = logpb.Command{Kind: logpb.Command_TICK}

func joinPayloads(batches []Batch, size int) []byte {
	if len(batches) == 1 && len(batches[0].Payloads) == 1 {
		return batches[0].Payloads[0]
	}
	out := make([]byte, 0, size)
	for i := range batches {
		for _, p := range batches[i].Payloads {
			out = append(out, p...)
		}
	}
	return out
}

// origins appends the distinct submitting nodes of batches to from.
func origins(from []string, batches []Batch) []string {
next:
	for i := range batches {
		for _, f := range from {
			if f == batches[i].From {
				continue next
			}
		}
		from = append(from, batches[i].From)
	}
	return from
}

// land waits for entries in their order and reports those that may have failed.
func (p *proposer) land(g *Group) {
	defer p.done.Done()
	for {
		p.mu.Lock()
		if len(p.flights) == 0 {
			p.waiting = false
			p.rested()
			p.mu.Unlock()
			return
		}
		f := p.flights[0]
		p.mu.Unlock()
		err := f.future.Error()
		p.mu.Lock()
		p.flights[0] = flight{}
		p.flights = p.flights[1:]
		p.bytes -= f.bytes
		p.room.Signal()
		p.mu.Unlock()
		if err != nil {
			g.timer.lost(g)
			g.settingsLost()
			g.undecided(f.from)
		}
	}
}

// begin makes the stamps of a term of office begin, not before last.
func (p *proposer) begin(c *clock.Clock, last fsm.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stamper.Begin(c, max(p.stamper.Last(), last))
}

// until is how long at least it takes until entries are stamped with t; 0:
// they are now.
func (p *proposer) until(t fsm.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stamper.Wait(t)
}

// wait returns when nothing is being proposed any more.
func (p *proposer) wait() { p.done.Wait() }
