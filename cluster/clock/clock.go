package clock

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
)

const (
	// keep is how many readings of another node's clock are compared: the one with the shortest
	// round trip is used.
	keep = 8
	// fresh is how long a reading remains valid.
	fresh = 3 * time.Second
	// grain is the smallest change that the clock follows. Readings of equal clocks differ by that
	// much.
	grain = 5 * time.Millisecond
	// UpdateInterval is how often Update should be called.
	UpdateInterval = 500 * time.Millisecond
)

// Config holds what a Clock is based on.
type Config struct {
	Node  string
	Nodes []string // all nodes of the cluster, this one included
	// Wall is this node's wall clock. It may step.
	Wall func() time.Time
	// Monotonic counts from an arbitrary instant and never runs backwards.
	Monotonic func() time.Duration
	// MaxSkew is the limit on differences between wall clocks.
	MaxSkew func() fsm.Millis
	Logger  *slog.Logger
}

// Clock is a node's clock. All methods may be called from any goroutine.
type Clock struct {
	config Config
	anchor time.Duration // what the wall clock showed when Monotonic was 0
	state  atomic.Pointer[state]

	mu     sync.Mutex
	nodes  []string // of the cluster
	peers  map[string]*readings
	own    reading       // of this node's wall clock
	median time.Duration // of all, against the steady clock, when last known
	skewed bool
	agreed chan struct{} // closed once a majority has agreed
	read   time.Duration // Monotonic when a majority had first been read
	ahead  []func()

	refused  atomic.Uint64
	logAhead atomic.Int64 // ms
	warned   struct{ refusal, logAhead pause }
}

// state is what stampers need to know.
type state struct {
	// offset of the corrected clock from the steady one.
	offset time.Duration
	// agreed: a majority of the wall clocks has agreed on offset. sampled: a majority has been read.
	agreed, sampled bool
	maxSkew         fsm.Millis
}

// readings holds the latest readings of another node's clock.
type readings struct {
	ring [keep]reading
	next int
}

type reading struct {
	offset    time.Duration // against this node's steady clock
	roundTrip time.Duration
	at        time.Duration // Monotonic; 0: none
}

// New returns the clock of a node that has not heard from the others yet.
func New(c Config) *Clock {
	k := &Clock{config: c, peers: map[string]*readings{}, agreed: make(chan struct{})}
	k.anchor = k.readOwn().offset
	k.state.Store(&state{maxSkew: c.MaxSkew()})
	k.SetNodes(c.Nodes)
	return k
}

// SetNodes sets the nodes of the cluster, including this one; none as long as they are not known.
// That this node has agreed with itself while it knew of no other says nothing about them: a process
// that starts may be told of its cluster's nodes one by one.
func (c *Clock) SetNodes(names []string) {
	c.mu.Lock()
	next := map[string]*readings{}
	if len(c.nodes) <= 1 && len(names) > 1 {
		alone := *c.state.Load()
		if alone.agreed {
			c.agreed = make(chan struct{})
		}
		alone.agreed, alone.sampled = false, false
		c.state.Store(&alone)
	}
	for _, name := range names {
		if name == c.config.Node {
			continue
		}
		if next[name] = c.peers[name]; next[name] == nil {
			next[name] = &readings{}
		}
	}
	c.nodes, c.peers = slices.Clone(names), next
	c.mu.Unlock()
	c.Update()
}

// wallDuration returns the time since the epoch, limited to the range of a Duration.
func wallDuration(t time.Time) time.Duration {
	const limit = 1 << 62 / int64(time.Second) // the year 2116
	switch s := t.Unix(); {
	case s < 0:
		return 0
	case s >= limit:
		return time.Duration(limit) * time.Second
	}
	return time.Duration(t.UnixNano())
}

func instant(d time.Duration) fsm.Time { return fsm.Time(d / time.Millisecond) }

// Monotonic returns the monotonic clock.
func (c *Clock) Monotonic() time.Duration { return c.config.Monotonic() }

// Steady returns what the wall clock showed at the start, plus the monotonic time since: nothing
// disturbs it, so it is good for durations.
func (c *Clock) Steady() fsm.Time { return instant(c.anchor + c.config.Monotonic()) }

// Now returns the steady clock, corrected to the median of the wall clocks.
func (c *Clock) Now() fsm.Time {
	return instant(c.anchor + c.config.Monotonic() + c.state.Load().offset)
}

// WhenAhead registers f to be called whenever the corrected clock has moved ahead by itself, so
// that whatever waits for an instant checks again. f must not block.
func (c *Clock) WhenAhead(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = append(c.ahead, f)
}

// Read records a reading of another node's wall clock that has arrived. now is what Monotonic showed
// before roundTrip was taken, so that a pause between the two makes the reading less certain, not wrong.
func (c *Clock) Read(node string, wall fsm.Time, now, roundTrip time.Duration) {
	c.mu.Lock()
	p := c.peers[node]
	if p == nil || roundTrip < 0 {
		c.mu.Unlock()
		return
	}
	p.add(reading{wallDuration(time.UnixMilli(int64(wall))) - c.anchor - now + roundTrip/2, roundTrip, max(now, 1)})
	c.mu.Unlock()
	c.Update()
}

// readOwn reads this node's wall clock. A pause meanwhile makes the reading less certain.
func (c *Clock) readOwn() reading {
	before := c.config.Monotonic()
	wall := wallDuration(c.config.Wall())
	now := c.config.Monotonic()
	return reading{wall - c.anchor - before + (before-now)/2, now - before, now}
}

// nearest is what the clock may show that is closest to offset.
func (r reading) nearest(offset time.Duration) time.Duration {
	return min(max(offset, r.offset-r.roundTrip/2), r.offset+r.roundTrip/2)
}

// add adds a reading. Older ones that it contradicts are of a clock that has been set since.
func (p *readings) add(r reading) {
	for i, x := range p.ring {
		if (x.offset - r.nearest(x.offset)).Abs() > x.roundTrip/2+grain {
			p.ring[i] = reading{}
		}
	}
	p.ring[p.next] = r
	p.next = (p.next + 1) % keep
}

// best returns the reading to use, if there is a fresh one.
func (p *readings) best(now time.Duration) (r reading, ok bool) {
	for _, x := range p.ring {
		if x.at != 0 && now-x.at <= fresh && (!ok || x.roundTrip < r.roundTrip) {
			r, ok = x, true
		}
	}
	return r, ok
}

// Update compares the clocks again. It should be called every UpdateInterval.
func (c *Clock) Update() {
	for _, f := range c.update() {
		f()
	}
}

// update returns the functions to call because the clock has moved ahead.
func (c *Clock) update() (ahead []func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.state.Load()
	c.own = c.readOwn()
	now := c.own.at
	votes, near := c.votes(now, before.offset)
	next := &state{offset: before.offset, agreed: before.agreed, sampled: before.sampled, maxSkew: c.config.MaxSkew()}
	majority := len(c.nodes)/2 + 1
	if len(votes) >= majority {
		c.median, _ = median(votes)
		low, high := median(near)
		switch agreed := agree(near, majority, time.Duration(next.maxSkew)*time.Millisecond); {
		case !before.agreed:
			next.offset, next.agreed = low, agreed
		case agreed:
			next.offset = min(max(before.offset, low), high)
		}
		if (next.offset - before.offset).Abs() < grain {
			next.offset = before.offset // at first none: a right clock is not corrected
		}
		c.updateAlarm(next.maxSkew)
		if next.sampled = true; !before.sampled {
			c.read = now
		}
		if next.agreed && !before.agreed {
			close(c.agreed)
		}
	}
	if *next != *before {
		c.state.Store(next)
		if next.offset > before.offset || next.agreed != before.agreed {
			ahead = c.ahead
		}
	}
	return ahead
}

// votes returns the wall clocks that can be read, relative to the steady clock. near has what each
// of them may show that is closest to offset: a reading is uncertain by half of its round trip, and
// says nothing against an offset within that. A node alone uses what its clock showed when it
// started: nobody can tell whether a step made it right or wrong.
func (c *Clock) votes(now, offset time.Duration) (votes, near []time.Duration) {
	if len(c.nodes) <= 1 { // none: the catalog has nothing yet
		return []time.Duration{0}, []time.Duration{0}
	}
	votes, near = append(votes, c.own.offset), append(near, c.own.nearest(offset))
	for _, p := range c.peers {
		if r, ok := p.best(now); ok {
			votes, near = append(votes, r.offset), append(near, r.nearest(offset))
		}
	}
	return votes, near
}

// lowest returns the lowest time that the wall clocks of a majority may show, of those that are not
// behind last by more than the skew: these are wrong, if last is right. One of a majority is right
// as long as only a minority is wrong, so the true time is not less. 0: a majority is not known, or
// none of it is left.
func (c *Clock) lowest(last fsm.Time) (t fsm.Time) {
	now := c.config.Monotonic()
	c.mu.Lock()
	defer c.mu.Unlock()
	known, behind := 1, last-fsm.Time(c.state.Load().maxSkew)
	note := func(r reading) {
		least, most := instant(c.anchor+now+r.offset-r.roundTrip/2), instant(c.anchor+now+r.offset+r.roundTrip/2)
		if most >= behind && (t == 0 || least < t) {
			t = least
		}
	}
	note(c.own)
	for _, p := range c.peers {
		if r, ok := p.best(now); ok {
			known++
			note(r)
		}
	}
	if known <= len(c.nodes)/2 {
		return 0
	}
	return t
}

// median sorts votes, of which there are some, and returns the one in the middle, or the two.
func median(votes []time.Duration) (low, high time.Duration) {
	slices.Sort(votes)
	return votes[(len(votes)-1)/2], votes[len(votes)/2]
}

// agree reports whether at least majority of the sorted votes lie within skew.
func agree(votes []time.Duration, majority int, skew time.Duration) bool {
	for i := majority - 1; i < len(votes); i++ {
		if votes[i]-votes[i-majority+1] <= skew {
			return true
		}
	}
	return false
}

// updateAlarm raises or clears the alarm about this node's own clock. mu is held.
func (c *Clock) updateAlarm(skew fsm.Millis) {
	off := c.own.offset - c.median
	if skewed := off.Abs() > time.Duration(skew)*time.Millisecond; skewed != c.skewed {
		c.skewed = skewed
		if skewed {
			c.config.Logger.Warn("wall clock of this node is wrong", "alarm", "clock_skew", "ahead", off.Round(time.Millisecond))
		} else {
			c.config.Logger.Info("wall clock of this node is right again", "ahead", off.Round(time.Millisecond))
		}
	}
}

// Agreed is closed once a majority of the clocks has agreed.
func (c *Clock) Agreed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agreed
}

// AgreementLeft is how long a new leader still waits for Agreed: clocks that disagree AgreementWait after a majority
// of them has been read will not agree because somebody waits.
func (c *Clock) AgreementLeft() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.Load().sampled {
		return AgreementWait
	}
	return max(0, AgreementWait-(c.config.Monotonic()-c.read))
}

// warnPause is how long further warnings of one kind are not logged: thousands of groups may issue
// them at once.
const warnPause = 10 * time.Second

// pause records when a warning was last logged, on the monotonic clock; 0: never.
type pause struct{ last atomic.Int64 }

// over reports whether a warning should be logged.
func (p *pause) over(now time.Duration) bool {
	last := p.last.Load()
	return (last == 0 || now-time.Duration(last) > warnPause) && p.last.CompareAndSwap(last, max(int64(now), 1))
}

// refuse records that a stamp did not follow the corrected clock ahead.
func (c *Clock) refuse(by fsm.Time) {
	c.refused.Add(1)
	if c.warned.refusal.over(c.config.Monotonic()) {
		c.config.Logger.Warn("clock jump refused", "alarm", "clock_jump_refused", "jump", time.Duration(by)*time.Millisecond)
	}
}

// began records by how much a log was ahead of the clock when this node began to lead its group.
func (c *Clock) began(ahead fsm.Time, skew fsm.Millis) {
	c.logAhead.Store(int64(ahead))
	if fsm.Millis(ahead) > skew && c.warned.logAhead.over(c.config.Monotonic()) {
		c.config.Logger.Warn("a log is ahead of the clock; its time runs at half speed", "ahead", time.Duration(ahead)*time.Millisecond)
	}
}

// Status describes the clocks as this node sees them.
type Status struct {
	Now     fsm.Time      // the corrected clock
	Offset  time.Duration // this node's wall clock against the median; positive: ahead
	Skewed  bool          // Offset exceeds MaxSkew
	MaxSkew fsm.Millis
	// Sampled: the clocks of a majority have been read. Agreed: a majority has
	// agreed within MaxSkew.
	Sampled, Agreed bool
	JumpsRefused    uint64
	LogAhead        fsm.Millis   // of the group that this node began to lead last
	Peers           []PeerStatus // by name
}

// PeerStatus describes another node's wall clock.
type PeerStatus struct {
	Node      string
	Known     bool          // what follows is known
	Offset    time.Duration // against this node's wall clock; positive: ahead
	RoundTrip time.Duration // of the reading
	Age       time.Duration // of the newest reading
}

// Status returns the current status.
func (c *Clock) Status() Status {
	now := c.config.Monotonic()
	s := Status{Now: c.Now(), JumpsRefused: c.refused.Load(), LogAhead: fsm.Millis(c.logAhead.Load())}
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.state.Load()
	s.Agreed, s.MaxSkew, s.Skewed = st.agreed, st.maxSkew, c.skewed
	if s.Sampled = st.sampled; s.Sampled {
		s.Offset = c.own.offset - c.median
	}
	for _, name := range c.nodes {
		if name != c.config.Node {
			s.Peers = append(s.Peers, c.peers[name].status(name, c.own.offset, now))
		}
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return s
}

func (p *readings) status(name string, own, now time.Duration) PeerStatus {
	s := PeerStatus{Node: name}
	newest := p.ring[(p.next+keep-1)%keep]
	if newest.at == 0 {
		return s
	}
	r, ok := p.best(now)
	if !ok {
		r = newest
	}
	return PeerStatus{Node: name, Known: true, Offset: r.offset - own, RoundTrip: r.roundTrip, Age: now - newest.at}
}
