package peer

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// transport is the raft.Transport of one group. This file has its sending
// side; group.go has the receiving one.
type transport struct {
	m     *Mesh
	group fsm.GroupID
	judge Judge // nil: everything that makes sense is taken

	consumer  chan raft.RPC
	answers   chan raft.RPCResponse // of the requests in inflight, in order
	heartbeat atomic.Pointer[func(raft.RPC)]
	term      atomic.Uint64               // last one raft showed in an answer
	prompt    atomic.Bool                 // heartbeats do not wait
	withheld  atomic.Pointer[func() bool] // see Mesh.Withhold
	ctx       context.Context             // ends with shut
	end       context.CancelFunc
	shutdown  <-chan struct{} // of ctx

	mu       sync.Mutex
	shutting bool
	queue    []request // waiting for room in consumer
	queued   int       // bytes of queue
	held     int       // bytes of queue and inflight
	inflight []request // handed to raft and not answered, oldest first
	running  bool      // a goroutine waits for answers

	followers map[string]*follower
	snapshots atomic.Pointer[Snapshots]
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

func newTransport(m *Mesh, group fsm.GroupID, judge Judge) *transport {
	t := &transport{
		m: m, group: group, judge: judge,
		consumer: make(chan raft.RPC, depth),
		answers:  make(chan raft.RPCResponse, depth),
	}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.shutdown = t.ctx.Done()
	return t
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.consumer }

// LocalAddr implements raft.Transport.
func (t *transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.m.cfg.Node) }

// EncodePeer implements raft.Transport.
func (t *transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer implements raft.Transport.
func (t *transport) DecodePeer(p []byte) raft.ServerAddress { return raft.ServerAddress(p) }

// SetHeartbeatHandler implements raft.Transport.
func (t *transport) SetHeartbeatHandler(h func(raft.RPC)) { t.heartbeat.Store(&h) }

// Close drops the group; raft calls it at the end of its shutdown.
func (t *transport) Close() error {
	t.m.mu.Lock()
	if t.m.groups[t.group] == t {
		delete(t.m.groups, t.group)
	}
	t.m.mu.Unlock()
	t.shut()
	return nil
}

// AppendEntries implements raft.Transport. Without a link it waits for one, and
// where the other side is not ready for entries, until it is.
func (t *transport) AppendEntries(id raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	p, err := t.peer(id)
	if err != nil {
		return err
	}
	if isHeartbeat(args) {
		err = t.append(p, args, resp, classOwn, !t.prompt.Load())
		if err == nil && resp.Term > args.Term {
			// Raft does not look at the terms in the answers to heartbeats, and would
			// go on to lead nobody.
			t.stepDown(resp.Term, string(id), true)
		}
		return err
	}
	f := t.follower(p.name)
	f.busy.Add(1)
	defer f.busy.Add(-1)
	send := func(a *raft.AppendEntriesRequest) error { return t.append(p, a, resp, classRaft, false) }
	if err = send(args); notReady(err) {
		err = t.insist(args, resp, send)
	}
	if err == nil && resp.Success {
		f.acknowledged(args.Term, lastOf(args))
	}
	return err
}

func (t *transport) append(p *peer, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, c class, lazy bool) error {
	l, err := p.waitLink(t.shutdown)
	if err != nil {
		return shutError(err)
	}
	return t.request(l, kindAppend, appendBody{args, lazy}, c, urgency(!lazy), resp, args.Term)
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.ask(id, kindVote, voteBody(args), resp, args.Term)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.ask(id, kindPreVote, preVoteBody(args), resp, args.Term)
}

// TimeoutNow implements raft.Transport.
func (t *transport) TimeoutNow(id raft.ServerID, _ raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.ask(id, kindTimeoutNow, timeoutNowBody(args), resp, 0)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, _ raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.peer(id)
	if err != nil {
		return nil, err
	}
	return newPipeline(t, p), nil
}

// InstallSnapshot implements raft.Transport. Without a link it waits for one.
func (t *transport) InstallSnapshot(id raft.ServerID, _ raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	p, err := t.peer(id)
	if err != nil {
		return err
	}
	f := t.follower(p.name)
	f.busy.Add(1)
	defer f.busy.Add(-1)
	f.installing.Store(args.LastLogIndex)
	defer f.installing.Store(0)
	if err := t.sendSnapshot(p, args, resp, data); err != nil {
		return shutError(err)
	}
	if resp.Success { // before it counts as no longer installing
		f.acknowledged(args.Term, args.LastLogIndex)
	}
	return nil
}

func (t *transport) peer(id raft.ServerID) (*peer, error) {
	if p := t.m.peer(string(id)); p != nil {
		return p, nil
	}
	return nil, ErrUnknownNode
}

// ask makes a request that is no use later: without a link it fails at once.
func (t *transport) ask(id raft.ServerID, k Kind, b body, resp any, term uint64) error {
	l, err := t.m.link(string(id))
	if err != nil {
		return err
	}
	return t.request(l, k, b, classOwn, urgent, resp, term)
}

func (t *transport) request(l *link, k Kind, b body, c class, u urgency, resp any, term uint64) error {
	f, err := l.exchange(t.shutdown, header{kind: k, arg: uint32(t.group)}, b, c, u)
	if err != nil {
		return shutError(err)
	}
	return l.answered(f, resp, term)
}

// shutError turns the end of a wait into what it means for raft.
func shutError(err error) error {
	if errors.Is(err, errAbandoned) {
		return ErrClosed
	}
	return err
}
