package sim

import (
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// running is the process that runs, once it is open; nil: none does.
func (m *machine) running() *process {
	m.mu.Lock()
	p := m.run
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	select {
	case <-p.opened:
	default:
		return nil
	}
	if p.node == nil {
		return nil
	}
	return p
}

// mend has the disk work.
func (m *machine) mend() {
	m.unhang()
	m.failing.Store(nil)
}

// hasDamage reports whether bits have flipped that a process may yet meet.
func (m *machine) hasDamage() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.damaged
}

// runs reports whether a process runs, or is being started.
func (m *machine) runs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.run != nil
}

// process is the one that uses the disk: it runs, or is being stopped; nil: none.
func (m *machine) process() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		return m.run
	}
	return m.stopping
}

func (m *machine) getDisk() *vfs.MemFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disk
}

// begin has a process run.
func (m *machine) begin(p *process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run, m.dark = p, false
}

// stop has the process no longer run, and use the disk until it has stopped; nil:
// none ran.
func (m *machine) stop() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.run
	if p != nil {
		m.run, m.stopping = nil, p
	}
	return p
}

// take has a process use the disk no more. stopping: it was being stopped; uses: it
// did use it.
func (m *machine) take(p *process) (stopping, uses bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch p {
	case m.run:
		m.run = nil
		return false, true
	case m.stopping:
		m.stopping = nil
		return true, true
	}
	return false, false
}

// pass leaves a disk to the next process, as this one's end leaves it: with the bits
// that are wrong. The disk that is kept by this one is whole again, or it would meet
// them over and over.
func (m *machine) pass(how vfs.CrashCloneCfg, dark bool) {
	m.mu.Lock()
	old, flips := m.disk, slices.Clone(m.flips)
	m.disk, m.dark = old.CrashClone(how), m.dark || dark
	m.mu.Unlock()
	for _, f := range slices.Backward(flips) {
		_ = f.flipBack(old) // the file may be gone
	}
}

// disks are those of all nodes, as they are.
func (w *world) disks() map[string]vfs.FS {
	all := map[string]vfs.FS{}
	for _, name := range w.names {
		all[name] = w.nodes[name].getDisk()
	}
	return all
}
