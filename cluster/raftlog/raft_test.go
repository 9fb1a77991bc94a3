package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// keeper is a machine that keeps entries live until another entry names them.
type keeper struct {
	g    *Group
	mu   sync.Mutex
	cond *sync.Cond
	live map[uint64]bool
	last uint64
}

func (k *keeper) Apply(l *raft.Log) any {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(l.Data) == 0 {
		panic(fmt.Sprintf("entry %d comes without its header", l.Index))
	}
	k.live[l.Index] = true
	gone := []uint64{}
	for b := l.Data[1:]; len(b) > 0; b = b[8:] {
		n := binary.BigEndian.Uint64(b)
		delete(k.live, n)
		gone = append(gone, n)
	}
	k.last = l.Index
	k.g.Release(gone)
	k.cond.Broadcast()
	return nil
}

func (k *keeper) Snapshot() (raft.FSMSnapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return keeperSnapshot{slices.Sorted(maps.Keys(k.live)), k.last}, nil
}

func (k *keeper) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	r, err := ReadState(rc)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.live)
	k.last = binary.BigEndian.Uint64(b)
	for b = b[8:]; len(b) > 0; b = b[8:] {
		k.live[binary.BigEndian.Uint64(b)] = true
	}
	k.g.Started(func(i uint64) bool { return k.live[i] }, k.last)
	k.cond.Broadcast()
	return nil
}

func (k *keeper) wait(index uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.last < index {
		k.cond.Wait()
	}
}

type keeperSnapshot struct {
	live []uint64
	last uint64
}

func (s keeperSnapshot) Persist(sink raft.SnapshotSink) error {
	b := binary.BigEndian.AppendUint64(nil, s.last)
	for _, i := range s.live {
		b = binary.BigEndian.AppendUint64(b, i)
	}
	if _, err := sink.Write(b); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	sink.(*Sink).SetLive(s.live)
	return sink.Close()
}

func (keeperSnapshot) Release() {}

// replica is one member of a group of three, each with a disk of its own.
type replica struct {
	t     *testing.T
	name  raft.ServerID
	fs    vfs.FS
	s     *Store
	g     *Group
	k     *keeper
	r     *raft.Raft
	trans *raft.InmemTransport
}

type trio [3]*replica

func (c *trio) start(n int) {
	p := c[n]
	p.s = mustOpen(p.t, p.fs, "db")
	p.g = mustGroup(p.t, p.s, 7)
	p.k = &keeper{g: p.g, live: map[uint64]bool{}}
	p.k.cond = sync.NewCond(&p.k.mu)
	_, p.trans = raft.NewInmemTransportWithTimeout(raft.ServerAddress(p.name), 2*time.Second)
	for i, o := range c {
		if i != n && o.r != nil {
			o.trans.Connect(raft.ServerAddress(p.name), p.trans)
			p.trans.Connect(raft.ServerAddress(o.name), o.trans)
		}
	}
	conf := raft.DefaultConfig()
	conf.LocalID = p.name
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 150*time.Millisecond, 150*time.Millisecond, 100*time.Millisecond
	conf.CommitTimeout = 5 * time.Millisecond
	conf.SnapshotInterval, conf.SnapshotThreshold, conf.TrailingLogs = time.Hour, 1<<40, 8
	conf.Logger = hclog.NewNullLogger()
	past, err := raft.HasExistingState(p.g, p.g, p.g.Snapshots())
	must(p.t, err)
	if !past {
		var servers []raft.Server
		for _, o := range c {
			servers = append(servers, raft.Server{ID: o.name, Address: raft.ServerAddress(o.name)})
		}
		must(p.t, raft.BootstrapCluster(conf, p.g, p.g, p.g.Snapshots(), p.trans, raft.Configuration{Servers: servers}))
	}
	p.r, err = raft.NewRaft(conf, p.k, p.g, p.g, p.g.Snapshots(), completing{p.trans, p.g})
	must(p.t, err)
}

// completing sends entries whole.
type completing struct {
	*raft.InmemTransport
	g *Group
}

func (c completing) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	for _, l := range args.Entries {
		if err := c.g.Complete(l); err != nil {
			return err
		}
	}
	return c.InmemTransport.AppendEntries(id, to, args, resp)
}

// AppendEntriesPipeline makes raft send one request after the other.
func (c completing) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (c *trio) stop(n int) {
	p := c[n]
	must(p.t, p.r.Shutdown().Error())
	for _, o := range c {
		o.trans.Disconnect(raft.ServerAddress(p.name))
	}
	must(p.t, p.trans.Close())
	must(p.t, p.s.Close())
	p.r = nil
}

// leader waits for one.
func (c *trio) leader() (int, *replica) {
	for tick := time.Tick(5 * time.Millisecond); ; <-tick {
		for n, p := range c {
			if p.r != nil && p.r.State() == raft.Leader && p.r.VerifyLeader().Error() == nil {
				return n, p
			}
		}
	}
}

func ext(tag uint64) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint64(nil, tag), 1+int(tag%2000))
}

// apply proposes entries that release the entries given, one each.
func (c *trio) apply(tag uint64, gone ...uint64) uint64 {
	for {
		_, p := c.leader()
		data := []byte{1}
		for _, n := range gone {
			data = binary.BigEndian.AppendUint64(data, n)
		}
		f := p.r.ApplyLog(raft.Log{Data: data, Extensions: ext(tag)}, 0)
		if f.Error() == nil {
			return f.Index()
		}
	}
}

// TestUnderRaft runs three real replicas through restarts, lost disks,
// snapshots and changes of leader, and then compares every byte.
func TestUnderRaft(t *testing.T) {
	c := new(trio)
	for n := range c {
		c[n] = &replica{t: t, name: raft.ServerID(fmt.Sprintf("n%d", n)), fs: vfs.NewMem()}
	}
	for n := range c {
		c.start(n)
	}
	tags := map[uint64]uint64{} // index → tag
	var live []uint64
	tag := uint64(0)
	work := func(n int) (last uint64) {
		for range n {
			tag++
			var gone []uint64
			if len(live) > 5 && tag%4 != 0 {
				gone = []uint64{live[tag%uint64(len(live))]}
			}
			last = c.apply(tag, gone...)
			tags[last] = tag
			live = slices.DeleteFunc(live, func(i uint64) bool { return slices.Contains(gone, i) })
			live = append(live, last)
		}
		return last
	}
	snapshot := func() {
		last := work(1)
		for _, p := range c {
			if p.r != nil {
				p.k.wait(last)
				must(t, p.r.Snapshot().Error())
			}
		}
	}
	check := func() {
		t.Helper()
		last := work(1)
		for _, p := range c {
			p.k.wait(last)
			comparePayloads(t, p, live, tags)
		}
	}

	work(60)
	check()
	snapshot()
	check()

	n, _ := c.leader()
	c.stop(n) // the leader goes; the others go on and truncate
	work(60)
	snapshot()
	work(20)
	c.start(n) // it needs a snapshot, and has a log of its own
	check()

	lost := (n + 1) % 3
	c.stop(lost)
	c[lost].fs = vfs.NewMem() // an empty disk
	work(10)
	snapshot()
	work(20)
	c.start(lost)
	check()

	c.stop(lost)
	work(20)
	for n := range c { // what one has missed must now come from the others' disks
		if n != lost {
			c.stop(n)
		}
	}
	for n := range c {
		c.start(n)
	}
	check()
	snapshot()
	check()
	for n := range c {
		c.stop(n)
		p := c[n]
		p.s = mustOpen(t, p.fs, "db")
		p.g = mustGroup(t, p.s, 7)
		comparePayloads(t, p, live, tags)
		must(t, p.s.Close())
	}
}

// comparePayloads compares a replica's live payloads, and what is in its log.
func comparePayloads(t *testing.T, p *replica, live []uint64, tags map[uint64]uint64) {
	t.Helper()
	for _, i := range live {
		want := ext(tags[i])
		got, err := p.g.Payload(fsm.Ref{Index: i, Size: uint32(len(want))})
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: payload of entry %d: %d bytes, %v, want %d", p.name, i, len(got), err, len(want))
		}
	}
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	for i := p.g.entries.begin(); i > 0 && i <= p.g.entries.last(); i++ {
		e, err := p.g.readEntry(i, p.g.entries.at(i))
		must(t, err)
		if e.typ == raft.LogCommand && (len(e.ext) < 8 || !bytes.Equal(e.ext, ext(binary.BigEndian.Uint64(e.ext)))) {
			t.Fatalf("%s: entry %d in the log has a payload section of %d bytes", p.name, i, len(e.ext))
		}
	}
}
