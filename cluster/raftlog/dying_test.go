package raftlog

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
)

// death makes a disk die for good: operations of some kind fail, from the nth on.
type death struct {
	left atomic.Int64 // operations that succeed
	hits func(errorfs.Op) bool
}

func (d *death) MaybeError(op errorfs.Op) error {
	if d.hits(op) && d.left.Add(-1) < 0 {
		return errorfs.ErrInjected
	}
	return nil
}

func (d *death) String() string { return "(death)" }

// TestDyingDisk lets disks die at various writes or reads, in the middle of rotated logs,
// flushes, compactions and snapshots. The process ends with ExitCode: it does
// not panic, and nothing is confirmed after it.
func TestDyingDisk(t *testing.T) {
	changes := func(op errorfs.Op) bool {
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpLink, errorfs.OpRemove, errorfs.OpRename, errorfs.OpReuseForWrite,
			errorfs.OpFilePreallocate, errorfs.OpFileClose, errorfs.OpFileWrite, errorfs.OpFileWriteAt,
			errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileFlush:
			return true
		}
		return false
	}
	kinds := map[string]func(errorfs.Op) bool{
		"any": changes,
		"files made": func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite || op.Kind == errorfs.OpRename
		},
		"logs": func(op errorfs.Op) bool {
			return changes(op) && strings.HasSuffix(op.Path, ".log") && op.Kind != errorfs.OpRemove
		},
		"logs made or closed": func(op errorfs.Op) bool {
			return strings.HasSuffix(op.Path, ".log") &&
				(op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpReuseForWrite)
		},
		"manifest": func(op errorfs.Op) bool { return changes(op) && strings.Contains(op.Path, "MANIFEST") },
		"reads":    func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpFileReadAt },
		"ledger":   func(op errorfs.Op) bool { return changes(op) && strings.Contains(op.Path, "ledger") },

		"any with segments": changes,
		"segments":          func(op errorfs.Op) bool { return changes(op) && strings.Contains(op.Path, segmentsFolder) },
		"reads of segments": func(op errorfs.Op) bool {
			return (op.Kind == errorfs.OpOpen || op.Kind == errorfs.OpFileReadAt) && strings.HasSuffix(op.Path, segmentSuffix)
		},
	}
	for name, hits := range kinds {
		for _, after := range []int64{0, 1, 2, 3, 5, 8, 13, 30, 70} {
			t.Run(fmt.Sprintf("%s after %d", name, after), func(t *testing.T) {
				d := &death{hits: hits}
				d.left.Store(1 << 60)
				e := make(exits, 1)
				o := testOptions(t, errorfs.Wrap(vfs.NewMem(), d))
				o.MemTableBytes, o.Exit = 64<<10, e.exit
				o.segmentFrom, o.segmentBytes = 0, 32<<10
				if strings.Contains(name, "segments") {
					o.segmentFrom = testSegmentFrom
				}
				s, err := Open("db", o)
				must(t, err)
				g := mustGroup(t, s, 1)
				mustStore(t, g, 1, 10, 1)
				d.left.Store(after)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					busy(g)
				}()
				select {
				case code := <-e:
					if code != ExitCode {
						t.Errorf("exit code %d", code)
					}
				case <-ended:
					t.Error("nothing ended the process")
				case <-time.After(time.Minute):
					t.Error("it hangs")
				}
			})
		}
	}
}

// busy uses a group for a while in all ways that write.
func busy(g *Group) {
	for i := uint64(11); i < 400; i++ {
		l := &raft.Log{Index: i, Term: i, Data: []byte("header"), Extensions: make([]byte, 8<<10)}
		if g.StoreLog(l) != nil || g.SetUint64([]byte(TermKey), i) != nil {
			return
		}
		if i%10 == 0 {
			if save(g, i-5, i-5, []byte("state"), nil) != nil || g.DeleteRange(1, i-5) != nil {
				return
			}
			if g.s.db.Flush() != nil {
				return
			}
			var l raft.Log
			forgetCache(g)
			_ = getWhole(g, i-3, &l)
		}
	}
}
