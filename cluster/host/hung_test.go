package host

import (
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// hangs is a disk that hangs, at writes, while the lock is held.
type hangs struct{ sync.Mutex }

func (d *hangs) gate() {
	d.Lock()
	d.Unlock() //nolint:staticcheck // whoever holds it makes the disk hang
}

// A node whose disk hangs has to wake the groups that it leads, and cannot: raft has to write. When it withdraws, others
// lead them, at once where somebody waits and soon everywhere, and when the disk is back all replicas agree.
func TestSleepersOfHungDiskAreTakenOver(t *testing.T) {
	t.Parallel()
	disk := &hangs{}
	c := mustTrio(t, sleepy, func(node string, o *raftlog.Options) {
		if node == trioNames[0] {
			o.FS = watchdog.NewDisk(&watchdog.AwakeClock{}, disk.gate).FS(vfs.Default)
		}
	})
	const groups = 6
	for id := fsm.GroupID(1); id <= groups; id++ {
		mustSubmit(t, c.mustOpen(id)[0], enqueues(1, -1, "a"))
	}
	for id := fsm.GroupID(1); id <= groups; id++ {
		await(t, "the message is taken", func() bool { return ready(c.mustLead(id)) == 1 })
		if all := c.mustSleep(id); c.host(all[0]) != c.hosts[0] {
			t.Fatalf("group %d is led by %s", id, c.nodeOf(all[0]))
		}
	}
	hung := c.hosts[0]
	disk.Lock()
	release := sync.OnceFunc(disk.Unlock)
	t.Cleanup(release)
	hung.tasks.Go(func() { hung.sleepers.wakeAll(hung.Groups(), func() bool { return true }) })
	await(t, "one has woken", func() bool { return !hung.Group(1).Asleep() })
	hung.mesh.Withdraw()
	hung.Withdraw()
	leads := func(id fsm.GroupID) bool {
		for _, h := range c.hosts[1:] {
			if h.Group(id).Leading() != 0 {
				return true
			}
		}
		return false
	}
	said := time.Time{}
	await(t, "others lead", func() bool {
		if time.Since(said) > time.Second/5 {
			said = time.Now()
			c.hosts[1].Want(groups, trioNames) // somebody waits for one of them
		}
		for id := fsm.GroupID(1); id <= groups; id++ {
			if !leads(id) {
				return false
			}
		}
		return true
	})
	for _, g := range hung.Groups() {
		if g.Leading() != 0 {
			t.Errorf("group %d is led where the disk hangs", g.Spec().Group)
		}
	}
	release()
	hung.Return()
	hung.mesh.Return()
	for id := fsm.GroupID(1); id <= groups; id++ {
		at := uint64(0)
		c.mustServe(id, 2).View(func(m *queue.Machine) { at = m.Index() })
		c.mustAgree(c.replicas(id), at)
	}
}
