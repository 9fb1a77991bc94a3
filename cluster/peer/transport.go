package peer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// transport is the raft.Transport of one group: it sends what the local member
// asks of others, and has an inbox for what they ask of it.
type transport struct {
	m         *Mesh
	group     fsm.GroupID
	inbox     *inbox
	followers followers
	snapshots atomic.Pointer[Snapshots] // nil: snapshots are sent whole
	prompt    atomic.Bool               // heartbeats do not wait
	ctx       context.Context           // ends with shut
	end       context.CancelFunc
	shutdown  <-chan struct{} // of ctx
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

func newTransport(m *Mesh, group fsm.GroupID, v Validator) *transport {
	t := &transport{m: m, group: group}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.shutdown = t.ctx.Done()
	t.inbox = newInbox(v, &m.groups, t.shutdown)
	return t
}

// shut fails everything pending in both directions.
func (t *transport) shut() {
	t.inbox.shut()
	t.end()
}

func (t *transport) log() *awaitedLog { return &t.inbox.log }

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.inbox.consumer }

// LocalAddr implements raft.Transport.
func (t *transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.m.cfg.Node) }

// EncodePeer implements raft.Transport.
func (t *transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer implements raft.Transport.
func (t *transport) DecodePeer(p []byte) raft.ServerAddress { return raft.ServerAddress(p) }

// SetHeartbeatHandler implements raft.Transport.
func (t *transport) SetHeartbeatHandler(h func(raft.RPC)) { t.inbox.heartbeat.Store(&h) }

// Close drops the group; raft calls it at the end of its shutdown.
func (t *transport) Close() error {
	t.m.groups.remove(t.group, t)
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
		if t.prompt.Load() {
			return t.heartbeat(p, args, resp)
		}
		err = t.append(p, args, resp, classOwn, true)
		if err == nil {
			t.heed(resp, args, p.name)
		}
		return err
	}
	f := t.followers.of(p.name)
	f.busy.Add(1)
	defer f.busy.Add(-1)
	send := func(a *raft.AppendEntriesRequest) error { return t.append(p, a, resp, classRaft, false) }
	written := t.log().written()
	if err = send(args); notReady(err) {
		err = t.insist(args, resp, send)
	}
	if err == nil && resp.Success {
		if err := t.log().await(written, t.shutdown); err != nil {
			return err
		}
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

// RequestVote implements raft.Transport. A vote that was given reaches raft when that of this member is durable, which
// raft counts with it.
func (t *transport) RequestVote(id raft.ServerID, _ raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	err := t.ask(id, kindVote, voteBody(args), resp, args.Term)
	if err == nil && resp.Granted {
		err = t.log().awaitVote(args.Term, t.shutdown)
	}
	return err
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
	f := t.followers.of(p.name)
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

// campaign has raft take a TimeoutNow request for one of its leader.
func (t *transport) campaign() {
	h := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(t.m.cfg.Node), Addr: []byte(t.m.cfg.Node)}
	t.inbox.enqueue(request{cmd: &raft.TimeoutNowRequest{RPCHeader: h}})
}

// stepDown has raft take a request for a vote for another member, see voteFor.
func (t *transport) stepDown(term uint64, other string, agreed bool) {
	t.inbox.enqueue(voteFor(other, term, agreed))
}

// voteFor asks for a vote for another member, whose log is empty, so that none is given. agreed: as if the
// leader had asked that one to campaign.
func voteFor(other string, term uint64, agreed bool) request {
	h := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(other), Addr: []byte(other)}
	return request{cmd: &raft.RequestVoteRequest{RPCHeader: h, Term: term, LeadershipTransfer: agreed}}
}
