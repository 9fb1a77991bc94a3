package replica

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// mustResume returns a leader that resumes term 3 behind entry 7.
func mustResume() (*Replica, *first) {
	r := New(Config{})
	r.first = newFirst(&Resumption{Leads: true, Serves: true, Term: 3, At: Position{2, 7}}, r)
	return r, r.first
}

// asRaftBegins is what raft stores first.
func asRaftBegins() []*raft.Log { return []*raft.Log{{Index: 8, Term: 3, Type: raft.LogNoop}} }

// proposal is an entry of the group.
func proposal() *raft.Log { return &raft.Log{Data: []byte("commands"), Extensions: []byte("payloads")} }

// A leader that resumes its term begins with its group's entry, if there is one, and never takes the place of an entry
// that is not raft's own.
func TestFirstEntry(t *testing.T) {
	for _, tc := range []struct {
		name  string
		begin func(r *Replica) raft.ApplyFuture
		logs  []*raft.Log
		want  raft.LogType
	}{
		{"the group's", func(r *Replica) raft.ApplyFuture { return r.Begin(proposal()) }, asRaftBegins(), raft.LogCommand},
		{"none", func(r *Replica) raft.ApplyFuture { r.Begin(nil); return r.Begin(proposal()) }, asRaftBegins(), raft.LogNoop},
		{"of another leader", func(r *Replica) raft.ApplyFuture { return r.Begin(proposal()) }, []*raft.Log{{Index: 8, Term: 4, Type: raft.LogNoop}}, raft.LogNoop},
		{"another entry", func(r *Replica) raft.ApplyFuture { return r.Begin(proposal()) }, []*raft.Log{{Index: 9, Term: 3, Type: raft.LogNoop}}, raft.LogNoop},
		{"a barrier", func(r *Replica) raft.ApplyFuture { return r.Begin(proposal()) }, []*raft.Log{{Index: 8, Term: 3, Type: raft.LogBarrier}}, raft.LogBarrier},
	} {
		r, f := mustResume()
		future := tc.begin(r)
		if isFirst := f.fill(tc.logs); !isFirst || tc.logs[0].Type != tc.want {
			t.Errorf("%s: the first %v, an entry of type %v", tc.name, isFirst, tc.logs[0].Type)
		}
		if l := tc.logs[0]; tc.want == raft.LogCommand && (string(l.Data) != "commands" || string(l.Extensions) != "payloads" || l.Index != 8 || l.Term != 3 || future.Index() != 8) {
			t.Errorf("%s: it is %+v", tc.name, l)
		}
		if r.Begin(proposal()) != nil {
			t.Errorf("%s: a second entry is taken", tc.name)
		}
		if logs := asRaftBegins(); f.fill(logs) || logs[0].Type != raft.LogNoop {
			t.Errorf("%s: it begins twice", tc.name)
		}
	}
}

// Raft waits a moment for the group's entry, and then goes on without.
func TestFirstEntryIsAwaited(t *testing.T) {
	for _, comes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r, f := mustResume()
			logs, began := asRaftBegins(), time.Now()
			if comes {
				go func() {
					time.Sleep(firstWait / 2)
					r.Begin(proposal())
				}()
			}
			f.fill(logs)
			if took := time.Since(began); comes != (logs[0].Type == raft.LogCommand) || comes != (took < firstWait) || took > firstWait {
				t.Errorf("an entry comes: %v; type %v after %v", comes, logs[0].Type, took)
			}
			if r.Begin(proposal()) != nil {
				t.Error("it is too late")
			}
		})
	}
}

// What raft sends before the log has the first entry waits for it and takes it along; what it sends for other reasons is
// left as it is.
func TestFirstEntryIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := mustResume()
		early := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 7, PrevLogTerm: 2}
		sent := false
		go func() {
			f.join(early)
			sent = true
		}()
		synctest.Wait()
		if sent {
			t.Fatal("it did not wait")
		}
		r.Begin(proposal())
		f.fill(asRaftBegins())
		close(f.stored)
		synctest.Wait()
		if !sent || len(early.Entries) != 1 || early.Entries[0].Index != 8 || early.Entries[0].Term != 3 || string(early.Entries[0].Extensions) != "payloads" {
			t.Fatalf("sent %v: %+v", sent, early.Entries)
		}
		for _, args := range []*raft.AppendEntriesRequest{
			{Term: 3}, {Term: 3, PrevLogEntry: 8, PrevLogTerm: 3}, {Term: 4, PrevLogEntry: 7, PrevLogTerm: 2},
		} {
			if f.join(args); len(args.Entries) != 0 {
				t.Errorf("behind entry %d in term %d it takes it along", args.PrevLogEntry, args.Term)
			}
		}
		full := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 7, Entries: []*raft.Log{{Index: 8}, {Index: 9}}}
		if f.join(full); len(full.Entries) != 2 {
			t.Error("what it has already is sent twice")
		}
	})
}

// storeOnce is a log that takes what it is given, or nothing.
type storeOnce struct {
	raft.LogStore
	err error
}

func (s storeOnce) StoreLogs([]*raft.Log) error { return s.err }

// A leader that has slept may hear of another one before it leads. It may lead later, and then what it sends waits for
// nothing, and has nothing of what it would have begun with: nor if that could not be stored.
func TestFirstEntryIsNone(t *testing.T) {
	for _, tc := range []struct {
		name string
		logs []*raft.Log
		err  error
	}{
		{"of another leader", []*raft.Log{{Index: 8, Term: 4, Type: raft.LogCommand}}, nil},
		{"of this one later", []*raft.Log{{Index: 8, Term: 5, Type: raft.LogNoop}}, nil},
		{"other than it knows", []*raft.Log{{Index: 9, Term: 3, Type: raft.LogNoop}}, nil},
		{"not stored", asRaftBegins(), errors.New("the disk is full")},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, f := mustResume()
			defer r.End()
			r.Begin(proposal())
			_ = raftsLog{LogStore: storeOnce{err: tc.err}, first: f}.StoreLogs(tc.logs)
			for _, term := range []uint64{3, 5} {
				sent, args := false, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: 7, PrevLogTerm: 2}
				go func() {
					f.join(args)
					sent = true
				}()
				synctest.Wait()
				if !sent || len(args.Entries) != 0 {
					t.Errorf("%s: in term %d sent %v, with %d entries", tc.name, term, sent, len(args.Entries))
				}
			}
		})
	}
}

// batches is a machine that takes everything.
type batches struct{ raft.MockFSM }

func (*batches) ApplyBatch(logs []*raft.Log) []any { return make([]any, len(logs)) }

// Whoever waits for the first entry hears that the machine has it, or that this may never be.
func TestFirstEntryIsAnswered(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(r *Replica, m raft.BatchingFSM)
		want error
	}{
		{"applied", func(_ *Replica, m raft.BatchingFSM) {
			m.ApplyBatch([]*raft.Log{{Index: 8, Term: 3}, {Index: 9, Term: 3}})
			m.ApplyBatch([]*raft.Log{{Index: 8, Term: 3}})
		}, nil},
		{"replaced", func(r *Replica, m raft.BatchingFSM) {
			r.TenureEnded()
			m.ApplyBatch([]*raft.Log{{Index: 8, Term: 4}})
		}, raft.ErrLeadershipLost},
		{"ended", func(r *Replica, _ raft.BatchingFSM) { r.End() }, raft.ErrRaftShutdown},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, f := mustResume()
			m := firstMachine{&batches{}, f}
			future := r.Begin(proposal())
			m.ApplyBatch([]*raft.Log{{Index: 7, Term: 2}})
			answered, got := false, error(nil)
			go func() {
				got = future.Error()
				answered = true
			}()
			synctest.Wait()
			if answered {
				t.Fatalf("%s: answered too early", tc.name)
			}
			tc.end(r, m)
			synctest.Wait()
			if !answered || !errors.Is(got, tc.want) {
				t.Errorf("%s: answered %v, %v", tc.name, answered, got)
			}
			r.End()
		})
	}
}

// pipe counts requests.
type pipe struct {
	raft.AppendPipeline
	requests int
}

func (p *pipe) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.requests++
	return nil, nil
}

// Behind the first entry, raft's second trigger sends nothing; what it sends later is sent.
func TestFirstEntryIsSentOnce(t *testing.T) {
	_, f := mustResume()
	p := &pipe{}
	first := &firstPipeline{AppendPipeline: p, first: f}
	for n, args := range []*raft.AppendEntriesRequest{
		{Term: 3, PrevLogEntry: 8},
		{Term: 3, PrevLogEntry: 8, Entries: []*raft.Log{{Index: 9}}},
		{Term: 3, PrevLogEntry: 9},
		{Term: 3, PrevLogEntry: 8},
	} {
		if _, err := first.AppendEntries(args, nil); err != nil || p.requests != n {
			t.Errorf("after %d requests %d are sent, %v", n+1, p.requests, err)
		}
	}
}
