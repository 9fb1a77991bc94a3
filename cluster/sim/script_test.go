package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/fsm/catalog"
)

// script is what happens to a cluster. It is what a failing run prints, and what
// -sim.script reads.
type script struct {
	Seed  uint64   `json:"seed"` // of the network's jitter, of what disks keep and of what clients publish
	Nodes int      `json:"nodes"`
	Flows []string `json:"flows,omitempty"` // names of kinds of flows; empty: usual
	Idle  millis   `json:"idle,omitempty"`  // after which queues sleep; 0: they do not
	Steps []step   `json:"steps"`           // in the order of their times
}

// action is a kind of step.
type action string

const (
	kill   action = "kill"   // the process of Node ends
	power  action = "power"  // the machine of Node goes; Keep percent of what was not synced stays
	stop   action = "stop"   // the process of Node ends in order
	start  action = "start"  // Node runs again
	cut    action = "link"   // the link from Node to To gets Fault
	reset  action = "reset"  // connections between Node and To break
	heal   action = "heal"   // all links are well again
	clocks action = "clock"  // the clock of Node is ahead by Ahead, and gains Drift
	hang   action = "hang"   // the disk of Node hangs
	unhang action = "unhang" // it works again
	fail   action = "fail"   // the disk of Node answers syncs, or all that changes something, with Error, from the one after Skip on
	flip   action = "flip"   // a bit on the disk of Node flips
	move   action = "move"   // the leadership of Queue is handed over to Node
	hush   action = "hush"   // nothing more is published to Queue
	ready  action = "ready"  // every queue has to confirm through every node that runs, and the script waits for that
)

// step is one thing that happens. A node is given by its name, or as leader:Q,
// follower:Q or other:Q of a queue, which are different ones as long as the leader
// is the same, or as * for all. leader: and so on without a queue are those of the
// catalog.
type step struct {
	At    millis  `json:"at"` // since the workload began
	Do    action  `json:"do"`
	Node  string  `json:"node,omitempty"`
	To    string  `json:"to,omitempty"`
	Queue string  `json:"queue,omitempty"`
	Fault fault   `json:"fault,omitzero"`
	Keep  int     `json:"keep,omitempty"`
	Ahead millis  `json:"ahead,omitempty"`
	Drift float64 `json:"drift,omitempty"`
	Error string  `json:"error,omitempty"` // of errnos
	Syncs bool    `json:"syncs,omitempty"`
	Skip  int     `json:"skip,omitempty"`
}

// millis is a number of milliseconds.
type millis int64

func (m millis) duration() time.Duration { return time.Duration(m) * time.Millisecond }

func (s *script) String() string {
	raw, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// roles are those of nodes for a queue, by how far a node comes after the leader.
var roles = []string{"leader", "follower", "other"}

// find returns the nodes that a step names.
func (w *world) find(who string) []string {
	role, queue, by := strings.Cut(who, ":")
	switch {
	case who == "*":
		return w.names
	case !by:
		return []string{who}
	}
	leader := w.leader(queue)
	if leader == "" {
		leader = w.names[0]
	}
	i := slices.Index(w.names, leader) + slices.Index(roles, role)
	return []string{w.names[i%len(w.names)]}
}

// perform does one step.
func (w *world) perform(s step) {
	if w.restless(s) {
		return
	}
	switch s.Do {
	case hush:
		for _, f := range w.flows {
			if f.publishTo == s.Queue {
				f.last.Store(true)
			}
		}
		return
	case ready:
		w.probe(context.Background(), time.Now(), w.running())
		return
	}
	for _, name := range w.find(s.Node) {
		m := w.nodes[name]
		switch s.Do {
		case kill:
			w.crash(name, false, 100)
		case power:
			w.crash(name, true, s.Keep)
		case stop:
			w.stop(name)
		case start:
			if !m.runs() {
				m.mend()                  // Open would wait, and with it the script
				w.crash(name, false, 100) // it may still be stopping: nobody waits for that
				w.start(name)
			}
		case cut:
			for _, to := range w.find(s.To) {
				if to != name {
					w.net.set(link{name, to}, s.Fault)
				}
			}
		case reset:
			for _, to := range w.find(s.To) {
				w.net.reset(name, to)
			}
		case heal:
			w.net.heal()
		case hang:
			m.hang()
		case unhang:
			m.unhang()
		case fail:
			m.fail(s)
		case flip:
			w.flip(m)
		case move:
			w.move(s.Queue, name)
		case clocks:
			m.clock.set(s.Ahead.duration(), s.Drift)
		default:
			w.problem("no such step: %s", s.Do)
		}
	}
}

// move begins to hand over a queue's leadership; that may fail.
func (w *world) move(queue, to string) {
	w.manage(w.find("leader:" + queue)[0], queue, func(ctx context.Context, m *mgmt.Backend, q *catalog.Queue) {
		_ = m.Placement.TransferLeadership(ctx, q, to)
	})
}

// running are the nodes that run.
func (w *world) running() (names []string) {
	for _, name := range w.names {
		if w.nodes[name].running() != nil {
			names = append(names, name)
		}
	}
	return names
}

// problem notes that something is wrong. A run goes on, to find more.
func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}
