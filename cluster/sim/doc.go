// Package sim runs whole nodes in one process under virtual time, breaks what
// lies between and beneath them, and judges what clients saw.
//
// Real are: raft, the machines, the command stream, dead letters, AMQP sessions
// with a stock client, the links between nodes (gRPC), and the stores (Pebble).
// Simulated are the wall and the monotonic clock of each node, the network, the
// disks, and the end of a process. A node gets them by cluster.Config, as in
// production.
//
// A script says what breaks and when. It is drawn from a seed; a failing run
// prints it.
//
//	go test ./cluster/sim                         a few scripts
//	go test ./cluster/sim -sim.hours 10           scripts from new seeds for ten virtual hours; -v prints sums
//	    -sim.from 5000                            and these seeds are 5000 and what follows
//	go test ./cluster/sim -sim.seed 7             the script of one seed; with -sim.hours 1 as that draws it
//	go test ./cluster/sim -sim.script file.json   a script that was printed
//	    -sim.shrink                               and without the steps that it does not need
//	    -sim.keep folder                          and the disks of all nodes at its end, if it fails; with
//	                                              -sim.hours in a folder for each seed
//	    -sim.five                                 drawn scripts with five nodes
//	    -sim.asleep                               drawn scripts in which queues sleep: see below
//	    -sim.here                                 in this process: see Limits
//	go test ./cluster/sim -run TestFindings -sim.findings all -timeout 0
//	                                              builds with old mends taken back: see below
//	go test ./cluster/sim -run TestReplay -sim.replay folder -v
//	                                              what was kept, applied again: see below
//
// # Findings
//
// A simulation that finds nothing may be blind. The mends of six findings of a
// review are taken back, each in a build of its own, and a fixed script must then
// fail, within three virtual minutes; with the mends it must not. -sim.findings
// D1,M2 names some of them.
//
// # Recording and replay
//
// The logs on the disks of the nodes are the recording of a run: they hold every
// entry with all inputs of the machines, times included. -sim.keep leaves the data
// folders of a failing run in FOLDER, one for each node.
//
//	go test ./cluster/sim -run TestReplay -sim.replay FOLDER -v
//	quoratectl log explain --data-dir FOLDER/n1 --queue orders --message 7
//
// TestReplay applies the logs of all queues again, without raft and without nodes,
// prints the hashes of the states at their ends, and compares them at each entry
// that two nodes have of the same term: they must be equal. It works on a copy; log
// explain, which tells what happened to one message, opens the folder itself, which
// is to be readable by its owner only. TestLeaderLosesPower checks that what is
// recorded leads to the states that the nodes were in, and that a log of which one
// entry is another leads to others.
//
// # Sleep
//
// In a script with idle, queues sleep that do nothing for that many milliseconds, all of
// them. -sim.asleep draws 20 to 500 ms, and adds steps between those of other scripts:
// clients pause, so that queues fall asleep at all replicas; a replica is woken, or its
// leadership moved; nodes are killed, drained and revived; members are removed and added
// again, in scripts in which no bits flip. With the tag invariants what a replica sleeps
// with is compared with what it wakes with.
//
//	go test -tags invariants ./cluster/sim -run TestScripts -sim.hours 10 -sim.asleep -v -timeout 0
//
// # Runs
//
// Scripts drawn for -sim.hours, three nodes:
//
//	virtual hours  seeds                            confirmed  found
//	0.05           1795412661453510964              2,193      nothing
//	0.40           1795413439456542573 and 6 after  16,968     nothing
//	0.06           1795413439456542580              2,700      two runs of three: messages expire 2.5 s early. Open: n1 is
//	                                                           54 minutes ahead, n2 is slow, n3 dies: -sim.hours 1 -sim.seed ...
//	5.95           105 from 1795421565998633966 on  290,110    messages expire 1 to 5 s early: a process that has just started leads before
//	                                                           a majority of the clocks agrees, and stepped ahead by the leaderless time
//	                                                           when it did (1795422965832329017). See cluster/clock/DESIGN.md, Jumps
//
// With -sim.asleep, three nodes:
//
//	virtual hours  seeds                            confirmed  found
//	10.9           16; 1000 to 1025, 2000 to 2097,  350,000    a replica with another state than the others (16): mended. Nothing is confirmed
//	               3000 to 3018, and others                    by a queue (1014), messages are not delivered (2054): neither in seven plays each
//	                                                           of a later tree, nor in those of the two seeds on both sides
//	18.9           5000 to 5141, 6000 to 6121, and  574,000    all mended, and played again: raft panics, as the catalog's log has no beginning
//	               2080, 5001 and 6001 many times              (2080, 5076, 6103); a consumer starves whose lost delivery timed out (5001); a
//	                                                           node that was drained early lets nobody in (5037, and 7 more); both copies of
//	                                                           node.json have flips (5036, and 3 more). Open: a confirmed message of the queue
//	                                                           held is never delivered (6001, one play of 27)
//	14.2           5143 to 5226, 6123 to 6207, and  440,000    a leader whose tick is due proposes none until it resigns after 2.25 s, so a
//	               those that failed before                    letter is 2.26 s late (2008, one play of 7): mended
//	26.9           9000 to 9457                     814,000    the connection that takes what is left ends once (9039, one play of 4): see below
//	25.0           10000 to 10423                   756,000    that tick again (10196, 10226), and a leader that wakes follows a step of the clocks,
//	                                                           so messages expire 4 s early (10226): both mended
//	4.2            11000 to 11226                   120,000    nothing
//	33.2           500000 to 500562                 1,012,000  that connection again (500349, 500460: two plays of 6): a queue that sleeps is read
//	                                                           last, and its node finds bits that have flipped and begins anew. The play gives it
//	                                                           time now, and it is not seen in 15 plays. Open: a replica that is rebuilt for such
//	                                                           bits is complete too late (500365, one play of 5)
//
// Pebble has checks of its own under the tag invariants, which end the process where bits have flipped (5028).
//
// A virtual second costs about 10 ms of a processor while nothing breaks, and twice
// that in drawn scripts, 3 ms if nothing is published. No part of that stands out:
// of a drawn script raft's goroutines are a fourth, the disks' copies at each sync a
// twentieth. A bit that has flipped costs most: Pebble tries all bits of its block.
//
// # Limits
//
// Time is virtual, the order of goroutines is not, and raft draws its own random
// numbers: the same script does not give the same history. Play a failing one
// many times.
//
// Virtual time passes only while every goroutine waits for something that
// testing/synctest knows. A sync.Mutex is nothing of the kind: if its holder
// waits for time to pass and somebody else waits for the mutex, both wait for
// ever, and the run ends with all stacks. Locks that are held while raft or the
// network is waited for must be of another kind (see worker.LongLock).
// The locks of stores are held while a disk is waited for. So scripts given by flags,
// and those of findings, are played by builds of their own, in which the Go runtime
// counts mutexes among what it knows: three lines of a list, by -overlay. The first
// such build compiles the standard library. A script of -sim.hours has a process of
// its own: one that dies does not end the others, and one in which 2 GiB are in
// memory ends with all stacks and with what is in it (most have 150 to 400 MB). What
// is played in this process, as all of that without flags, hangs no disk.
//
// Under the race detector everything runs on one processor: with more, the
// detector itself dies of timers now and then (golang/go#78156).
//
// In scripts of even seeds a clock may be wrong, and a message early by the skew that is allowed. In
// the others nothing is early by more than the grain of a stamp.
//
// Timers of all nodes run at the same speed, even where a clock drifts: drift
// shows in what clocks say, not in how long a node waits.
//
// A disk loses what was not synced when its machine loses power, its bits flip, it
// answers errors, and it hangs. Errors begin when a node is open, not while it
// opens, and a disk that hangs works again when its node starts. While a process runs,
// only bits of tables flip: it reads nothing else. One node of a script has bits that
// flip: three replicas bear the damage of one.
//
// A process that ends itself goes on in the dark as one that is killed: what failed
// is tried again there, and succeeds (see raftlog.Options.Exit), as bits that have
// flipped are as they were. A goroutine that meets what is wrong for good ends.
//
// A process that is killed keeps running in the dark until it has cleaned up:
// its disk and its connections are not those of its successor. Passwords are not
// compared, links are not encrypted, and there is no HTTP.
//
// Nothing here is used in production.
package sim
