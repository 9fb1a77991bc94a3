package traffic

import (
	"sync"
	"time"
)

// Series is what is known of one object. The table's lock guards it.
//
// Invariant: the sample of counter c at the newest slot is sampled[c], and the one k slots before it
// is sampled[c] - steps[c][newest] - … - steps[c][newest-k+1], each index modulo Kept; steps[c] nil
// stands for zeros.
type series struct {
	total   Counts // without what tallies hold
	sampled Counts
	last    [counters]int32 // steps to the newest sample, from the one before
	steps   [counters]*[Kept]int32
	idle    int // slots without a change, up to Kept

	busy    bool // it is on the table's list
	dropped bool // it is not in the table any more
}

// sample takes the sample of a slot, which is gap slots after the one before. keep: its steps are
// kept.
func (s *series) sample(slot, gap int64, keep bool) {
	if s.total == s.sampled {
		s.last = [counters]int32{}
		if s.idle += int(min(gap, Kept)); s.idle >= Kept {
			s.idle, s.steps = Kept, [counters]*[Kept]int32{}
			return
		}
	} else {
		s.idle = 0
	}
	for c := range s.total {
		step := clamp(int64(s.total[c] - s.sampled[c]))
		if s.last[c] = step; s.steps[c] == nil {
			if step == 0 || !keep {
				continue
			}
			s.steps[c] = new([Kept]int32)
		}
		for k := max(slot-gap+1, slot-Kept+1); k < slot; k++ {
			s.steps[c][k%Kept] = 0
		}
		s.steps[c][slot%Kept] = step
	}
	s.sampled = s.total
}

// forget drops the samples, and the rate with them. The counts stay.
func (s *series) forget() {
	s.sampled, s.last, s.steps = s.total, [counters]int32{}, [counters]*[Kept]int32{}
}

// clamp keeps a step within what is stored: two billions in five seconds.
func clamp(n int64) int32 { return int32(max(min(n, 1<<31-1), -1<<31)) }

// samples appends the samples of a counter to list, the newest first: count of them, each step slots
// before the one before. The first is that of slot at, or the newest one if that is older.
func (s *series) samples(list []uint64, c Counter, newest, at int64, r Range) []uint64 {
	value, steps, k := s.sampled[c], s.steps[c], newest
	for i := range r.Count {
		for want := max(at-int64(i*r.Step), newest-Kept+1); k > want; k-- {
			if steps != nil {
				value -= uint64(int64(steps[k%Kept]))
			}
		}
		list = append(list, value)
	}
	return list
}

// moment is when samples were taken. The zero value: there are none yet.
//
// Invariant: slot > 0 implies since >= shortest.
type moment struct {
	slot  int64
	at    time.Time
	since time.Duration // from the samples before, on the monotonic clock; of the first: Interval
}

// shortest is the least time that a rate is taken over. Samples that were late, or are the first,
// may be followed by others at once; what came in these few milliseconds says nothing of a second.
const shortest = time.Second

// next returns the moment of samples that follow those of m. It returns false if their slot is not
// above that of m: the same slot, or the clock was set back.
func (m moment) next(at time.Time) (moment, bool) {
	n := moment{slot: SlotAt(at), at: at, since: Interval}
	if n.slot <= m.slot {
		return m, false
	}
	if m.slot > 0 {
		n.since = max(at.Sub(m.at), shortest)
	}
	return n, true
}

// SizeBounds are the upper bounds of the sizes that are counted together, in bytes. They are those of
// RabbitMQ.
var SizeBounds = [...]int{100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000}

// Sizes counts the bodies of messages by their size.
type Sizes struct {
	Counts [len(SizeBounds) + 1]uint64 // up to each bound and above the one before; the last: larger ones
	Bytes  uint64                      // of all
}

func (s *Sizes) count(bytes int) {
	i := 0
	for i < len(SizeBounds) && bytes > SizeBounds[i] {
		i++
	}
	s.Counts[i]++
	s.Bytes += uint64(bytes)
}

func (s *Sizes) add(more *Sizes) {
	for i, n := range more.Counts {
		s.Counts[i] += n
	}
	s.Bytes += more.Bytes
}

// Level is one of the numbers of a node's process whose rates are known. Their order is that between
// nodes: new ones come at the end.
type Level uint8

// The levels. Those from Collections on only grow.
const (
	MemoryUsed Level = iota // bytes
	DiskFree                // bytes
	FilesUsed               // open descriptors
	Goroutines
	Collections     // of garbage
	BytesReclaimed  // of the heap, by collections
	ContextSwitches // of the threads
	BytesRead       // from storage
	BytesWritten    // to it
	LevelCount
)

// Levels has a number for each level.
type Levels [LevelCount]uint64

// LevelRates knows the changes in a second of the levels of a node. The zero value knows none.
type LevelRates struct {
	mu      sync.Mutex
	newest  moment // of the samples
	sampled Levels
	rates   [LevelCount]float64
}

// Sample takes the samples of a time's slot. The first ones give no rates. Nothing happens unless the
// slot is above that of the samples before.
func (r *LevelRates) Sample(at time.Time, now Levels) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, due := r.newest.next(at)
	if !due {
		return
	}
	if r.newest.slot > 0 {
		for i := range now {
			r.rates[i] = float64(int64(now[i]-r.sampled[i])) / next.since.Seconds()
		}
	}
	r.newest, r.sampled = next, now
}

// Rates are those between the newest samples.
func (r *LevelRates) Rates() [LevelCount]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rates
}

// Forget makes all rates zero until the next samples, which count from the newest ones.
func (r *LevelRates) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rates = [LevelCount]float64{}
}

// Flow is what an open connection has received and sent since it began, in octets.
type Flow struct {
	Connection FlowOf
	Octets     Octets
}

// FlowOf names a connection. Another one that gets the same name later has another time.
type FlowOf struct {
	Name     string
	OpenedAt int64 // ms since 1970
}

// Octets are those received and sent.
type Octets struct{ Received, Sent uint64 }

// FlowRate is a change in a second.
type FlowRate struct{ Received, Sent float64 }

// Flows knows the rates of the connections of a node. The zero value knows none. It holds no more
// than the connections that were open at the newest samples.
type Flows struct {
	mu     sync.Mutex
	newest moment // of the samples
	known  map[FlowOf]sampledFlow
}

type sampledFlow struct {
	octets Octets
	rate   FlowRate
}

// Sample takes the samples of a time's slot, of all open connections. A connection that was not open
// at the samples before begins with zero octets. Nothing happens unless the slot is above that of the
// samples before.
func (f *Flows) Sample(at time.Time, open []Flow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, due := f.newest.next(at)
	if !due {
		return
	}
	known, seconds := make(map[FlowOf]sampledFlow, len(open)), now.since.Seconds()
	for _, c := range open {
		more := c.Octets.since(f.known[c.Connection].octets)
		known[c.Connection] = sampledFlow{c.Octets, FlowRate{float64(more.Received) / seconds, float64(more.Sent) / seconds}}
	}
	f.newest, f.known = now, known
}

// since is what came after. Fewer octets than before are those of another connection: of clients
// whose sockets have no address, several may have one name.
func (o Octets) since(before Octets) Octets {
	if o.Received < before.Received || o.Sent < before.Sent {
		return o
	}
	return Octets{o.Received - before.Received, o.Sent - before.Sent}
}

// Rate is that of a connection, between the newest samples: zero until it is sampled.
func (f *Flows) Rate(of FlowOf) FlowRate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[of].rate
}

// Forget makes all rates zero until the next samples, which count from the newest ones.
func (f *Flows) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, s := range f.known {
		f.known[of] = sampledFlow{octets: s.octets}
	}
}
