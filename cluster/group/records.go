package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// maxStoredState is how large a state may be that is stored with a record. A larger one is made again from the log.
const maxStoredState = 512

// storedRecord is what of a record is on disk: whatever cannot be read elsewhere without opening the group. It is
// a hint, see raftlog.Sleep.
type storedRecord struct {
	Queue               fsm.QueueID
	Leader              string
	Process             [16]byte // of the leader's node
	Lacks               []string
	Servers             []byte // the configuration, see appendServers
	ConfigAt            uint64
	Snapshot            int64
	Replay              int64
	Live                uint64
	Stats               Stats
	Settings            []byte
	Sessions, Suspected []queue.Boot
	State               []byte
}

var storedLayout = layout(reflect.TypeFor[storedRecord]())

// store puts a record on disk, so that the replica sleeps on after a restart.
func (r *Record) store(log *raftlog.Group, spec *Spec) {
	if !r.level || r.failed || r.IsUnborn() {
		return
	}
	settings, err := proto.Marshal(r.settings)
	if err != nil {
		return // it is opened then
	}
	s := storedRecord{
		Queue: spec.Queue, Leader: r.leader, Process: r.process, Lacks: r.lacking(), Servers: appendServers(nil, r.config.Servers), ConfigAt: r.configAt,
		Snapshot: r.snapshot, Replay: r.replay, Live: r.live, Stats: r.stats, Settings: settings, Sessions: r.sessions, Suspected: r.suspected,
	}
	if len(r.state) <= maxStoredState {
		s.State = r.state
	}
	(&raftlog.Records{}).Put(log, appendFields(binary.BigEndian.AppendUint32(nil, storedLayout), reflect.ValueOf(&s).Elem()))
}

var errLayout = errors.New("it is of another program")

// parseStored reads what store has put.
func parseStored(b []byte) (s *storedRecord, err error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != storedLayout {
		return nil, errLayout
	}
	s = &storedRecord{}
	f := fieldReader{b: b[4:]}
	f.read(reflect.ValueOf(s).Elem())
	return s, f.end()
}

// appendServers encodes a configuration.
func appendServers(b []byte, servers []raft.Server) []byte {
	return appendFields(b, reflect.ValueOf(servers))
}

// shared is what the records of a node have in common: most queues have the same members and settings. What is in it is not
// changed.
type shared struct {
	mu       sync.Mutex
	names    map[string]string
	members  map[string]*sharedMembers
	settings map[string]*QueueConfig
	nodes    map[string][]string
}

// maxShared is how many of a kind are shared; then all are forgotten by who shares them, and those to come are anew.
const maxShared = 4096

type sharedMembers struct {
	servers []raft.Server
	members []replica.Member
}

// TakeUp returns a group that sleeps as its record on disk says; nil: that is of another queue. spec is what the catalog
// knows of it.
func TakeUp(n *Node, spec Spec, a *raftlog.Asleep, now time.Time) (*Group, error) {
	s, err := parseStored(a.Data)
	if err != nil || s.Queue != spec.Queue {
		return nil, err
	}
	r, err := n.shared.record(a, s, now)
	if err != nil {
		return nil, err
	}
	g := &Group{spec: n.shared.spec(spec), node: n}
	g.put(r)
	return g, nil
}

// record is the record in memory of what is on disk.
func (t *shared) record(a *raftlog.Asleep, s *storedRecord, now time.Time) (*Record, error) {
	m, err := t.membersOf(s.Servers)
	if err != nil {
		return nil, err
	}
	settings, err := t.settingsOf(s.Settings)
	if err != nil {
		return nil, err
	}
	r := &Record{
		at:     RecordedAt{replica.Position{Term: a.IndexTerm, Index: a.Index}, max(a.Term, a.IndexTerm)},
		leader: t.name(s.Leader), process: s.Process, members: m.members, config: raft.Configuration{Servers: m.servers}, configAt: s.ConfigAt,
		snapshot: s.Snapshot, stats: s.Stats, settings: settings, since: now, level: true, replay: s.Replay, live: s.Live,
		sessions: s.Sessions, suspected: s.Suspected, state: slices.Clone(s.State), noted: now, stored: true,
	}
	r.setLacking(s.Lacks)
	return r, nil
}

func share[T any](t *shared, in *map[string]T, key string, make func() (T, error)) (T, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, ok := (*in)[key]; ok {
		return have, nil
	}
	made, err := make()
	if err != nil {
		return made, err
	}
	if *in == nil || len(*in) >= maxShared {
		*in = map[string]T{}
	}
	(*in)[key] = made
	return made, nil
}

func (t *shared) name(of string) string {
	name, _ := share(t, &t.names, of, func() (string, error) { return of, nil })
	return name
}

// membersOf returns the members of a configuration as appendServers has it.
func (t *shared) membersOf(b []byte) (*sharedMembers, error) {
	return share(t, &t.members, string(b), func() (*sharedMembers, error) {
		m, f := &sharedMembers{}, fieldReader{b: b}
		f.read(reflect.ValueOf(&m.servers).Elem())
		for _, s := range m.servers {
			m.members = append(m.members, replica.Member{Node: string(s.ID), Voter: s.Suffrage == raft.Voter})
		}
		return m, f.end()
	})
}

func (t *shared) settingsOf(b []byte) (*QueueConfig, error) {
	return share(t, &t.settings, string(b), func() (*QueueConfig, error) {
		c := &QueueConfig{}
		return c, proto.Unmarshal(b, c)
	})
}

// spec has a queue's description share what others have as well.
func (t *shared) spec(s Spec) Spec {
	if b, err := proto.Marshal(s.Config); err == nil && s.Config != nil {
		if c, err := t.settingsOf(b); err == nil {
			s.Config = c
		}
	}
	s.Members, _ = share(t, &t.nodes, strings.Join(s.Members, "\x00"), func() ([]string, error) { return s.Members, nil })
	return s
}

// shrink has a record share what others have as well.
func (t *shared) shrink(r *Record) {
	if m, err := t.membersOf(appendServers(nil, r.config.Servers)); err == nil {
		r.config.Servers, r.members = m.servers, m.members
	}
	if b, err := proto.Marshal(r.settings); err == nil && r.state != nil { // else the machine has them
		if c, err := t.settingsOf(b); err == nil {
			r.settings = c
		}
	}
	r.leader = t.name(r.leader)
}

// replayed makes the machine of a replica that sleeps from its log. All of that is committed (R1).
func replayed(n *Node, spec *Spec, at uint64) (*queue.Machine, error) {
	log, err := n.config.Store.Group(spec.Group)
	if err != nil {
		return nil, err
	}
	m := n.newMachine(*spec)
	s, err := walkStored(log, m, at, n.config.Newest)
	if err = errors.Join(err, s.Failure()); err == nil && s.Last != at {
		err = fmt.Errorf("the log ends at %d, and should at %d", s.Last, at)
	}
	return m, err
}
