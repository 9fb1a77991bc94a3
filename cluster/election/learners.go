package election

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// Times of questions.
const (
	learnerEvery = 50 * time.Millisecond // how often learners are checked
	askFirst     = time.Second           // until a question is repeated, at first
	askLongest   = 16 * time.Second      // later it takes longer, for there may be thousands
)

// Learners are brought up to date. A learner asks the other members where
// the log of the leader ends; that one says so, and appends an entry, so that
// it sends something also if the queue is idle. Once the learner's log has come
// as far, it is a voter.
type Learners struct {
	node   string
	links  Links
	kind   peer.Kind                         // of its messages
	find   func(fsm.GroupID) replica.Learner // nil: there is none
	spawn  func(f func())
	slog   *slog.Logger
	worker *worker.Worker

	mu   sync.Mutex
	list map[fsm.GroupID]*learner
}

// learner is one learner on this node.
type learner struct {
	group   replica.Learner
	goal    replica.Position // where a leader's log ended after the learner had opened; zero: none has said so
	queried time.Time
	pause   time.Duration   // until the next question
	others  map[string]bool // members that cannot prove anything either, by the last answers
}

const (
	learnerAsk    = 1 // I am a learner; where does your log end?
	learnerGoal   = 2 // I lead, and it ends here
	learnerAsWell = 3 // I am a learner, too
)

// NewLearners returns the learners of a node, of which it has none.
func NewLearners(c Config, find func(fsm.GroupID) replica.Learner) *Learners {
	return &Learners{
		node: c.Node, links: c.Links, kind: c.Kind, slog: c.Logger, spawn: c.Spawn,
		find: find, worker: worker.New(worker.Options{}), list: map[fsm.GroupID]*learner{},
	}
}

// Listen registers for messages.
func (s *Learners) Listen() { s.links.Handle(s.kind, s.receive) }

// Begin notes that a replica has opened as a learner.
func (s *Learners) Begin(id fsm.GroupID, g replica.Learner) {
	s.mu.Lock()
	s.list[id] = &learner{group: g}
	s.mu.Unlock()
	s.worker.Wake()
}

// Hasten repeats the questions at once: somebody may answer who could not
// before.
func (s *Learners) Hasten(ids ...fsm.GroupID) {
	s.mu.Lock()
	for id, l := range s.list {
		if len(ids) == 0 || slices.Contains(ids, id) {
			l.queried, l.pause = time.Time{}, 0
		}
	}
	s.mu.Unlock()
	s.worker.Wake()
}

// Run advances learners until stop is closed.
func (s *Learners) Run(stop <-chan struct{}) {
	s.worker.Run(stop, func(now time.Time) time.Duration {
		if s.check(now) {
			return learnerEvery
		}
		return 0
	})
}

// check advances every learner and reports whether there are any.
func (s *Learners) check(now time.Time) bool {
	ask := map[string][]byte{}
	var learnt []*learner
	s.mu.Lock()
	reached := reached(s.links, s.node)
	for id, l := range s.list {
		switch {
		case l.group.IsClosed():
			delete(s.list, id)
		case l.reached():
			delete(s.list, id)
			learnt = append(learnt, l)
		case now.Sub(l.queried) >= l.pause:
			s.ask(id, l, now, reached, ask)
		}
	}
	some := len(s.list) > 0
	s.mu.Unlock()
	for node, items := range ask {
		s.send(node, items)
	}
	for _, l := range learnt {
		if err := l.group.Trusted().Prove(); err != nil {
			s.slog.Error("a learner cannot become a voter", "error", err)
			continue
		}
		l.group.Votes()
	}
	return some
}

// ask asks those members that this node reaches. What they have said by now
// shows whether any leader can come. The caller holds mu.
func (s *Learners) ask(id fsm.GroupID, l *learner, now time.Time, reached map[string]bool, to map[string][]byte) {
	if !l.queried.IsZero() || len(l.group.Founders()) == 1 {
		s.evaluate(id, l)
	}
	l.queried, l.pause, l.others = now, min(max(askFirst, 2*l.pause), askLongest), map[string]bool{}
	_, term := l.group.Role()
	for _, node := range l.group.Founders() {
		if node != s.node && reached[node] {
			to[node] = AppendItem(to[node], Item{Kind: learnerAsk, Group: id, Term: term})
		}
	}
}

// evaluate says so when the members that can prove something have no majority.
func (s *Learners) evaluate(id fsm.GroupID, l *learner) {
	all, unproven := len(l.group.Founders()), 1+len(l.others)
	stuck := 2*(all-unproven) <= all
	if !l.group.Trusted().SetStuck(stuck) || !stuck {
		return
	}
	s.slog.Error("group is stopped: most of its replicas cannot prove what they have acknowledged, see operations.md, recover",
		"group", id, "replicas", all, "unproven", unproven)
}

// reached reports whether the learner holds everything that it can have
// acknowledged before: see DESIGN.md.
func (l *learner) reached() bool {
	return l.goal != replica.Position{} && l.group.LastIndex() > 0 && !l.group.LogEnd().Less(l.goal)
}

// receive takes questions and answers.
func (s *Learners) receive(from string, items []byte, _ []byte) {
	var answer []byte
	var led []replica.Learner
	for ; len(items) >= ItemSize; items = items[ItemSize:] {
		it := ParseItem(items)
		m := s.find(it.Group)
		if m == nil || !it.sound() {
			continue
		}
		if it.Kind != learnerAsk {
			s.note(from, it)
			continue
		}
		role, term := m.Role()
		switch {
		case m.Trusted().IsLearner():
			answer = AppendItem(answer, Item{Kind: learnerAsWell, Group: it.Group, Term: term})
		case role == raft.Leader && term >= it.Term:
			answer = AppendItem(answer, Item{Kind: learnerGoal, Group: it.Group, Term: term, Position: m.LogEnd()})
			led = append(led, m)
		}
	}
	if len(answer) > 0 {
		s.send(from, answer)
	}
	if len(led) > 0 {
		s.spawn(func() {
			for _, m := range led {
				_ = m.Barrier(replica.ChangeWait) // one that no longer leads need not
			}
		})
	}
}

// note takes an answer. A leader counts only if raft takes entries from it
// here, and says where its log ends once there is an entry of its own in it: a
// log that ends with an earlier leader's says nothing about what that one had.
func (s *Learners) note(from string, it Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.list[it.Group]
	if l == nil {
		return
	}
	_, term := l.group.Role()
	switch {
	case it.Kind == learnerAsWell:
		l.others[from] = true
	case it.Kind == learnerGoal && it.Term >= term && it.Position.Term == it.Term && l.goal == (replica.Position{}):
		l.goal = it.Position
		l.group.Trusted().SetStuck(false)
		s.worker.Wake()
	}
}

func (s *Learners) send(node string, items []byte) {
	if err := s.links.Send(node, s.kind, items); err != nil {
		s.slog.Debug("learners could not be reported", "node", node, "error", err)
	}
}
