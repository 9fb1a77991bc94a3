package sim

import (
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// findings are those of a review whose mends the simulation has to miss.
var findings = []finding{
	{
		id:    "D1",
		about: "time stands still for a queue whose leadership was not handed over",
		mend: []cluster.Change{
			{
				File: "cluster/group/tick.go",
				Old:  "t.inFlight, t.last = t.proposer.proposeTick(), t.ticker.Now()\n",
				New:  "t.inFlight, t.last = true, t.ticker.Now()\n\tt.proposer.proposeTick()\n",
			},
			{File: "cluster/group/handover.go", Old: "\tg.applier.rearm()\n"},
			// A second mend: a leader whose ticks stand still resigns after two seconds.
			{File: "cluster/group/apply.go", Old: "serves && a.tickIsDue(), a.timer.count()", New: "false, a.timer.count()"},
		},
		shows: `quiet: late: |not in time: everything confirmed is delivered: quiet: `,
		s:     failedTransfers(),
	},
	{
		id:    "M2",
		about: "a node to which connections were refused for a moment is locked out until it restarts",
		mend: []cluster.Change{
			{File: "cluster/failure/detector.go", Old: "deadAfter    = 2 * time.Second", New: "deadAfter    = 300 * time.Millisecond"},
			{File: "cluster/failure/detector.go", Old: "if !proven && !d.unheard(d.node.Life(), n) {", New: "if false {"},
			{File: "cluster/membership/join.go", Old: "\t\tif r.valid() {\n", New: "\t\tif r.valid() || true {\n"},
		},
		shows: `10s after everything was healed: nothing is confirmed`,
		s: script{Seed: 2, Nodes: 3, Steps: []step{
			{At: 3000, Do: cut, Node: "*", To: "n2", Fault: fault{Refuse: true}},
			{At: 3000, Do: reset, Node: "n2", To: "*"},
			{At: 4500, Do: heal, Node: "n1"},
		}},
	},
	{
		id:    "M3",
		about: "a letter counts as arrived at a target that is gone",
		mend: []cluster.Change{
			{File: "cluster/deadletter/outbox.go", Old: "\tcase fsm.Gone:\n\t\treturn\n", New: "\tcase fsm.Gone:\n"},
		},
		shows: `doomed: lost: |not in time: everything confirmed is delivered: doomed`,
		s: script{Seed: 3, Nodes: 3, Flows: []string{"doomed"}, Steps: []step{
			{At: 0, Do: move, Queue: "doomed", Node: "n1"},
			{At: 0, Do: cut, Node: "*", To: "*", Fault: fault{Delay: 60 * time.Millisecond, Jitter: 60 * time.Millisecond}},
			{At: 40000, Do: heal, Node: "n1"},
		}},
	},
	{
		id:    "M1",
		about: "one queue with a long routing key for its dead letters ends every node",
		mend: []cluster.Change{
			{File: "fsm/catalog/limits.go", Old: "if s, _ := text(lookup(args, name)); len(s) > fsm.MaxShort {", New: "if s, _ := text(lookup(args, name)); len(s) > fsm.MaxShort+1000 {"},
			{File: "fsm/fsm.go", Old: "if len(s) <= limit {", New: "if len(s) <= limit+1000 {"},
			{File: "fsm/payload.go", Old: "if len(exchange) > MaxShort || len(routingKey) > MaxShort ||", New: "if len(exchange) > MaxShort ||"},
		},
		shows: `panic: |not in time: everything confirmed is delivered: odd|odd: `,
		s: script{Seed: 1, Nodes: 3, Flows: []string{"odd"}, Steps: []step{
			{At: 5000, Do: hush, Queue: "odd"},
		}},
	},
	{
		id:    "D5",
		about: "a follower whose snapshot is newer than the leader's refuses the leader's for ever",
		mend: []cluster.Change{
			{
				File: "cluster/group/usage.go",
				Old:  "\tif at := o.g.store.SnapshotIndex(); at > index {\n\t\treturn nil, nil, at\n\t}\n",
			},
		},
		shows: `10s after everything was healed: nothing is confirmed`,
		s:     lostAcks(),
	},
	{
		id:    "D9",
		about: "a replica that opens late stays behind until something is published",
		mend: []cluster.Change{
			{File: "cluster/peer/pipeline.go", Old: "return errors.Is(err, ErrBusy) || errors.Is(err, ErrUnknownGroup)", New: "return errors.Is(err, ErrBusy)"},
			{File: "cluster/election/elect.go", Old: "\t\t\tg.HasNoLeader(from, it.Position.Index)\n"},
			// A further mend: who lacks entries, and is sent none, is found by looking.
			{File: "cluster/host/lag.go", Old: "\t\t\tnudge = true\n", New: "\t\t\tnudge = false\n"},
		},
		shows: `not in time: replicas of idle queues are complete: still: `,
		s:     lateReplica(),
	},
}

// failedTransfers hands over a leadership while the other nodes' disks hang, and
// again. Then nothing happens but that messages expire.
func failedTransfers() script {
	s := script{Seed: 1, Nodes: 3, Flows: []string{"quiet"}}
	for at := millis(2000); at < 20_000; at += 2500 {
		s.Steps = append(s.Steps,
			step{At: at, Do: hang, Node: "follower:quiet"},
			step{At: at, Do: hang, Node: "other:quiet"},
			step{At: at + 300, Do: move, Queue: "quiet", Node: "follower:quiet"},
			step{At: at + 1700, Do: unhang, Node: "*"},
		)
	}
	s.Steps = append(s.Steps, step{At: 20_000, Do: hush, Queue: "quiet"}, step{At: 30_000, Do: heal, Node: "n1"})
	return s
}

// lostAcks keeps a follower's answers from the leader, and then lets only these two
// go on. Their snapshots are not of the same entries, as the follower was away.
func lostAcks() script {
	s := script{Seed: 5, Nodes: 3, Flows: []string{"large"}}
	for n := range millis(10) {
		at := 8000*n + 100*n // snapshots come at intervals
		s.Steps = append(s.Steps,
			step{At: at, Do: kill, Node: "follower:large"},
			step{At: at + 400, Do: start, Node: "*"},
			step{At: at + 2500, Do: cut, Node: "follower:large", To: "leader:large", Fault: fault{Drop: true}},
			step{At: at + 4200, Do: power, Node: "other:large", Keep: 100},
			step{At: at + 4200, Do: reset, Node: "follower:large", To: "leader:large"}, // or they come later
			step{At: at + 4250, Do: heal, Node: "n1"},
			step{At: at + 4400, Do: ready},
			step{At: at + 5000, Do: start, Node: "*"},
		)
	}
	return s
}

// lateReplica has a node come back that reaches the leader of a queue at once, and
// registers, without which it does not open its replicas, later, as the disk of the
// catalog's leader hangs. By then the leader has given up what it tried to send while
// the node was away.
func lateReplica() script {
	catalog, queue := "leader:", "follower:"
	return script{Seed: 9, Nodes: 3, Flows: []string{"still"}, Steps: []step{
		{At: 0, Do: move, Queue: "still", Node: queue},
		{At: 5000, Do: kill, Node: "other:"},
		{At: 8000, Do: hush, Queue: "still"},
		{At: 80_000, Do: hang, Node: catalog},
		{At: 80_000, Do: start, Node: "other:"},
		{At: 81_800, Do: unhang, Node: catalog},
		{At: 83_000, Do: heal, Node: "n1"},
	}}
}
