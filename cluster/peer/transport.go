package peer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

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

// beats is what the answers to the heartbeats of a prompt group come to. Guarded by follower.mu.
type beats struct {
	term  uint64    // of the leader
	heard time.Time // when the last one was answered in that term; before, when the first one was sent
}

// beat is a heartbeat of a prompt group on its way.
type beat struct {
	t      *transport
	f      *follower
	link   *link
	args   *raft.AppendEntriesRequest
	answer chan beatAnswer // buffer 1
}

type beatAnswer struct {
	resp raft.AppendEntriesResponse
	err  error
}

// heartbeat sends one of a prompt group. Raft sends the next one 100 to 200 ms after this has returned, and
// gives a leadership up for which no majority has answered within the lease, which cannot be changed while
// it runs. With the answers a second away it could not lead. So heartbeat returns at once, with the answer
// on its way, while the last answer is not older than the slack of the link: a leader's lease is longer by
// that. Where there is none it returns when the heartbeat has been answered.
func (t *transport) heartbeat(p *peer, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	l, err := p.waitLink(t.shutdown)
	if err != nil {
		return shutError(err)
	}
	b := &beat{t: t, f: t.followers.of(p.name), link: l, args: args, answer: make(chan beatAnswer, 1)}
	number, err := l.register(b, true)
	if err != nil {
		return err
	}
	if err := l.out.push(header{kind: kindAppend, arg: uint32(t.group), number: number}, appendBody{args, false}, classOwn, urgent); err != nil {
		l.unregister(number)
		return err
	}
	if b.f.lives(args.Term, time.Now()) <= time.Duration(p.slack.Load()) {
		*resp = raft.AppendEntriesResponse{RPCHeader: args.RPCHeader, Term: args.Term, Success: true}
		return nil
	}
	select {
	case a := <-b.answer:
		*resp = a.resp
		return a.err
	case <-t.shutdown:
		l.unregister(number)
		return ErrClosed
	}
}

// complete implements completer.
func (b *beat) complete(fr frame, err error) {
	a := beatAnswer{err: err}
	if a.err == nil {
		a.err = b.link.answered(fr, &a.resp, b.args.Term)
	}
	if a.err == nil {
		b.f.beat(b.args.Term, time.Now())
		b.t.heed(&a.resp, b.args, b.link.p.name)
	}
	b.answer <- a
}

// heed looks at the term in the answer to a heartbeat. Raft does not, and would go on to lead nobody.
func (t *transport) heed(resp *raft.AppendEntriesResponse, args *raft.AppendEntriesRequest, from string) {
	if resp.Term > args.Term {
		t.stepDown(resp.Term, from, true)
	}
}

// lives returns for how long the member has not answered a heartbeat in a term of this leader.
func (f *follower) lives(term uint64, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive.term != term {
		f.alive = beats{term, now}
	}
	return now.Sub(f.alive.heard)
}

// beat notes an answer.
func (f *follower) beat(term uint64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive.term == term {
		f.alive.heard = now
	}
}

// reminder is a request without entries on its way, for whose answer nobody waits.
type reminder struct {
	t      *transport
	link   *link
	args   *raft.AppendEntriesRequest
	behind func(entries bool)
}

// Remind sends a member what raft would by its timers: who leads in which term, and up to where the log is
// committed. It costs no wake-up, since it goes with the next ping, and does not wait. behind is called if the
// member has not taken it, though it answers; entries: because it lacks some. behind must not block.
func (t *transport) Remind(node string, args *raft.AppendEntriesRequest, behind func(entries bool)) {
	l, err := t.m.link(node)
	if err != nil {
		return // it is reminded when there is one
	}
	r := &reminder{t, l, args, behind}
	number, err := l.register(r, true)
	if err != nil {
		return
	}
	if l.out.push(header{kind: kindAppend, arg: uint32(t.group), number: number}, appendBody{args, true}, classOwn, urgency(false)) != nil {
		l.unregister(number)
	}
}

// complete implements completer.
func (r *reminder) complete(fr frame, err error) {
	var resp raft.AppendEntriesResponse
	if err == nil {
		err = r.link.answered(fr, &resp, r.args.Term)
	}
	switch {
	case notReady(err):
		r.behind(false)
	case err != nil || resp.Success:
	case resp.Term > r.args.Term:
		r.t.heed(&resp, r.args, r.link.p.name)
	default:
		r.t.Lacks(r.link.p.name, r.args.Term, min(resp.LastLog, r.args.PrevLogEntry-1))
		r.behind(true)
	}
}
