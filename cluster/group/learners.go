package group

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
)

// Pace of lessons.
const (
	lessonLook    = 50 * time.Millisecond // how often learners are looked at
	lessonFirst   = time.Second           // until a question is repeated, at first
	lessonLongest = 16 * time.Second      // later it takes longer, for there may be thousands
)

// lessons bring learners up to date. A learner asks the other members where
// the log of the leader ends; that one says so, and appends an entry, so that
// it sends something also if the queue is idle. Once the learner's log has come
// as far, it is a voter.
type lessons struct {
	node  string
	links links
	kind  peer.Kind                     // of its messages
	find  func(fsm.GroupID) participant // nil: there is none
	spawn func(f func())
	slog  *slog.Logger
	kick  kicks

	mu   sync.Mutex
	list map[fsm.GroupID]*lesson
}

// participant is what lessons need of a replica, learner or not.
type participant interface {
	trusted() *trust
	founders() []string // the members as the catalog has them: a learner may not know raft's
	role() (role raft.RaftState, term uint64)
	lastIndex() uint64
	standing() standing // how far the log reaches
	barrier() error     // appends an entry, if this replica leads
	proven()            // it is a learner no longer
	isClosed() bool
}

// lesson is about one learner on this node.
type lesson struct {
	member   participant
	goal     standing // where a leader's log ended after the learner had opened; zero: none has said so
	asked    time.Time
	pause    time.Duration   // until the next question
	learners map[string]bool // the others that cannot prove anything either, by the last answers
}

const (
	lessonAsk     = 1 // I am a learner; where does your log end?
	lessonGoal    = 2 // I lead, and it ends here
	lessonLearner = 3 // I am a learner, too
)

func newLessons(h *Host) *lessons {
	return &lessons{
		node: h.config.Node, links: h.config.Mesh, kind: h.config.KindLearner, slog: h.slog, spawn: h.spawn,
		find: h.participant, kick: newKicks(), list: map[fsm.GroupID]*lesson{},
	}
}

// participant returns a replica on this node, the catalog's among them, or nil.
func (h *Host) participant(id fsm.GroupID) participant {
	if id == catalogGroup {
		if k := h.catalog.Load(); k != nil && k.Started() {
			return k
		}
		return nil
	}
	if g := h.Group(id); g != nil && !g.IsLocal() {
		return g
	}
	return nil
}

// listen registers for messages.
func (s *lessons) listen() { s.links.Handle(s.kind, s.receive) }

// begin notes that a replica has opened as a learner.
func (s *lessons) begin(id fsm.GroupID, m participant) {
	s.mu.Lock()
	s.list[id] = &lesson{member: m}
	s.mu.Unlock()
	s.wake()
}

// hasten has questions asked again at once: somebody may answer who could not
// before.
func (s *lessons) hasten(ids ...fsm.GroupID) {
	s.mu.Lock()
	for id, l := range s.list {
		if len(ids) == 0 || slices.Contains(ids, id) {
			l.asked, l.pause = time.Time{}, 0
		}
	}
	s.mu.Unlock()
	s.wake()
}

func (s *lessons) wake() { s.kick.wake() }

func (s *lessons) run(stop <-chan struct{}) { s.kick.serve(stop, lessonLook, 0, s.look) }

// look advances every lesson and reports whether there are any.
func (s *lessons) look(now time.Time) bool {
	ask := map[string][]byte{}
	var learnt []*lesson
	s.mu.Lock()
	reached := reached(s.links, s.node)
	for id, l := range s.list {
		switch {
		case l.member.isClosed():
			delete(s.list, id)
		case l.reached():
			delete(s.list, id)
			learnt = append(learnt, l)
		case now.Sub(l.asked) >= l.pause:
			s.ask(id, l, now, reached, ask)
		}
	}
	some := len(s.list) > 0
	s.mu.Unlock()
	for node, items := range ask {
		s.send(node, items)
	}
	for _, l := range learnt {
		if err := l.member.trusted().prove(); err != nil {
			s.slog.Error("a learner cannot become a voter", "error", err)
			continue
		}
		l.member.proven()
	}
	return some
}

// ask asks those members that this node reaches. What they have said by now
// shows whether any leader can come. The caller holds mu.
func (s *lessons) ask(id fsm.GroupID, l *lesson, now time.Time, reached map[string]bool, to map[string][]byte) {
	if !l.asked.IsZero() || len(l.member.founders()) == 1 {
		s.judge(id, l)
	}
	l.asked, l.pause, l.learners = now, min(max(lessonFirst, 2*l.pause), lessonLongest), map[string]bool{}
	_, term := l.member.role()
	for _, node := range l.member.founders() {
		if node != s.node && reached[node] {
			to[node] = appendItem(to[node], item{kind: lessonAsk, group: id, term: term})
		}
	}
}

// judge says so when the members that can prove something have no majority.
func (s *lessons) judge(id fsm.GroupID, l *lesson) {
	all, unproven := len(l.member.founders()), 1+len(l.learners)
	stuck := 2*(all-unproven) <= all
	if !l.member.trusted().setStuck(stuck) || !stuck {
		return
	}
	s.slog.Error("group stands still: most of its replicas cannot prove what they have acknowledged, see operations.md, recover",
		"group", id, "replicas", all, "unproven", unproven)
}

// reached reports whether the learner holds everything that it can have
// acknowledged before: see DESIGN.md.
func (l *lesson) reached() bool {
	return l.goal != standing{} && l.member.lastIndex() > 0 && !l.member.standing().less(l.goal)
}

// receive takes questions and answers.
func (s *lessons) receive(from string, items []byte, _ []byte) {
	var answer []byte
	var led []participant
	for ; len(items) >= itemSize; items = items[itemSize:] {
		it := parseItem(items)
		m := s.find(it.group)
		if m == nil || !it.sound() {
			continue
		}
		if it.kind != lessonAsk {
			s.note(from, it)
			continue
		}
		role, term := m.role()
		switch {
		case m.trusted().unproven():
			answer = appendItem(answer, item{kind: lessonLearner, group: it.group, term: term})
		case role == raft.Leader && term >= it.term:
			answer = appendItem(answer, item{kind: lessonGoal, group: it.group, term: term, standing: m.standing()})
			led = append(led, m)
		}
	}
	if len(answer) > 0 {
		s.send(from, answer)
	}
	if len(led) > 0 {
		s.spawn(func() {
			for _, m := range led {
				_ = m.barrier() // one that no longer leads need not
			}
		})
	}
}

// note takes an answer. A leader counts only if raft takes entries from it
// here, and says where its log ends once there is an entry of its own in it: a
// log that ends with an earlier leader's says nothing about what that one had.
func (s *lessons) note(from string, it item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.list[it.group]
	if l == nil {
		return
	}
	_, term := l.member.role()
	switch {
	case it.kind == lessonLearner:
		l.learners[from] = true
	case it.kind == lessonGoal && it.term >= term && it.standing.term == it.term && l.goal == (standing{}):
		l.goal = it.standing
		l.member.trusted().setStuck(false)
		s.wake()
	}
}

func (s *lessons) send(node string, items []byte) {
	if err := s.links.Send(node, s.kind, items); err != nil {
		s.slog.Debug("learners do not ask", "node", node, "error", err)
	}
}
