package peer

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

const (
	// depth is how many requests raft is given at a time. Its loop finds the
	// next one without waiting for a goroutine to bring it.
	depth = 8
	// maxQueued and maxQueuedBytes bound what waits for raft per group: a full
	// pipeline window, and reserve for votes and heartbeats.
	maxQueued      = window + 32
	maxQueuedBytes = 2 * windowBytes
)

// request is one of raft that came from another node.
type request struct {
	in      *inbound // who asks; nil: this node itself, no answer
	number  uint64
	cmd     any
	size    int
	urgency urgency // of the answer
}

func (r *request) respond(response any, err error) {
	if r.in != nil {
		r.in.respond(r.number, response, err, r.urgency)
	}
}

// from names the node that asks.
func (r *request) from() string {
	if r.in != nil {
		return r.in.p.name
	}
	return ""
}

// deliver hands a request to its group. It does not block.
func (m *Mesh) deliver(group fsm.GroupID, r request) {
	m.mu.RLock()
	t := m.groups[group]
	m.mu.RUnlock()
	if t == nil {
		m.mu.Lock()
		if t = m.groups[group]; t == nil {
			held := m.held.add(group, r)
			m.mu.Unlock()
			if !held {
				r.respond(nil, ErrUnknownGroup)
			}
			return
		}
		m.mu.Unlock()
	}
	if a, ok := r.cmd.(*raft.AppendEntriesRequest); ok && isHeartbeat(a) && t.beat(a, &r) {
		return
	}
	t.enqueue(r)
}

// beat handles a heartbeat on the calling goroutine if that cannot mean a
// write: a term that raft has not shown yet would be stored.
func (t *transport) beat(a *raft.AppendEntriesRequest, r *request) bool {
	h := t.heartbeat.Load()
	if h == nil || a.Term != t.term.Load() {
		return false
	}
	(*h)(raft.RPC{Command: a, RespChan: r.in.beat})
	select {
	case resp := <-r.in.beat:
		r.respond(resp.Response, resp.Error)
	default: // raft has shut down
		r.respond(nil, ErrUnknownGroup)
	}
	return true
}

// enqueue hands r to raft, now or when it has room. A goroutine exists only
// while requests are unanswered.
func (t *transport) enqueue(r request) {
	if err := t.vet(r.cmd); err != nil {
		t.m.Complain(r.from(), "refused a request of raft", err)
		r.respond(nil, err)
		return
	}
	if t.withholds(&r) {
		return
	}
	t.mu.Lock()
	var refusal error
	switch {
	case t.shutting:
		refusal = ErrUnknownGroup
	case !t.affordable(r):
		refusal = ErrBusy
	case len(t.queue) == 0 && t.offer(r):
	case len(t.queue) >= maxQueued, len(t.queue) > 0 && t.queued+r.size > maxQueuedBytes:
		refusal = ErrBusy
	default:
		t.queue = append(t.queue, r)
		t.queued += r.size
	}
	if refusal == nil {
		t.holds(r.size)
	}
	if refusal == nil && !t.running {
		t.running = true
		t.m.goFunc(t.run)
	}
	t.mu.Unlock()
	if refusal != nil {
		r.respond(nil, refusal)
	}
}

// withholds answers what raft is not to see while the member must neither vote
// nor lead, and reports whether it has.
func (t *transport) withholds(r *request) bool {
	if yes := t.withheld.Load(); yes == nil || !(*yes)() {
		return false
	}
	switch cmd := r.cmd.(type) {
	case *raft.RequestPreVoteRequest:
		r.respond(&raft.RequestPreVoteResponse{RPCHeader: cmd.RPCHeader, Term: cmd.Term}, nil)
	case *raft.TimeoutNowRequest:
		r.respond(nil, ErrLearner)
	default:
		return false
	}
	return true
}

// offer gives r to raft if there is room. t.mu is held. The number of requests
// in flight never exceeds the buffer of answers, so raft never waits.
func (t *transport) offer(r request) bool {
	if len(t.inflight) >= depth {
		return false
	}
	select {
	case t.consumer <- t.rpc(r):
		t.inflight = append(t.inflight, r)
		return true
	default:
		return false
	}
}

func (t *transport) rpc(r request) raft.RPC {
	return raft.RPC{Command: r.cmd, RespChan: t.answers}
}

// run answers requests in the order in which raft gets them, which is the order
// in which it answers, until none is left.
func (t *transport) run() {
	for {
		t.mu.Lock()
		t.refill()
		switch {
		case t.shutting:
			t.refuseAll()
			return
		case len(t.inflight) == 0 && len(t.queue) == 0:
			t.running = false
			t.mu.Unlock()
			return
		case len(t.inflight) == 0:
			// Others (snapshots) fill the consumer.
			r := t.queue[0]
			t.mu.Unlock()
			t.offerWait(r)
		default:
			t.mu.Unlock()
			select {
			case a := <-t.answers:
				t.answered(a)
			case <-t.shutdown:
			}
		}
	}
}

// offerWait gives raft r, the oldest queued request, when it has room.
func (t *transport) offerWait(r request) {
	select {
	case t.consumer <- t.rpc(r):
		t.mu.Lock()
		t.dequeue()
		t.inflight = append(t.inflight, r)
		t.mu.Unlock()
	case <-t.shutdown:
	}
}

// refill moves requests from the queue to raft. t.mu is held.
func (t *transport) refill() {
	for len(t.queue) > 0 && t.offer(t.queue[0]) {
		t.dequeue()
	}
}

// dequeue removes the oldest queued request. t.mu is held.
func (t *transport) dequeue() {
	t.queued -= t.queue[0].size
	t.queue[0] = request{}
	t.queue = t.queue[1:]
	if len(t.queue) == 0 {
		t.queue = nil
	}
}

func (t *transport) answered(a raft.RPCResponse) {
	t.mu.Lock()
	r := t.inflight[0]
	n := copy(t.inflight, t.inflight[1:])
	t.inflight[n] = request{}
	t.inflight = t.inflight[:n]
	t.holds(-r.size)
	t.refill()
	t.mu.Unlock()
	if _, term := answerBody(a.Response); term > 0 {
		t.term.Store(term)
	}
	r.respond(a.Response, a.Error)
}

// refuseAll answers what raft, shut down, will not. It unlocks t.mu.
func (t *transport) refuseAll() {
	all := append(t.inflight, t.queue...)
	t.inflight, t.queue, t.queued, t.running = nil, nil, 0, false
	t.holds(-t.held)
	t.mu.Unlock()
	for _, r := range all {
		r.respond(nil, ErrUnknownGroup)
	}
}

// shut fails everything pending in both directions.
func (t *transport) shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shutting = true
	t.end()
}

// campaign injects a TimeoutNow request.
func (t *transport) campaign() {
	h := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(t.m.cfg.Node), Addr: []byte(t.m.cfg.Node)}
	t.enqueue(request{cmd: &raft.TimeoutNowRequest{RPCHeader: h}})
}

// stepDown injects a request for a vote for another member, whose log is
// empty. agreed: as if the leader had asked it to campaign.
func (t *transport) stepDown(term uint64, other string, agreed bool) {
	h := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(other), Addr: []byte(other)}
	t.enqueue(request{cmd: &raft.RequestVoteRequest{RPCHeader: h, Term: term, LeadershipTransfer: agreed}})
}

// Transport returns the raft transport of a group; the same one until the
// group is dropped. Its ServerID and ServerAddress are both the node's name.
//
// Entries handed to it are kept by reference until sent: nobody may change
// their Data and Extensions. AppendEntries and InstallSnapshot wait for a broken
// link (Config.ReconnectWait), so DropGroup must be called between
// Raft.Shutdown and waiting for its future, or that wait may take as long.
func (m *Mesh) Transport(group fsm.GroupID) raft.Transport { return m.TransportFor(group, nil) }

// TransportFor is Transport for a group whose judge says what it takes; that
// counts where the transport is made.
func (m *Mesh) TransportFor(group fsm.GroupID, judge Judge) raft.Transport {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.groups[group]; t != nil {
		return t
	}
	t := newTransport(m, group, judge)
	if m.closed {
		t.shut()
		return t
	}
	m.groups[group] = t
	m.held.release(t)
	return t
}

const (
	maxHeld      = 4096
	maxHeldBytes = 16 << 20
)

// heldRequests wait for groups that do not exist yet. Mesh.mu guards it.
type heldRequests struct {
	m       *Mesh
	byGroup map[fsm.GroupID][]heldRequest
	count   int
	bytes   int
	timer   *time.Timer
	timing  bool
}

type heldRequest struct {
	request
	until time.Time
}

func (h *heldRequests) init(m *Mesh) {
	h.m = m
	h.byGroup = make(map[fsm.GroupID][]heldRequest)
}

// add holds r if there is room.
func (h *heldRequests) add(group fsm.GroupID, r request) bool {
	hold := h.m.cfg.HoldUnknown
	if hold < 0 || h.m.closed || h.count >= maxHeld || h.bytes+r.size > maxHeldBytes {
		return false
	}
	h.byGroup[group] = append(h.byGroup[group], heldRequest{r, time.Now().Add(hold)})
	h.count++
	h.bytes += r.size
	h.arm(hold)
	return true
}

func (h *heldRequests) arm(d time.Duration) {
	switch {
	case h.timing:
		return
	case h.timer == nil:
		h.timer = time.AfterFunc(d, h.expire)
	default:
		h.timer.Reset(d)
	}
	h.timing = true
}

// release gives a new group what was held for it.
func (h *heldRequests) release(t *transport) {
	for _, r := range h.byGroup[t.group] {
		h.count--
		h.bytes -= r.size
		t.enqueue(r.request)
	}
	delete(h.byGroup, t.group)
}

// expire refuses what has been held for too long.
func (h *heldRequests) expire() {
	var late []request
	h.m.mu.Lock()
	h.timing = false
	now := time.Now()
	for group, held := range h.byGroup {
		for len(held) > 0 && !held[0].until.After(now) {
			late = append(late, held[0].request)
			h.count--
			h.bytes -= held[0].size
			held = held[1:]
		}
		if h.byGroup[group] = held; len(held) == 0 {
			delete(h.byGroup, group)
		}
	}
	if h.count > 0 {
		h.arm(h.m.cfg.HoldUnknown/8 + time.Millisecond)
	}
	h.m.mu.Unlock()
	for i := range late {
		late[i].respond(nil, ErrUnknownGroup)
	}
}

// clear drops everything when the mesh closes.
func (h *heldRequests) clear() {
	if h.timer != nil {
		h.timer.Stop()
	}
	clear(h.byGroup)
	h.count, h.bytes = 0, 0
}
