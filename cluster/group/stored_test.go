package group

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

func mustOpenStore(t *testing.T) *raftlog.Store {
	t.Helper()
	s, err := raftlog.Open(filepath.Join(t.TempDir(), "queues"), raftlog.Options{Exit: func(int) { panic("exit") }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// threeVoters is a configuration's entry.
func threeVoters(index uint64) *raft.Log {
	var c raft.Configuration
	for _, n := range []string{"n1", "n2", "n3"} {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(n), Address: raft.ServerAddress(n)})
	}
	return &raft.Log{Index: index, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
}

// enqueue is an entry with one message.
func enqueue(t *testing.T, index uint64, body string) *raft.Log {
	t.Helper()
	payload := append(fsm.AppendPayloadHead(nil, "", "q", nil), body...)
	data, err := (&logpb.Entry{Version: 1, Now: int64(1000 + index), Commands: []*logpb.Command{{
		Kind: logpb.Command_ENQUEUE, Session: &logpb.Session{Node: 1, Boot: 1, Num: 1}, Seq: index,
		Enqueue: &logpb.Enqueue{Size: uint32(len(payload)), Head: uint32(len(payload) - len(body))},
	}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return &raft.Log{Index: index, Term: 2, Type: raft.LogCommand, Data: data, Extensions: payload}
}

// mustSnapshot writes a snapshot of a machine and truncates the log behind it.
func mustSnapshot(t *testing.T, log *raftlog.Group, m *queue.Machine, at *raft.Log) {
	t.Helper()
	config := raft.DecodeConfiguration(threeVoters(1).Data)
	sink, err := log.Snapshots().Create(1, at.Index, at.Term, config, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&snapshot{view: m.Snapshot()}).persist(sink); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	if err := log.DeleteRange(1, at.Index); err != nil {
		t.Fatal(err)
	}
}

// A replica that is read at rest is what its machine would be, with a snapshot
// and without; a copy in another store is the same, bodies included; and taken
// over it has one voter, in a term of its own.
func TestStoredQueue(t *testing.T) {
	for _, snapshotAt := range []uint64{0, 60, 120} {
		t.Run(fmt.Sprint("snapshot at ", snapshotAt), func(t *testing.T) {
			const id, last = fsm.GroupID(7), 120
			from, to := mustOpenStore(t), mustOpenStore(t)
			log, err := from.Group(id)
			if err != nil {
				t.Fatal(err)
			}
			q := &catalog.Queue{Name: "q", ID: 9}
			m := queue.New(q.Name, q.ID)
			m.Supports(fsm.Supported.Newest)
			if err := log.StoreLog(threeVoters(1)); err != nil {
				t.Fatal(err)
			}
			for index := uint64(2); index <= last; index++ {
				l := enqueue(t, index, fmt.Sprint("body ", index))
				if err := log.StoreLog(l); err != nil {
					t.Fatal(err)
				}
				if err := applyStored(m, l, math.MaxUint32, &fsm.Effects{}); err != nil {
					t.Fatal(err)
				}
				if index == snapshotAt {
					mustSnapshot(t, log, m, l)
				}
			}
			mustBe := func(store *raftlog.Store) {
				t.Helper()
				log, err := store.Group(id)
				if err != nil {
					t.Fatal(err)
				}
				s, stats, err := InspectQueue(log, q, fsm.Supported.Newest)
				if err != nil || s.Failed != "" || s.Last != last || s.Term != 2 || !slices.Equal(s.Voters, []string{"n1", "n2", "n3"}) || s.Doubt != "" {
					t.Fatalf("%+v, %v", s, err)
				}
				if stats.Ready != m.Stats().Ready {
					t.Errorf("%+v, not %+v", stats.Ready, m.Stats().Ready)
				}
				for _, index := range []uint64{2, 60, 61, last} {
					want := enqueue(t, index, fmt.Sprint("body ", index)).Extensions
					got, err := log.Payload(fsm.Ref{Index: index, Size: uint32(len(want))})
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("payload %d: %q, %v", index, got, err)
					}
				}
			}
			mustBe(from)
			if err := CopyQueue(to, from, id); err != nil {
				t.Fatal(err)
			}
			mustBe(to)
			copied, err := to.Group(id)
			if err != nil {
				t.Fatal(err)
			}
			end, err := replica.TakeOver(copied, &replica.Stored{Last: last, Term: 2}, "n3")
			if err != nil || end != last+1 {
				t.Fatalf("%d, %v", end, err)
			}
			s, _, err := InspectQueue(copied, q, fsm.Supported.Newest)
			if err != nil || s.Last != end || s.Term != 3 || !slices.Equal(s.Voters, []string{"n3"}) {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// Each message of a stored entry has its own part of the payloads.
func TestStoredPayloads(t *testing.T) {
	var e logpb.Entry
	b := enqueues(1, -1, "first", "second")
	if err := e.UnmarshalVT(b.Commands); err != nil {
		t.Fatal(err)
	}
	e.Version = 1
	e.Commands = append(e.Commands, &logpb.Command{Kind: logpb.Command_CONSUME, Session: session.Proto(), Seq: 3, Consume: &logpb.Consume{Consumer: 1}})
	data, err := e.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	var effects fsm.Effects
	if err := applyStored(queue.New("q", 9), &raft.Log{Index: 2, Term: 2, Data: data}, math.MaxUint32, &effects); err != nil {
		t.Fatal(err)
	}
	if d := effects.Deliveries; len(d) != 2 || d[0].Ref != (fsm.Ref{Index: 2, Size: 5}) || d[1].Ref != (fsm.Ref{Index: 2, Offset: 5, Size: 6}) {
		t.Errorf("deliveries %+v", d)
	}
}
