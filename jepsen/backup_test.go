package jepsen

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/report"
	"github.com/quorate/quorate/jepsen/workload"
)

var (
	backupBacklog = flag.Int("jepsen.backlog", 2000, "how many messages wait when TestBackup makes a backup")
	backupSize    = flag.Int("jepsen.size", 1000, "how many bytes TestBackup's messages have")
)

// backupPublishers publish during a backup, each to a queue of its own. Before that they publish what waits.
const backupPublishers = 4

// Backups are made while messages are published, and the last one is brought back to another cluster: each message
// that was confirmed before it began comes from there, and none twice. What it measures is printed with -v.
func TestBackup(t *testing.T) {
	t.Parallel()
	limit := 3*time.Minute + time.Duration(*backupBacklog)*time.Millisecond
	r := mustStart(t, limit)
	tool, err := cluster.BuildTool(r.ctx, t.TempDir())
	r.must(err)
	files, queues := t.TempDir(), []string{"backup"}
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: queues[0]}))
	for i := range backupPublishers {
		queues = append(queues, fmt.Sprint("backup-", i+1))
		r.must(workload.Declare(r.ctx, r.Nodes[i%len(r.Nodes)].URI(), workload.Queue{Name: queues[1+i]}))
	}
	r.must(together(backupPublishers, func(i int) error {
		n := *backupBacklog*(i+1)/backupPublishers - *backupBacklog*i/backupPublishers
		p := client.Publisher{Name: fmt.Sprint("filler ", i+1), URIs: r.URIs(), First: i, Window: 500}
		return p.Run(r.ctx, r.History, workload.Count(n, plain(queues[0], *backupSize)))
	})())
	stop := make(chan struct{})
	published := together(backupPublishers, func(i int) error {
		p := client.Publisher{Name: fmt.Sprint("publisher ", i+1), URIs: r.URIs(), First: i, Window: 500, Rate: max(*rolledRate/backupPublishers, 1), Steady: true}
		return p.Run(r.ctx, r.History, workload.Until(stop, plain(queues[1+i], *backupSize)))
	})
	var all []report.Result
	var marks []time.Duration // when each way was about to be compared, began and ended
	for _, way := range []struct {
		name string
		args []string
	}{{"backup at 32 MiB/s", nil}, {"backup without a limit", []string{"--rate", strconv.Itoa(1 << 39)}}} {
		marks = append(marks, r.Now())
		r.must(r.awaitConfirms(r.ctx, 2**rolledRate))
		marks = append(marks, r.Now())
		all = append(all, r.backedUp(way.name, tool, slices.Concat([]string{"create", files}, way.args)))
		marks = append(marks, r.Now())
	}
	close(stop)
	r.must(published())
	for i := range all {
		calm := confirmTimes(r.History, marks[3*i], marks[3*i+1])
		all[i].Times = confirmTimes(r.History, marks[3*i+1], marks[3*i+2])
		all[i].Note("confirms without a backup, 99 %", calm.P99, "ms")
		all[i].Note("confirms without a backup, 50 %", calm.P50, "ms")
	}
	other := mustStart(t, limit)
	all = append(all, other.backedUp("restore", tool, []string{"restore", files}))
	for _, queue := range queues {
		r.must(workload.Drain(r.ctx, other.Nodes[0].URI(), queue, "drain "+queue, r.History))
	}
	if came := len(r.Deliveries); float64(came) != all[2].Messages {
		r.Errorf("%.0f messages were restored, %d came", all[2].Messages, came)
	}
	early := r.Copy()
	early.Deliveries = r.Deliveries
	for i := range early.Attempts {
		if a := &early.Attempts[i]; a.Return > marks[4] {
			a.Result = history.Unknown // it may be in the last backup, or not
		}
	}
	if n := early.Confirmed(); n < *backupBacklog+2**rolledRate {
		r.Errorf("only %d messages were confirmed before the last backup", n)
	}
	r.check(checker.Lost(early), checker.Ghosts(early), checker.Doubled(early))
	r.must(report.Publish(r.Output(), all, ""))
}

// backedUp has quoratectl make a backup, or bring one back, at a node that leads no more queues than the others.
func (r *run) backedUp(name, tool string, args []string) report.Result {
	r.Helper()
	words := append([]string{"-q", "--node", r.Nodes[2].HTTP, "--formatter", "json", "backup"}, args...)
	began := r.Now()
	text, err := exec.CommandContext(r.ctx, tool, words...).Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	r.must(err)
	took := r.Now() - began
	var done struct{ Messages float64 }
	r.must(json.Unmarshal(text, &done))
	made, err := filepath.Glob(filepath.Join(args[1], "*.backup"))
	if err != nil || len(made) == 0 {
		r.Fatalf("%s: no backup: %v", name, err)
	}
	info, err := os.Stat(made[len(made)-1])
	r.must(err)
	out := report.Result{Name: name, Messages: done.Messages, Seconds: took.Seconds(), PerSecond: done.Messages / took.Seconds()}
	out.Note("of the file", float64(info.Size())/1e9/out.Seconds*60, "GB/min")
	return out
}

// confirmTimes are those of the messages that were confirmed between two instants.
func confirmTimes(h *history.History, from, to time.Duration) *report.Quantiles {
	var took []time.Duration
	for _, a := range h.Attempts {
		if a.Result == history.OK && a.Return >= from && a.Return < to {
			took = append(took, a.Return-a.Call)
		}
	}
	return cmp.Or(report.QuantilesOf(took), &report.Quantiles{})
}
