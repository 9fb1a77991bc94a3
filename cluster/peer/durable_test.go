package peer

import (
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// lateLog is a log whose writes become durable when a test says so.
type lateLog struct {
	mu        sync.Mutex
	writes    uint64
	durable   uint64
	waiting   map[uint64][]func()
	votes     map[uint64]func() // in terms that are waited for
	questions chan uint64       // for what is not durable
}

func newLateLog() *lateLog {
	return &lateLog{waiting: map[uint64][]func(){}, votes: map[uint64]func(){}, questions: make(chan uint64, 100)}
}

// write returns the number of another write.
func (l *lateLog) write() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	return l.writes
}

func (l *lateLog) sync(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.durable < seq {
		l.durable++
		for _, f := range l.waiting[l.durable] {
			f()
		}
	}
}

func (l *lateLog) Written() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

func (l *lateLog) WhenDurable(seq uint64, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq <= l.durable {
		f()
		return
	}
	l.waiting[seq] = append(l.waiting[seq], f)
	l.questions <- seq
}

func (l *lateLog) WhenVoted(term uint64, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.votes[term] = f
	l.questions <- term
}

// voted says that the vote of a term is durable.
func (l *lateLog) voted(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.votes[term]()
}

// What followers acknowledge reaches the leader's raft when the leader's own write is durable: the
// last one before the request was sent, and none that came later.
func TestLeaderAnswersAwaitItsLog(t *testing.T) {
	c, pl, consumer := startPipeline(t)
	log := newLateLog()
	c.members["n1"].Await(1, log)
	for i := range uint64(3) {
		log.write()
		if _, err := pl.AppendEntries(pipelined(int(i), 10), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
	}
	log.write() // by another request's entries
	answerAll(consumer, 3)
	for i := range uint64(3) {
		if seq := mustReceive(t, log.questions, "the question whether it is durable"); seq != i+1 {
			t.Errorf("answer %d waits for write %d", i+1, seq)
		}
	}
	for i := range uint64(3) {
		select {
		case f := <-pl.Consumer():
			t.Fatalf("raft gets the answer for %d before its write is durable", f.Request().Entries[0].Index)
		default:
		}
		if got := c.members["n1"].Transport(1).(*transport).Reached("n2", 1).Index; got != i {
			t.Errorf("n2 counts as having %d entries, want %d", got, i)
		}
		log.sync(i + 1)
		if f := mustReceive(t, pl.Consumer(), "answer"); f.Request().Entries[0].Index != i+1 || f.Error() != nil {
			t.Errorf("answer %d is for %d, %v", i+1, f.Request().Entries[0].Index, f.Error())
		}
	}
}

// Without a pipeline the call itself waits, until the group ends at most.
func TestLeaderCallAwaitsItsLog(t *testing.T) {
	for name, end := range map[string]func(c *cluster, log *lateLog){
		"durable": func(_ *cluster, log *lateLog) { log.sync(1) },
		"dropped": func(c *cluster, _ *lateLog) { c.members["n1"].DropGroup(1) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _, consumer := startPipeline(t)
			log := newLateLog()
			c.members["n1"].Await(1, log)
			log.write()
			done := make(chan error, 1)
			trans := c.members["n1"].Transport(1)
			go func() { done <- trans.AppendEntries("n2", "n2", pipelined(0, 10), new(raft.AppendEntriesResponse)) }()
			answerAll(consumer, 1)
			mustReceive(t, log.questions, "the question whether it is durable")
			select {
			case err := <-done:
				t.Fatalf("it returns before the write is durable: %v", err)
			default:
			}
			end(c, log)
			if err := mustReceive(t, done, "the end of the call"); (err == nil) != (name == "durable") {
				t.Error(err)
			}
		})
	}
}

// A follower acknowledges what is durable on its disk. That it refuses entries it says at once.
func TestFollowerAnswersAwaitItsLog(t *testing.T) {
	c, pl, consumer := startPipeline(t)
	log := newLateLog()
	c.members["n2"].Await(1, log)
	if _, err := pl.AppendEntries(pipelined(0, 10), new(raft.AppendEntriesResponse)); err != nil {
		t.Fatal(err)
	}
	log.write()
	answerAll(consumer, 1)
	if seq := mustReceive(t, log.questions, "the question whether it is durable"); seq != 1 {
		t.Errorf("the answer waits for write %d", seq)
	}
	select {
	case <-pl.Consumer():
		t.Error("an entry is acknowledged before it is durable")
	case <-time.After(20 * time.Millisecond):
	}
	log.sync(1)
	mustReceive(t, pl.Consumer(), "answer")
	log.write()
	if _, err := pl.AppendEntries(pipelined(1, 10), new(raft.AppendEntriesResponse)); err != nil {
		t.Fatal(err)
	}
	rpc := mustReceive(t, consumer, "request")
	rpc.Respond(&raft.AppendEntriesResponse{Term: 1}, nil)
	if f := mustReceive(t, pl.Consumer(), "refusal"); f.Response().Success {
		t.Error("a refusal arrives as an acknowledgement")
	}
}

// askForVote has n1 ask n2 for its vote in term 7, which n2's raft answers.
func askForVote(t *testing.T, c *cluster, answered func(), granted bool) (*raft.RequestVoteResponse, <-chan error) {
	t.Helper()
	resp, done := new(raft.RequestVoteResponse), make(chan error, 1)
	trans, consumer := c.members["n1"].Transport(1), c.members["n2"].Transport(1).Consumer()
	go func() {
		h := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1"), Addr: []byte("n1")}
		done <- trans.RequestVote("n2", "n2", &raft.RequestVoteRequest{RPCHeader: h, Term: 7}, resp)
	}()
	rpc := mustReceive(t, consumer, "request for a vote")
	answered()
	rpc.Respond(&raft.RequestVoteResponse{Term: 7, Granted: granted}, nil)
	return resp, done
}

// A vote leaves when it is durable, and all that was written before it. That there is none is said at once.
func TestVoterAnswersAwaitItsLog(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	c.startAll(nil)
	log := newLateLog()
	c.members["n2"].Transport(1)
	c.members["n2"].Await(1, log)
	resp, done := askForVote(t, c, func() { log.write() }, true)
	if seq := mustReceive(t, log.questions, "the question whether it is durable"); seq != 1 {
		t.Errorf("the vote waits for write %d", seq)
	}
	select {
	case <-done:
		t.Error("a vote leaves before it is durable")
	case <-time.After(20 * time.Millisecond):
	}
	log.sync(1)
	if err := mustReceive(t, done, "the vote"); err != nil || !resp.Granted {
		t.Errorf("granted: %v, %v", resp.Granted, err)
	}
	resp, done = askForVote(t, c, func() { log.write() }, false)
	if err := mustReceive(t, done, "the refusal"); err != nil || resp.Granted || resp.Term != 7 {
		t.Errorf("refused: %+v, %v", resp, err)
	}
}

// A vote that a candidate is given reaches its raft, which counts its own with it, when that is durable.
func TestCandidateAwaitsItsOwnVote(t *testing.T) {
	for name, end := range map[string]func(c *cluster, log *lateLog){
		"durable": func(_ *cluster, log *lateLog) { log.voted(7) },
		"dropped": func(c *cluster, _ *lateLog) { c.members["n1"].DropGroup(1) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, false, 2, nil)
			c.startAll(nil)
			log := newLateLog()
			c.members["n1"].Transport(1)
			c.members["n1"].Await(1, log)
			resp, done := askForVote(t, c, func() {}, false)
			if err := mustReceive(t, done, "the refusal"); err != nil || resp.Term != 7 {
				t.Errorf("refused: %+v, %v", resp, err)
			}
			_, done = askForVote(t, c, func() {}, true)
			if term := mustReceive(t, log.questions, "the question whether it is durable"); term != 7 {
				t.Errorf("it waits for the vote in term %d", term)
			}
			select {
			case <-done:
				t.Error("raft gets a vote before its own is durable")
			case <-time.After(20 * time.Millisecond):
			}
			end(c, log)
			if err := mustReceive(t, done, "the vote"); (err == nil) != (name == "durable") {
				t.Error(err)
			}
		})
	}
}
