package queues

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	redrivesAtOnce = 4 // queues
	// redriveSteps is how many steps of a redrive at a rate there are in a second, unless that is slow: what others do
	// waits for a step. redriveFew letters make a step, if they do not take longer than redriveLong.
	redriveSteps = 100
	redriveFew   = 10
	redriveLong  = 100 * time.Millisecond
	// redriveAgain is when a step that was proposed counts as lost: two of one place do no harm. redriveWait is the
	// pause before a redrive is looked at again that has to wait for letters to leave.
	redriveAgain = time.Second
	redriveWait  = 50 * time.Millisecond
	// redriveAhead is how many letters may be on their way before a redrive adds more.
	redriveAhead = 4096
)

// redriver goes on with the redrives of the queues that this node leads. It holds nothing: where a redrive is, and when
// it is time for the next step, the queue knows.
type redriver struct {
	node       *self.Node
	properties deadletter.Properties
	rounds     *worker.Queue[fsm.GroupID]
}

func newRedriver(n *self.Node, properties deadletter.Properties) *redriver {
	x := &redriver{node: n, properties: properties}
	x.rounds = worker.NewQueue(n.Guard, "redrive dead letters", redrivesAtOnce, x.round)
	x.rounds.Start()
	return x
}

// round proposes the next step of a queue's redrive, if it is time. Its effect causes the next round.
func (x *redriver) round(id fsm.GroupID) (again time.Duration) {
	g := x.node.Groups.Group(id)
	if g == nil || g.Leading() == 0 {
		return 0
	}
	var r *logpb.RedriveState
	var ahead uint64
	g.View(func(m *queue.Machine) {
		r, ahead = m.Outlook().Redrive, m.Stats().Outbox.Messages
	})
	if !queue.GoesOn(r) {
		return 0
	}
	if left := time.Duration(fsm.Time(r.Paced)-g.Now()) * time.Millisecond; left > 0 {
		return left
	}
	if ahead >= redriveAhead {
		return redriveWait
	}
	v, fresh := x.node.TryFresh(x.node.Life())
	if !fresh {
		return redriveAgain // what seems to be gone may be there
	}
	b := group.BatchOf(x.next(g, r, v))
	b.Light = true // it need not wait for what clients publish
	_ = g.Submit(b)
	return redriveAgain
}

// next is the command that a redrive goes on with.
func (x *redriver) next(g *group.Group, r *logpb.RedriveState, v *catalog.View) *logpb.Command {
	of := r.Redrive
	by, to := catalog.Client{User: of.By}, fsm.QueueID(of.Target)
	end := func(why string) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_REDRIVE, Redrive: &logpb.Redrive{Ends: r.Number, Why: fsm.Cut(why, fsm.MaxPauseText)}}
	}
	if from, ok := v.QueueByID(g.Spec().Queue); ok { // else it is about to end
		if _, err := v.TakeFrom(by, from.VHost, from.Name); err != nil {
			return end(err.Error())
		}
	}
	if to != 0 {
		q, ok := v.QueueByID(to)
		if !ok {
			return end("the queue that they go to is gone")
		}
		if _, err := v.UseQueue(by, catalog.Write, q.VHost, q.Name); err != nil {
			return end(err.Error())
		}
	}
	s := &peerpb.SelectRequest{}
	if err := proto.Unmarshal(of.Conditions, s); err != nil {
		return end(err.Error())
	}
	// They count from when it began.
	passed := uint64(max(g.Now()-fsm.Time(r.Since), 0))
	if s.OlderThan > 0 {
		s.OlderThan += passed
	}
	if s.YoungerThan > 0 {
		s.YoungerThan += passed
	}
	s.After, s.UpTo, s.Limit, s.Sources = r.Next, r.UpTo, stepOf(r), to == 0
	found := ready(g, s, x.properties)
	return &logpb.Command{Kind: logpb.Command_REDRIVE_STEP, RedriveStep: step(FoundOf(v, by, g.Spec().VHost, logpb.Take_REDRIVE, to, found), r, found.Seen)}
}

// stepOf is how many messages the next step of a redrive takes at most.
func stepOf(r *logpb.RedriveState) uint32 {
	n := uint64(MaxSelected)
	if rate := r.Redrive.Rate; rate > 0 {
		few := min(rate*uint64(redriveLong/time.Millisecond)/1000, redriveFew)
		n = min(n, max(rate/redriveSteps, few, 1))
	}
	if limit := r.Redrive.Limit; limit > 0 {
		n = min(n, limit-r.Taken)
	}
	return uint32(n)
}

// step takes what was found for a redrive. What cannot go to where it died stays.
func step(f *Found, r *logpb.RedriveState, seen uint64) *logpb.RedriveStep {
	return &logpb.RedriveStep{
		Number: r.Number, After: r.Next, Next: seen, Takes: f.Takes, SourceGone: f.SourceGone, NoSource: f.NoSource, Refused: f.Refused,
	}
}
