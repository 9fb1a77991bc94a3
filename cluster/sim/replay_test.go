package sim

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

var replayFrom = flag.String("sim.replay", "", "apply the logs of the queues of all nodes in this `folder` again, one data folder for each node, and compare their states")

// state is that of a queue after an entry.
type state struct {
	term uint64 // of the entry
	hash [32]byte
}

// replay applies the log of a queue again, with no node around it. It implements
// group.Replayer.
type replay struct {
	machine *queue.Machine
	change  func(index uint64, e *logpb.Entry) // before it is applied
	wants   func(index uint64) bool            // whether the state after an entry is wanted
	last    uint64
	states  map[uint64]state // by index
	effects fsm.Effects
}

func (r *replay) Restore(from io.Reader) error {
	if err := r.machine.Restore(from); err != nil {
		return err
	}
	r.last = r.machine.Index()
	return nil
}

func (r *replay) Apply(index, term uint64, e *logpb.Entry) error {
	r.change(index, e)
	for meta, c := range queue.Commands(index, term, e) {
		r.machine.Apply(meta, c, &r.effects)
	}
	r.effects.Reset()
	if r.last = index; r.wants(index) {
		r.states[index] = state{term, r.machine.Hash()}
	}
	return nil
}

// recording is the data folder of a node that does not run.
type recording struct {
	disk    vfs.FS
	catalog *raftlog.Catalog
	queues  *raftlog.Store
}

func openRecording(disk vfs.FS) (*recording, error) {
	fatal := func(code int) { panic(fmt.Sprintf("the recording cannot be read: exit code %d", code)) }
	queues, err := raftlog.Open(filepath.Join(dataDir, membership.QueuesFolder), raftlog.Options{FS: disk, Exit: fatal, TrailingLogs: group.TrailingLogs})
	if err != nil {
		return nil, err
	}
	catalog, err := raftlog.OpenCatalog(filepath.Join(dataDir, membership.CatalogFolder), raftlog.CatalogOptions{FS: disk, Exit: fatal})
	if err != nil {
		return nil, errors.Join(err, queues.Close())
	}
	return &recording{disk, catalog, queues}, nil
}

func (r *recording) close() error { return errors.Join(r.catalog.Close(), r.queues.Close()) }

// replay applies the logs of all queues, and returns what came out by their names.
func (r *recording) replay(change func(queue string, index uint64, e *logpb.Entry), wants func(queue string, index uint64) bool) (map[string]*replay, error) {
	_, view, err := replicated.Inspect(r.catalog)
	if err != nil {
		return nil, err
	}
	stored, err := r.queues.GroupIDs()
	if err != nil {
		return nil, err
	}
	all := map[string]*replay{}
	for _, id := range stored {
		q, known := view.QueueByGroup(id)
		if !known {
			continue
		}
		log, err := r.queues.Group(id)
		if err != nil {
			return nil, err
		}
		to := &replay{
			machine: queue.New(q.Name, q.ID), states: map[uint64]state{},
			change: func(index uint64, e *logpb.Entry) { change(q.Name, index, e) },
			wants:  func(index uint64) bool { return wants(q.Name, index) },
		}
		to.machine.Supports(fsm.Supported.Newest)
		if _, err := group.ReplayStored(log, to); err != nil {
			return nil, fmt.Errorf("%s: %w", q.Name, err)
		}
		all[q.Name] = to
	}
	return all, nil
}

// mustReplay applies the logs on a disk.
func mustReplay(t *testing.T, disk vfs.FS, change func(queue string, index uint64, e *logpb.Entry), wants func(string, uint64) bool) map[string]*replay {
	t.Helper()
	r, err := openRecording(disk)
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.replay(change, wants)
	if err := errors.Join(err, r.close()); err != nil {
		t.Fatal(err)
	}
	return all
}

// asItIs changes nothing.
func asItIs(string, uint64, *logpb.Entry) {}

// mustRecord checks that the logs on the disk of one node lead to the states that all
// were in at the end of a run, and to others if one entry is another. A log that begins
// with a later snapshot says nothing.
func mustRecord(t *testing.T, r result) {
	t.Helper()
	at := map[string]uint64{} // queue → index
	for _, x := range r.replicas {
		at[x.Name] = x.AppliedIndex
	}
	wants := func(queue string, index uint64) bool { return at[queue] == index }
	later := func(queue string, index uint64, e *logpb.Entry) {
		if wants(queue, index) {
			e.Now += time.Hour.Milliseconds()
		}
	}
	name := slices.Min(slices.Collect(maps.Keys(r.disks))) // the states of the others are equal
	replayed, changed := mustReplay(t, r.disks[name], asItIs, wants), mustReplay(t, r.disks[name], later, wants)
	for _, x := range r.replicas {
		got := replayed[x.Name]
		if got == nil {
			t.Errorf("%s: no log of %s is recorded", name, x.Name)
			continue
		}
		s, known := got.states[x.AppliedIndex]
		if !known && got.last < x.AppliedIndex {
			t.Errorf("%s: the log of %s ends at %d, and %d was applied", name, x.Name, got.last, x.AppliedIndex)
		}
		if known && hex.EncodeToString(s.hash[:]) != x.StateHash {
			t.Errorf("%s: %s at %d: the log leads to another state: %x, want %s", name, x.Name, x.AppliedIndex, s.hash, x.StateHash)
		}
		if known && changed[x.Name].states[x.AppliedIndex] == s {
			t.Errorf("%s: %s: another entry leads to the same state", name, x.Name)
		}
	}
}

// The logs in a folder, as -sim.keep leaves it, lead to the same states: wherever two
// nodes have an entry of the same term, their queues are equal after it.
func TestReplay(t *testing.T) {
	if *replayFrom == "" {
		t.Skip("needs -sim.replay")
	}
	nodes, err := os.ReadDir(*replayFrom)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]map[string]*replay{} // queue → node
	for _, node := range nodes {
		disk := vfs.NewMem() // the folder stays as it is
		if ok, err := vfs.Clone(vfs.Default, disk, filepath.Join(*replayFrom, node.Name()), dataDir); err != nil || !ok {
			t.Fatalf("%s: %v", node.Name(), err)
		}
		for queue, r := range mustReplay(t, disk, asItIs, func(string, uint64) bool { return true }) {
			if of[queue] == nil {
				of[queue] = map[string]*replay{}
			}
			of[queue][node.Name()] = r
		}
	}
	if len(of) == 0 {
		t.Fatalf("%s has no logs", *replayFrom)
	}
	for queue, replays := range of {
		mustAgree(t, queue, replays)
	}
}

// mustAgree compares the replays of one queue's logs.
func mustAgree(t *testing.T, queue string, replays map[string]*replay) {
	t.Helper()
	names := slices.Sorted(maps.Keys(replays))
	for k, name := range names {
		r := replays[name]
		end := r.states[r.last]
		t.Logf("%s at %s: %d states, the last at %d: %x", queue, name, len(r.states), r.last, end.hash[:8])
		for _, other := range names[:k] {
			for _, index := range slices.Sorted(maps.Keys(r.states)) {
				a, b := r.states[index], replays[other].states[index]
				if a.term == b.term && a.hash != b.hash {
					t.Errorf("%s: entry %d of term %d leads to %x at %s and to %x at %s", queue, index, a.term, a.hash[:8], name, b.hash[:8], other)
					break
				}
			}
		}
	}
}
