package raftlog

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// segmentFiles lists the segments of a store in db.
func segmentFiles(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List(fs.PathJoin("db", segmentsFolder))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return names
}

// big is a payload section that goes to a segment: about four of them fill one.
func big(index uint64) []byte { return bytes.Repeat([]byte{byte(index), byte(index >> 8)}, 30) }

func bigLogs(from, to uint64) (logs []*raft.Log) {
	for i := from; i <= to; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: 1, Data: []byte("header"), Extensions: big(i)})
	}
	return logs
}

func mustBig(t testing.TB, g *Group, indexes ...uint64) {
	t.Helper()
	forgetCache(g)
	for _, i := range indexes {
		if p, err := g.Payload(fsm.Ref{Index: i, Size: uint32(len(big(i)))}); err != nil || !bytes.Equal(p, big(i)) {
			t.Fatalf("group %d: payload of entry %d is %q, %v", g.id, i, p, err)
		}
	}
}

// haltSyncer has nothing written to segments or announced, as if the disk hung, until the syncer is started again.
func haltSyncer(s *Store) {
	s.syncer.close()
	s.syncer.queue = make(chan unsynced, maxSyncing)
}

// mustBeTight checks that segments take little more than what is live in them.
func mustBeTight(t testing.TB, s *Store) {
	t.Helper()
	must(t, checkSegments(s))
	live := int64(0)
	for _, seg := range s.segments.all {
		live += seg.live
	}
	if all := s.segments.usage(); all > 2*live+512 {
		t.Errorf("segments take %d bytes for %d", all, live)
	}
}

// Until segments are asked for, nothing is written that a program without them could not read.
func TestSegmentsAreOptedInto(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open("db", Options{FS: fs})
	must(t, err)
	g := mustGroup(t, s, 1)
	store := func(i uint64, size int) {
		must(t, g.StoreLog(&raft.Log{Index: i, Term: 1, Extensions: bytes.Repeat([]byte{byte(i)}, size)}))
	}
	store(1, 2*segmentFrom)
	if files, err := fs.List("db"); err != nil || slices.Contains(files, segmentsFolder) {
		t.Fatalf("files %v, %v", files, err)
	}
	mustRecords(t, g, kindExtent, 0)
	s.UseSegments()
	store(2, segmentFrom-1)
	store(3, segmentFrom)
	mustRecords(t, g, kindExtent, 1)
	g = reopen(t, fs, g)
	for i, size := range map[uint64]int{1: 2 * segmentFrom, 2: segmentFrom - 1, 3: segmentFrom} {
		p, err := g.Payload(fsm.Ref{Index: i, Size: uint32(size)})
		if err != nil || !bytes.Equal(p, bytes.Repeat([]byte{byte(i)}, size)) {
			t.Errorf("payload of entry %d: %d bytes, %v", i, len(p), err)
		}
	}
	must(t, g.s.Close())
}

// A power failure that leaves the records of a batch and not all of its sections leaves nothing of the batch.
// If it was acknowledged, the group is in doubt.
func TestBatchWithoutItsSections(t *testing.T) {
	for _, acknowledged := range []bool{false, true} {
		disk := vfs.NewCrashableMem()
		s := mustOpen(t, disk, "db")
		g := mustGroup(t, s, 1)
		must(t, g.StoreLogs(bigLogs(1, 3)))
		if !acknowledged {
			(&actor{g: g}).lag(nil)
			haltSyncer(s)
		}
		must(t, g.StoreLogs(bigLogs(4, 6)))
		at := g.locate(6)
		s.segments.sync() // they are written at least
		left := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		flip(t, left, s.segments.name(at.segment), int64(at.offset), 1)
		if !acknowledged {
			s.syncer.start()
		}
		must(t, s.Close())

		g = mustGroup(t, mustOpen(t, left, "db"), 1)
		mustBounds(t, g, 1, 3)
		mustBig(t, g, 1, 2, 3)
		if acknowledged {
			mustDoubt(t, g, "the log ends at entry 3, but entry 6 was acknowledged")
		} else {
			mustDoubt(t, g, "")
		}
		must(t, g.StoreLogs(bigLogs(4, 5)))
		must(t, checkSegments(g.s))
		g = reopen(t, left, g)
		mustBounds(t, g, 1, 5)
		mustBig(t, g, 1, 2, 3, 4, 5)
		must(t, g.s.Close())
	}
}

// A power failure before a section is written leaves in its place what the file held before: an older section of the same
// entry perhaps. It is not taken for the new one.
func TestLeftOverSection(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, disk, "db")
	g := mustGroup(t, s, 1)
	must(t, g.StoreLogs(bigLogs(1, 1))) // little enough for no other segment to be made
	before := g.locate(1)
	must(t, g.DeleteRange(1, 1))
	s.segments.close()
	s.tidySegments(0, 1)
	(&actor{g: g}).lag(nil)
	haltSyncer(s)
	must(t, g.StoreLogs(bigLogs(1, 1)))
	if at := g.locate(1); at.segment == before.segment || at.offset != before.offset || len(segmentFiles(t, disk)) != 1 {
		t.Fatalf("entry 1 was at %+v and is at %+v: its segment is not written over", before, at)
	}
	b := s.db.NewBatch()
	must(t, b.LogData(nil, nil))
	s.commit(b, pebble.Sync)
	left := disk.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 1))})
	s.syncer.start()
	must(t, s.Close())

	g = mustGroup(t, mustOpen(t, left, "db"), 1)
	mustBounds(t, g, 0, 0)
	must(t, g.s.Close())
}

// What a segment holds that is mostly dead is written to another one, and the disk space is given back. Pins and
// entries that raft can see are where they are then, for this process and the next.
func TestSparseSegments(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	must(t, g.StoreLogs(bigLogs(1, 100)))
	var gone, left []uint64
	for i := uint64(1); i <= 100; i++ {
		if i%10 == 0 {
			left = append(left, i)
		} else if i < 90 {
			gone = append(gone, i)
		}
	}
	g.Release(gone)
	mustSave(t, g, 95, 1, []byte("state"), append(slices.Clone(left[:9]), 90, 91, 92, 93, 94, 95)...)
	must(t, g.DeleteRange(1, 85))
	before := len(segmentFiles(t, fs))
	s.segments.retire()
	s.tidySegments(0, 0)
	s.tidySegments(0, 0) // what that left
	if after := len(segmentFiles(t, fs)); after > before/2 {
		t.Errorf("%d segments, of %d before", after, before)
	}
	mustBeTight(t, s)
	mustBig(t, g, append(left, 91, 95, 99)...)
	g = reopen(t, fs, g)
	mustBig(t, g, append(left, 91, 95, 99)...)
	mustBounds(t, g, 86, 100)
	must(t, g.s.Close())
}

// A store that rests keeps no segment that nothing refers to.
func TestSegmentsAtRest(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	must(t, g.StoreLogs(bigLogs(1, 50)))
	mustSave(t, g, 50, 1, []byte("state"))
	must(t, g.DeleteRange(1, 50))
	g.Release([]uint64{50})
	mustSave(t, g, 50, 1, []byte("state"))
	s.segments.retire()
	s.tidySegments(restGarbage, 0)
	if files := segmentFiles(t, fs); len(files) > 0 {
		t.Errorf("segments %v are left", files)
	}
	must(t, g.StoreLogs(bigLogs(51, 60)))
	g = reopen(t, fs, g)
	mustBig(t, g, 51, 60)
	must(t, g.s.Close())
}

// A segment stays until it is durable that nothing refers to it.
func TestReleasedSegmentStays(t *testing.T) {
	fs := vfs.NewMem()
	g := mustGroup(t, mustOpen(t, fs, "db"), 1)
	must(t, g.StoreLogs(bigLogs(1, 3)))
	mustSave(t, g, 3, 1, []byte("state"), 1, 2, 3)
	must(t, g.DeleteRange(1, 3))
	g.s.segments.close()
	g.s.tidySegments(0, 0) // the pins are durable
	before := segmentFiles(t, fs)
	g.Release([]uint64{1, 2, 3})
	g.s.segments.giveBack(0)
	if files := segmentFiles(t, fs); len(before) == 0 || !slices.Equal(files, before) {
		t.Errorf("segments %v, %v before a release that a crash undoes", files, before)
	}
	g.s.tidySegments(0, 0)
	if files := segmentFiles(t, fs); len(files) > 0 {
		t.Errorf("segments %v are left", files)
	}
	must(t, g.s.Close())
}

// A segment is not written over while a snapshot that is being sent needs it.
func TestStreamKeepsItsSegments(t *testing.T) {
	g := newGroup(t)
	must(t, g.StoreLogs(bigLogs(1, 20)))
	live := []uint64{3, 9, 17}
	mustSave(t, g, 20, 1, []byte("state"), live...)
	must(t, g.DeleteRange(1, 20))
	mustSave(t, g, 20, 1, []byte("state"), live...) // sweeps what is not live
	_, _, want := mustRead(t, g)
	list, err := g.Snapshots().List()
	must(t, err)
	_, r, err := g.Snapshots().Open(list[0].ID)
	must(t, err)
	g.Release(live)
	for i := uint64(21); i < 100; i += 10 { // enough to write over what is spare
		g.s.segments.retire()
		g.s.tidySegments(0, 2)
		must(t, g.StoreLogs(bigLogs(i, i+9)))
	}
	stream, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	if !bytes.Equal(stream, want) {
		t.Errorf("stream of %d bytes differs from the one before, %d", len(stream), len(want))
	}
	must(t, checkSegments(g.s))
}

// Segments from before Open stay until all groups have said what they have there.
func TestSegmentsOfGroupsThatAreNotLoaded(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs, "db")
	for id := fsm.GroupID(1); id <= 3; id++ {
		must(t, mustGroup(t, s, id).StoreLogs(bigLogs(1, 10)))
	}
	must(t, s.Close())
	s = mustOpen(t, fs, "db")
	g := mustGroup(t, s, 1)
	s.tidySegments(0, 0)
	must(t, g.DeleteRange(1, 10))
	must(t, g.StoreLogs(bigLogs(1, 50)))
	s.tidySegments(0, 0)
	mustBig(t, mustGroup(t, s, 2), 1, 5, 10)
	must(t, s.DropGroup(3)) // never loaded
	s.segments.retire()
	s.tidySegments(0, 0)
	mustBeTight(t, s)
	mustBig(t, mustGroup(t, s, 2), 1, 5, 10)
	mustBig(t, g, 1, 25, 50)
	must(t, s.Close())
}

// A segment that is lost, or shorter than it was, costs the groups that have something in it.
func TestLostSegment(t *testing.T) {
	for name, harm := range map[string]func(fs vfs.FS, path string) error{
		"gone": func(fs vfs.FS, path string) error { return fs.Remove(path) },
		"empty": func(fs vfs.FS, path string) error {
			f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
			if err == nil {
				err = f.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := mustOpen(t, fs, "db")
			for id := fsm.GroupID(1); id <= 2; id++ {
				g := mustGroup(t, s, id)
				mustVoteFor(t, g, 2, "a")
				must(t, g.StoreLogs(bigLogs(1, 12)))
			}
			g := mustGroup(t, s, 1)
			path := s.segments.name(g.locate(6).segment)
			must(t, s.Close())
			must(t, harm(fs, path))
			s = mustOpen(t, fs, "db")
			if why := mustGroup(t, s, 1).Doubt(); why == "" {
				t.Error("the group that lost sections is in no doubt")
			}
			mustDoubt(t, mustGroup(t, s, 2), "")
			mustBig(t, mustGroup(t, s, 2), 1, 12)
			must(t, checkSegments(s))
			must(t, s.Close())
		})
	}
}

// Nobody who appends waits for the disk of the segments. What is not written yet can be read, and is announced when it is
// durable; a vote waits for it, because it is of a log that has it.
func TestSegmentsAreWrittenBehind(t *testing.T) {
	for name, hits := range map[string]func(errorfs.Op) bool{
		"writes": func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWriteAt },
		"syncs":  isSync,
	} {
		t.Run(name, func(t *testing.T) {
			o := newOverlapped(t, "a", "b")
			o.gate.hits = func(op errorfs.Op) bool { return strings.HasSuffix(op.Path, segmentSuffix) && hits(op) }
			o.gate.close()
			stored, voted := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stored)
				for i := uint64(11); i <= 14; i++ { // they fit into the present segment
					if err := o.StoreLogs([]*raft.Log{{Index: i, Term: 1, Extensions: big(i)[:testSegmentFrom]}}); err != nil {
						t.Error(err)
					}
				}
			}()
			mustClose(t, stored, "entries are stored")
			announced := o.announced()
			<-o.gate.arrived
			forgetCache(o.Group)
			for i := uint64(11); i <= 14; i++ {
				p, err := o.Payload(fsm.Ref{Index: i, Size: testSegmentFrom})
				if err != nil || !bytes.Equal(p, big(i)[:testSegmentFrom]) {
					t.Fatalf("payload of entry %d is %q, %v", i, p, err)
				}
			}
			mustVoteFor(t, o.Group, 2, "b")
			o.WhenVoted(2, func() { close(voted) })
			select {
			case <-announced:
				t.Error("entries are announced whose payload sections are not durable")
			case <-voted:
				t.Error("a member votes that has lost what it has written if its power fails now")
			case <-time.After(50 * time.Millisecond):
			}
			o.gate.open()
			mustClose(t, announced, "the entries are announced")
			mustClose(t, voted, "the vote")
			g := o.crashed()
			mustBounds(t, g, 1, 14)
		})
	}
}

// Looking for what is to be moved copies nothing of a group that has nothing there.
func TestSectionsInCopiesNothing(t *testing.T) {
	g := newGroup(t)
	must(t, g.StoreLogs(bigLogs(1, 40)))
	all, m := g.everySection(40), &mover{g: g}
	if allocated := testing.AllocsPerRun(10, func() { m.sectionsIn(map[uint32]bool{}) }); allocated > 0 {
		t.Errorf("%v allocations", allocated)
	}
	victims := map[uint32]bool{all[0].segment: true, all[39].segment: true}
	want := slices.DeleteFunc(all, func(p pin) bool { return !victims[p.segment] })
	if got := m.sectionsIn(victims); !slices.Equal(got, want) {
		t.Errorf("%v are there, want %v", got, want)
	}
}

// While the file of the next segment is made, sections are read, released and synced, and whoever needs that
// segment waits alone.
func TestNextSegmentHoldsUpNobody(t *testing.T) {
	hung, goOn := make(chan struct{}), make(chan struct{})
	var second string
	var first sync.Once // it is opened to be read as well
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && second != "" && op.Path == second {
			first.Do(func() {
				close(hung)
				<-goOn
			})
		}
		return nil
	}))
	s := mustOpen(t, fs, "db")
	g, other := mustGroup(t, s, 1), mustGroup(t, s, 2)
	second = s.segments.name(2)
	must(t, other.StoreLogs(bigLogs(1, 1)))
	must(t, g.StoreLogs(bigLogs(1, 1))) // the first is half full
	<-hung
	stored := make(chan error, 1)
	go func() { stored <- g.StoreLogs(bigLogs(2, 9)) }()
	for waits := false; !waits; { // for the next segment
		s.segments.mu.Lock()
		a := s.segments.active
		waits = a.length+span{size: uint32(len(big(1)))}.bytes() > s.segments.bytes
		s.segments.mu.Unlock()
		runtime.Gosched()
	}
	mustBig(t, other, 1)
	other.Release([]uint64{1})
	s.segments.sync()
	select {
	case err := <-stored:
		t.Errorf("stored without a segment: %v", err)
	default:
	}
	close(goOn)
	must(t, <-stored)
	mustBig(t, g, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	must(t, s.Close())
}
