package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// progressEvery is how often the progress of long work is shown.
const progressEvery = 5 * time.Second

// progress shows how far work has come, on the standard error, until the result is called. state
// returns the line to show; none: it is not known.
func (c *call) progress(state func() string) (end func()) {
	if c.options.quiet || c.options.bare {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(c.progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if line := state(); line != "" {
					fmt.Fprintln(c.errOut, line)
				}
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// movedBytes is the progress of a backup.
func (c *call) movedBytes(what string) func() string {
	return func() string { return fmt.Sprintf("%d MB %s", c.moved.Load()/1e6, what) }
}

// queuesNow lists all queues as the node that is asked knows them, without their stats.
func queuesNow(c *call) (all []api.Queue, err error) {
	return all, c.get("/api/queues?disable_stats=true&columns=name,vhost,leader,members", &all)
}

// queueProgress is the progress of work on all queues: how many of them are as they are to be.
func queueProgress(c *call, what string, done func(q *api.Queue) bool) func() string {
	return func() string {
		all, err := queuesNow(c)
		if err != nil {
			return ""
		}
		n := 0
		for i := range all {
			if done(&all[i]) {
				n++
			}
		}
		return fmt.Sprintf("%d of %d queues %s", n, len(all), what)
	}
}

// leaderProgress is the progress of moving leaders: how many each node has.
func leaderProgress(c *call) func() string {
	return func() string {
		all, err := queuesNow(c)
		if err != nil {
			return ""
		}
		count := map[string]int{}
		for _, q := range all {
			if q.Leader != nil {
				count[*q.Leader]++
			}
		}
		var words []string
		for _, node := range slices.Sorted(maps.Keys(count)) {
			words = append(words, fmt.Sprintf("%s %d", node, count[node]))
		}
		return "leaders: " + strings.Join(words, ", ")
	}
}

// memberProgress is the progress of a replica that receives the log of its queue.
func memberProgress(c *call, queue, node string) func() string {
	return func() string {
		var rows []api.Member
		if c.get(path("queues", "quorum", c.options.vhost, queue, "status"), &rows) != nil {
			return ""
		}
		last, has, state := uint64(0), uint64(0), "no replica yet"
		for _, m := range rows {
			if last = max(last, m.CommitIndex); m.Node == node {
				has, state = m.LastLogIndex, m.Membership
			}
		}
		return fmt.Sprintf("%s: entry %d of %d, %s", node, has, last, state)
	}
}

// importProgress is the progress of an import, of which queues take the longest.
func importProgress(c *call) func() string {
	return func() string {
		var page struct {
			Total int `json:"total_count"`
		}
		if c.get("/api/queues?disable_stats=true&columns=name&page=1&page_size=1", &page) != nil {
			return ""
		}
		return fmt.Sprintf("%d queues exist", page.Total)
	}
}
