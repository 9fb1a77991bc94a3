package membership

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// RecoverOptions configure the recovery of a cluster that has lost its majority for good.
type RecoverOptions struct {
	DataDir string   // of the node that is to be the cluster; it has stopped
	Also    []string // copies of the remaining data folders of other nodes
	Act     bool     // false: nothing is changed
	Logger  *slog.Logger
	Exit    func(code int) // of a node whose stores cannot be written or read
}

// Recovery describes what a node holds, what may be lost if it becomes the whole cluster, and
// whether it has become that.
type Recovery struct {
	Node    string           `json:"node"`
	DataDir string           `json:"data_dir"`
	GivenUp []string         `json:"given_up"` // nodes
	Catalog RecoveredGroup   `json:"catalog"`
	Queues  []RecoveredGroup `json:"queues"`
	// Ended are queues that lived on a node that is given up, or belonged to a connection to it.
	Ended []string `json:"ended"`
	Done  bool     `json:"done"`
}

// RecoveredGroup is one group of a Recovery.
type RecoveredGroup struct {
	VHost  string   `json:"vhost"`
	Name   string   `json:"name"`
	Group  uint32   `json:"group"`
	From   string   `json:"from"` // node whose replica is taken; empty: there is none
	Last   uint64   `json:"last_index"`
	Term   uint64   `json:"last_term"`
	Voters []string `json:"voters"`
	Doubt  string   `json:"doubt"`  // why the replica may hold less than it has acknowledged
	Failed string   `json:"failed"` // why its state cannot be computed

	Ready          int `json:"messages_ready"`
	Unacknowledged int `json:"messages_unacknowledged"`
	Scheduled      int `json:"messages_scheduled"` // delayed ones included
	DeadLetters    int `json:"dead_letters"`       // that wait

	// Complete: nothing that was ever confirmed or answered is missing.
	Complete bool `json:"complete"`
	// Loss describes what may be lost; empty: nothing.
	Loss string `json:"loss"`

	id     fsm.QueueID
	source *dataFolder
	stored replica.Stored
}

// dataFolder is the data folder of a stopped node.
type dataFolder struct {
	node      string
	directory *directory
	store     *raftlog.Store
	groups    []fsm.GroupID // in the store
	isWhole   func() bool   // the store can prove that it has all that it ever had
	stable    *raftlog.Catalog
	catalog   replica.Stored
	view      *catalog.View
}

func openFolder(dir string, o RecoverOptions) (*dataFolder, error) {
	if _, err := os.Stat(filepath.Join(dir, nodeFile)); err != nil {
		return nil, fmt.Errorf("%s is not the data folder of a node: %w", dir, err)
	}
	d, err := openDirectory(vfs.Default, dir, "")
	if err != nil {
		return nil, err
	}
	r := &dataFolder{node: d.record().Name, directory: d}
	r.isWhole = sync.OnceValue(r.proveStore)
	if r.node == "" {
		return nil, errors.Join(fmt.Errorf("%s does not say which node it belongs to", dir), r.close())
	}
	r.stable, err = raftlog.OpenCatalog(filepath.Join(dir, CatalogFolder), raftlog.CatalogOptions{Logger: o.Logger, Exit: o.Exit})
	if err == nil {
		r.catalog, r.view, err = replicated.Inspect(r.stable)
	}
	if err == nil {
		err = readable(r.view)
	}
	if err == nil {
		r.store, err = raftlog.Open(filepath.Join(dir, QueuesFolder), raftlog.Options{Logger: o.Logger, Exit: o.Exit, TrailingLogs: group.TrailingLogs})
	}
	if err == nil {
		r.groups, err = r.store.GroupIDs()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), r.close())
	}
	if _, known := r.view.NodeByName(r.node); !known {
		return nil, errors.Join(fmt.Errorf("%s: its catalog does not contain node %s: there is nothing to recover", dir, r.node), r.close())
	}
	return r, nil
}

// readable refuses data that another program must read: what this one does not know in the store of the
// queues would be missing to it, and what misses something is damaged.
func readable(v *catalog.View) error {
	if now := v.FSMVersion(); !fsm.Supported.Include(now) {
		return fmt.Errorf("the cluster's fsm_version is %d, but this program supports %s", now, fsm.Supported)
	}
	return nil
}

func (r *dataFolder) close() error {
	var errs []error
	if r.stable != nil {
		errs = append(errs, r.stable.Close())
	}
	if r.store != nil {
		errs = append(errs, r.store.Close())
	}
	return errors.Join(append(errs, r.directory.close())...)
}

// Recover makes a stopped node the whole cluster, from the contents of its data folder, when a
// majority of the cluster is lost for good. All other nodes are given up: none of them may be
// started again with its data. It reports what may be lost, and changes something only if o.Act is
// set.
func Recover(o RecoverOptions) (*Recovery, error) {
	var all []*dataFolder
	defer func() {
		for _, r := range all {
			if err := r.close(); err != nil {
				o.Logger.Error("data folder not closed", "node", r.node, "error", err)
			}
		}
	}()
	for _, dir := range append([]string{o.DataDir}, o.Also...) {
		r, err := openFolder(dir, o)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	main := all[0]
	for i, r := range all[1:] {
		if r.node == main.node {
			return nil, fmt.Errorf("%s belongs to node %s as well", o.Also[i], r.node)
		}
		if r.catalog.Beyond(&main.catalog) {
			return nil, fmt.Errorf("the catalog of node %s, in %s, is ahead (entry %d of term %d) of that of node %s (entry %d of term %d): recover that one, with this one as --also",
				r.node, o.Also[i], r.catalog.Last, r.catalog.Term, main.node, main.catalog.Last, main.catalog.Term)
		}
	}
	if len(main.view.Nodes()) == 1 && slices.Equal(main.catalog.Voters, []string{main.node}) {
		return nil, fmt.Errorf("node %s already is the whole cluster: there is nothing to recover", main.node)
	}
	rec, err := inspect(main, all)
	if err != nil || !o.Act {
		return rec, err
	}
	if err := main.take(rec); err != nil {
		return rec, fmt.Errorf("the recovery was interrupted; run it again: %w", err)
	}
	rec.Done = true
	return rec, nil
}

// inspect reads what the folders hold.
func inspect(main *dataFolder, all []*dataFolder) (*Recovery, error) {
	rec := &Recovery{Node: main.node, DataDir: filepath.Dir(main.directory.path), GivenUp: []string{}, Ended: []string{}, Queues: []RecoveredGroup{}}
	for _, n := range main.view.Nodes() {
		if n.Name != main.node {
			rec.GivenUp = append(rec.GivenUp, n.Name)
		}
	}
	slices.Sort(rec.GivenUp)
	self, _ := main.view.NodeByName(main.node)
	rec.Catalog = RecoveredGroup{Name: "catalog", From: main.node, stored: main.catalog, source: main}
	rec.Catalog.assess(all)
	for _, q := range main.view.Queues() {
		number := fsm.NodeID(self.GetNumber())
		switch {
		case q.NeedsOther(number):
			rec.Ended = append(rec.Ended, q.String())
		case !q.Local:
			g, err := inspectQueue(q, main.view, all)
			if err != nil {
				return nil, err
			}
			rec.Queues = append(rec.Queues, g)
		}
	}
	return rec, nil
}

// inspectQueue chooses the replica of a queue that holds everything which any of the others can
// prove.
func inspectQueue(q *catalog.Queue, v *catalog.View, all []*dataFolder) (RecoveredGroup, error) {
	g := RecoveredGroup{VHost: q.VHost, Name: q.Name, Group: uint32(q.Group), id: q.ID}
	for _, r := range all {
		if !slices.Contains(r.groups, q.Group) {
			continue
		}
		log, err := r.store.Group(q.Group)
		if err != nil {
			return g, fmt.Errorf("%s at node %s: %w", q, r.node, err)
		}
		s, stats, err := group.InspectQueue(log, q, fsm.Supported.Newest)
		if err != nil {
			return g, fmt.Errorf("%s at node %s: %w", q, r.node, err)
		}
		if s.Last == 0 || g.source != nil && !s.Beyond(&g.stored) {
			continue
		}
		g.source, g.stored, g.From = r, s, r.node
		g.Ready, g.Unacknowledged, g.DeadLetters = int(stats.Ready.Messages), int(stats.Unacknowledged.Messages), int(stats.Outbox.Messages)
		g.Scheduled = int(stats.Scheduled.Messages + stats.Delayed.Messages)
	}
	if g.source == nil {
		g.assessNothing(q, v, all)
		return g, nil
	}
	g.assess(all)
	return g, nil
}

// assessNothing determines what may be lost of a queue of which no folder has anything. A member of a queue in which nothing
// has happened stores nothing, so those that are left prove that it is empty if a message would be on one of them.
func (g *RecoveredGroup) assessNothing(q *catalog.Queue, v *catalog.View, all []*dataFolder) {
	g.Voters, g.Loss = []string{}, "all messages: no replica is left, and the queue is created empty"
	if v.HasMoved(q) {
		return // its members had something before
	}
	members := q.MemberNames(v)
	var gone []string
	for _, m := range members {
		if !slices.ContainsFunc(all, func(r *dataFolder) bool { return r.node == m && r.isWhole() }) {
			gone = append(gone, m)
		}
	}
	slices.Sort(gone)
	switch {
	case len(gone) == len(members):
	case 2*len(gone) > len(members):
		g.Loss = "messages that were confirmed and are only on " + strings.Join(gone, ", ")
	default:
		g.Loss, g.Complete = "", true
	}
}

// proveStore reports whether the store of the queues can prove that it has all that it ever had: it has some, none of which is
// in doubt. An empty one may have been made when it was opened for this.
func (r *dataFolder) proveStore() bool {
	return len(r.groups) > 0 && !slices.ContainsFunc(r.groups, func(id fsm.GroupID) bool {
		log, err := r.store.Group(id)
		return err != nil || log.Doubt() != ""
	})
}

// assess determines what may be lost if one replica is taken for the whole group. A confirmed entry
// is on a majority of the voters. If the missing voters are not a majority, at least one remaining
// voter has the entry, and so has the one with the longest log.
func (g *RecoveredGroup) assess(all []*dataFolder) {
	s := &g.stored
	g.Last, g.Term, g.Voters, g.Doubt, g.Failed = s.Last, s.Term, append([]string{}, s.Voters...), s.Doubt, s.Failed
	slices.Sort(g.Voters)
	var gone []string
	for _, v := range g.Voters {
		if !slices.ContainsFunc(all, func(r *dataFolder) bool { return r.node == v && r.proves(g) }) {
			gone = append(gone, v)
		}
	}
	switch {
	case !slices.Contains(s.Voters, g.From):
		g.Loss = "what node " + g.From + " had not yet copied: its replica was new"
	case g.Doubt != "" && len(all) == 1:
		g.Loss = "what node " + g.From + " has lost: " + g.Doubt
	case 2*len(gone) > len(s.Voters):
		g.Loss = "messages that were confirmed and are only on " + strings.Join(gone, ", ")
	}
	g.Complete = g.Loss == ""
}

// proves reports whether a node that is left has a replica of a group which
// can prove that it holds everything it has acknowledged.
func (r *dataFolder) proves(g *RecoveredGroup) bool {
	if g.id == 0 { // the catalog
		return r.catalog.Doubt == ""
	}
	if !slices.Contains(r.groups, fsm.GroupID(g.Group)) {
		return false
	}
	log, err := r.store.Group(fsm.GroupID(g.Group))
	return err == nil && log.Doubt() == ""
}

// take makes the node the only member of every group, queues first: as long as the catalog has not
// got its entry, the recovery can be run again.
func (r *dataFolder) take(rec *Recovery) error {
	command := &logpb.RecoverCluster{Name: r.node}
	for _, q := range rec.Queues {
		if err := r.takeQueue(&q); err != nil {
			return fmt.Errorf("queue %s in vhost %s: %w", q.Name, q.VHost, err)
		}
		if q.source == nil {
			command.Empty = append(command.Empty, uint64(q.id))
		}
	}
	entry, err := logpb.Marshal(&logpb.CatalogEntry{Version: r.view.FSMVersion(), Now: time.Now().UnixMilli(), Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RecoverCluster{RecoverCluster: command}},
	}})
	if err != nil {
		return err
	}
	last, err := replica.TakeOver(r.stable, &r.catalog, r.node, entry)
	if err == nil {
		err = r.stable.Prove()
	}
	if err != nil {
		return fmt.Errorf("catalog: %w", err)
	}
	return r.directory.alone(last)
}

func (r *dataFolder) takeQueue(q *RecoveredGroup) error {
	id := fsm.GroupID(q.Group)
	switch q.source {
	case nil:
		return r.store.DropGroup(id)
	case r:
	default:
		if err := group.CopyQueue(r.store, q.source.store, id); err != nil {
			return err
		}
	}
	log, err := r.store.Group(id)
	if err != nil {
		return err
	}
	if _, err := replica.TakeOver(log, &q.stored, r.node); err != nil {
		return err
	}
	return log.Prove()
}

// Explain tells the lives of messages of a queue from the data folder of a node that
// has stopped. It changes nothing that the node would miss.
func Explain(o RecoverOptions, vhost, queue string, wanted explain.Wanted) (x api.Explanation, err error) {
	r, err := openFolder(o.DataDir, o)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	q, ok := r.view.Queue(vhost, queue)
	switch {
	case !ok:
		return x, fmt.Errorf("no queue %s in vhost %s", queue, vhost)
	case q.Local:
		return x, fmt.Errorf("%s: %w", q, group.ErrNoHistory)
	}
	log, err := r.store.Group(q.Group)
	if err != nil {
		return x, err
	}
	t := explain.New(q, fsm.Supported.Newest, wanted, r.view)
	if _, err := group.ReplayStored(log, t); err != nil {
		return x, fmt.Errorf("%s: %w", q, err)
	}
	x = t.Explanation(q, r.node)
	x.Uncertain = true
	return x, nil
}
