package election

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// wires are links to some nodes that keep what is sent.
type wires struct {
	Links
	alive []string
	sent  map[string][]Item // by node
}

func (w *wires) Peers() (all []peer.PeerStatus) {
	for _, n := range []string{"n2", "n3", "n4", "n5"} {
		all = append(all, peer.PeerStatus{Node: n, Alive: slices.Contains(w.alive, n)})
	}
	return all
}

func (w *wires) Send(node string, _ peer.Kind, head []byte, _ ...[]byte) error {
	if w.sent == nil {
		w.sent = map[string][]Item{}
	}
	for ; len(head) >= ItemSize; head = head[ItemSize:] {
		w.sent[node] = append(w.sent[node], ParseItem(head))
	}
	return nil
}

// evidence is what a store knows of a past.
type evidence struct {
	doubt  string
	err    error
	proofs int
}

func (e *evidence) Doubt() string { return e.doubt }

func (e *evidence) Prove() error {
	e.proofs++
	return e.err
}

// mustLearn returns the learners of n1 about one replica of group 7, a learner if its
// store has a doubt, and their log.
func mustLearn(m *pupil, e *evidence, alive ...string) (*Learners, *wires, *bytes.Buffer) {
	log, w := &bytes.Buffer{}, &wires{alive: alive}
	m.trust.Open(e, 1)
	s := &Learners{
		node: "n1", links: w, spawn: func(f func()) { f() }, slog: slog.New(slog.NewTextHandler(log, nil)),
		find: func(fsm.GroupID) replica.Learner { return m }, worker: worker.New(worker.Options{}), list: map[fsm.GroupID]*learner{},
	}
	if m.trust.IsLearner() {
		s.Begin(7, m)
	}
	return s, w, log
}

// Where its log ends says who leads in the learner's term or a later one, and
// sends an entry. Other voters say nothing, and learners that they are some.
func TestLearnerAnswers(t *testing.T) {
	for _, tc := range []struct {
		name     string
		member   *pupil
		doubt    string
		kind     byte // 0: no answer
		barriers int
	}{
		{"leader", &pupil{leads: true, term: 5, log: position(5, 9)}, "", learnerGoal, 1},
		{"leader of a later term", &pupil{leads: true, term: 6, log: position(6, 9)}, "", learnerGoal, 1},
		{"leader of an earlier term", &pupil{leads: true, term: 4, log: position(4, 9)}, "", 0, 0},
		{"follower", &pupil{term: 5, log: position(5, 9)}, "", 0, 0},
		{"learner", &pupil{term: 5, log: position(5, 9)}, "lost", learnerAsWell, 0},
		{"learner that leads in raft's eyes", &pupil{leads: true, term: 5, log: position(5, 9)}, "lost", learnerAsWell, 0},
	} {
		m := tc.member
		s, w, _ := mustLearn(m, &evidence{doubt: tc.doubt})
		s.receive("n2", AppendItem(nil, Item{Kind: learnerAsk, Group: 7, Term: 5}), nil)
		var want []Item
		switch tc.kind {
		case learnerGoal:
			want = []Item{{Kind: learnerGoal, Group: 7, Term: m.term, Position: m.log}}
		case learnerAsWell:
			want = []Item{{Kind: learnerAsWell, Group: 7, Term: m.term}}
		}
		if got := w.sent["n2"]; !slices.Equal(got, want) || m.barriers != tc.barriers {
			t.Errorf("%s: answers %+v and appends %d entries, want %+v, %d", tc.name, got, m.barriers, want, tc.barriers)
		}
	}
}

// Questions go to those members that can be reached, and become rarer: thousands
// may ask. Each is questions again at once when somebody may answer.
func TestQuestionsBecomeRarer(t *testing.T) {
	m := &pupil{term: 5}
	s, w, _ := mustLearn(m, &evidence{doubt: "lost"}, "n3")
	now := time.Unix(1000, 0)
	during := func(d time.Duration) (questions []string) {
		before := len(w.sent["n3"])
		for end := now.Add(d); now.Before(end); now = now.Add(learnerEvery) {
			s.check(now)
			if n := len(w.sent["n3"]); n > before {
				questions, before = append(questions, now.Sub(time.Unix(1000, 0)).String()), n
			}
		}
		return questions
	}
	if got, want := during(time.Minute), strings.Fields("0s 1s 3s 7s 15s 31s 47s"); !slices.Equal(got, want) {
		t.Errorf("questions at %v, want %v", got, want)
	}
	s.Hasten(8)
	if got := during(time.Second); len(got) != 0 {
		t.Errorf("questions at %v for another group's sake", got)
	}
	s.Hasten(7)
	if got, want := during(4*time.Second), strings.Fields("1m1s 1m2s 1m4s"); !slices.Equal(got, want) {
		t.Errorf("questions at %v, want %v", got, want)
	}
	if len(w.sent["n2"]) != 0 {
		t.Error("a node that is down is questions")
	}
}

// A group is stopped when those that can prove something are no majority, and
// that is said once; a leader that answers ends it.
func TestLearnersWithoutMajority(t *testing.T) {
	names := []string{"n1", "n2", "n3", "n4", "n5"}
	for _, tc := range []struct {
		members, others int // that are learners, too
		stuck           bool
	}{{1, 0, true}, {2, 0, true}, {3, 0, false}, {3, 1, true}, {4, 1, true}, {5, 1, false}, {5, 2, true}} {
		m := &pupil{term: 5, members: names[:tc.members]}
		s, _, log := mustLearn(m, &evidence{doubt: "lost"}, names[1:tc.members]...)
		now := time.Unix(1000, 0)
		for range 4 {
			s.check(now)
			for _, n := range names[1 : 1+tc.others] {
				s.receive(n, AppendItem(nil, Item{Kind: learnerAsWell, Group: 7, Term: 5}), nil)
			}
			now = now.Add(askLongest)
		}
		name := fmt.Sprintf("%d of %d", 1+tc.others, tc.members)
		if d := m.trust.Doubt(); d.Stuck != tc.stuck {
			t.Errorf("%s are learners: it stands still: %v", name, d.Stuck)
		}
		if said := strings.Count(log.String(), "group is stopped"); said != map[bool]int{true: 1}[tc.stuck] {
			t.Errorf("%s are learners: that is said %d times", name, said)
		}
		s.receive("n2", AppendItem(nil, Item{Kind: learnerGoal, Group: 7, Term: 5, Position: position(5, 9)}), nil)
		if m.trust.Doubt().Stuck {
			t.Errorf("%s are learners: it stands still although there is a leader", name)
		}
	}
}

// A learner that has come as far as its leader votes once that is durable, and
// not before.
func TestLearnerCloses(t *testing.T) {
	for _, err := range []error{nil, errors.New("the group is dropped")} {
		m, e := &pupil{term: 5, log: position(4, 20)}, &evidence{doubt: "lost", err: err}
		s, _, _ := mustLearn(m, e, "n2", "n3")
		now := time.Unix(1000, 0)
		s.check(now)
		s.receive("n2", AppendItem(nil, Item{Kind: learnerGoal, Group: 7, Term: 5, Position: position(5, 9)}), nil)
		if s.check(now); e.proofs != 0 || m.voted != 0 || len(s.list) != 1 {
			t.Errorf("it is proven before it has anything: %d times", e.proofs)
		}
		m.log = position(5, 9)
		s.check(now)
		if proven := err == nil; e.proofs != 1 || m.trust.IsLearner() == proven || (m.voted == 1) != proven || len(s.list) != 0 {
			t.Errorf("%v: it votes: %v, and is told so %d times", err, !m.trust.IsLearner(), m.voted)
		}
	}
}

// A leader's answer counts if raft takes entries from that leader, and if its
// log ends with an entry of its own; the first such answer stands.
func TestLearnerGoal(t *testing.T) {
	goal := func(term uint64, end replica.Position) Item {
		return Item{Kind: learnerGoal, Group: 7, Term: term, Position: end}
	}
	for _, tc := range []struct {
		name  string
		voted []Item
		want  replica.Position
	}{
		{"of an earlier term", []Item{goal(4, position(4, 9))}, replica.Position{}},
		{"its log ends with another's entry", []Item{goal(5, position(4, 9))}, replica.Position{}},
		{"of this term", []Item{goal(5, position(5, 9))}, position(5, 9)},
		{"of a later term", []Item{goal(6, position(6, 9))}, position(6, 9)},
		{"the first one stands", []Item{goal(5, position(5, 9)), goal(5, position(5, 11))}, position(5, 9)},
		{"of another group", []Item{{Kind: learnerGoal, Group: 8, Term: 5, Position: position(5, 9)}}, replica.Position{}},
	} {
		m := &pupil{term: 5}
		s := &Learners{node: "n1", worker: worker.New(worker.Options{}), list: map[fsm.GroupID]*learner{7: {group: m}}}
		s.find = func(fsm.GroupID) replica.Learner { return m }
		for _, it := range tc.voted {
			s.receive("n2", AppendItem(nil, it), nil)
		}
		if l := s.list[7]; l.goal != tc.want {
			t.Errorf("%s: the goal is %v, want %v", tc.name, l.goal, tc.want)
		}
	}
}

// A learner is up to date when its log is as up to date as its leader's was.
func TestLearnerReached(t *testing.T) {
	for _, tc := range []struct {
		goal, log replica.Position
		want      bool
	}{
		{replica.Position{}, position(5, 9), false}, // nobody has said where
		{position(5, 9), replica.Position{}, false},
		{position(5, 9), position(5, 8), false},
		{position(5, 9), position(4, 20), false}, // what it had before
		{position(5, 9), position(5, 9), true},
		{position(5, 9), position(6, 8), true}, // from a later leader
	} {
		l := &learner{group: &pupil{term: 5, log: tc.log}, goal: tc.goal}
		if got := l.reached(); got != tc.want {
			t.Errorf("goal %v, log %v: reached %v", tc.goal, tc.log, got)
		}
	}
}

// pupil is a replica that does nothing.
type pupil struct {
	trust    replica.Trust
	members  []string // nil: three
	leads    bool
	term     uint64
	log      replica.Position
	barriers int
	voted    int // how often that it votes
}

func (p *pupil) Trusted() *replica.Trust  { return &p.trust }
func (p *pupil) LastIndex() uint64        { return p.log.Index }
func (p *pupil) LogEnd() replica.Position { return p.log }
func (p *pupil) Votes()                   { p.voted++ }
func (p *pupil) IsClosed() bool           { return false }

func (p *pupil) Founders() []string {
	if p.members == nil {
		return []string{"n1", "n2", "n3"}
	}
	return p.members
}

func (p *pupil) Role() (raft.RaftState, uint64) {
	if p.leads {
		return raft.Leader, p.term
	}
	return raft.Follower, p.term
}

func (p *pupil) Barrier(time.Duration) error {
	p.barriers++
	return nil
}
