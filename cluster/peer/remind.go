package peer

import "github.com/hashicorp/raft"

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
