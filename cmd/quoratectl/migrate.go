package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cmd/quoratectl/internal/migrate"
	"github.com/quorate/quorate/fsm/pattern"
)

// migrateLimit is how long a migration may take by default, in seconds.
const migrateLimit = 7 * 24 * 3600

func migrateVerbs() []verb {
	return []verb{{
		name: "migrate", timeout: migrateLimit, run: migrateAll, about: "imports definitions from RabbitMQ, and moves the messages of its queues",
		more: " Each message is acknowledged there after it is confirmed here. The same command resumes what was interrupted.",
		options: []option{
			{"from", "amqp or amqps `URI` of the other broker; with a path, only this vhost; QUORATECTL_FROM", ""},
			{"definitions", "`FILE` with its definitions, as it exports them; without it, queues that exist here", ""},
			{"to", "amqp or amqps `URI` of this broker (default: the host of --node, port 5672, or 5671 with --ca-file, with --username and --password)", ""},
			vhostPattern, queuePattern,
		},
		example: "--from amqp://guest:guest@old.example:5672 --definitions definitions.json",
	}}
}

// migrateAll takes definitions and moves queue after queue.
func migrateAll(c *call) error {
	ctx, stop := signal.NotifyContext(c, os.Interrupt, syscall.SIGTERM)
	defer stop()
	from, to, only, err := migrateEnds(c)
	if err != nil {
		return err
	}
	pick, err := pickQueues(c, only)
	if err != nil {
		return err
	}
	queues, skipped, err := migratedQueues(c, pick)
	if err != nil {
		return err
	}
	secure, err := c.options.tls()
	if err != nil {
		return err
	}
	var moved atomic.Int64
	begun := time.Now()
	end := c.progress(func() string {
		n := moved.Load()
		return fmt.Sprintf("%d messages moved, %.0f a second", n, float64(n)/time.Since(begun).Seconds())
	})
	var outcomes []migrate.Outcome
	for _, of := range byVHost(queues) {
		var pair *migrate.Pair
		if pair, err = migrate.Open(from, to, of[0].VHost, secure); err != nil {
			break
		}
		var some []migrate.Outcome
		some, err = moveQueues(ctx, pair, of, &moved)
		outcomes = append(outcomes, some...)
		if closing := pair.Close(); err != nil || closing != nil { // what is acknowledged there is written
			err = cmp.Or(err, closing)
			break
		}
	}
	end()
	return migrationReport(c, outcomes, skipped, err)
}

func moveQueues(ctx context.Context, pair *migrate.Pair, queues []migrate.Queue, moved *atomic.Int64) (outcomes []migrate.Outcome, err error) {
	for _, q := range queues {
		out, err := pair.Move(ctx, q, moved)
		outcomes = append(outcomes, out)
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// migrateEnds returns the two brokers, and the vhost that the source names; empty: it names none.
func migrateEnds(c *call) (from, to, vhost string, err error) {
	from = cmp.Or(c.option("from"), os.Getenv("QUORATECTL_FROM"))
	u, err := url.Parse(from)
	if err != nil || u.Host == "" || u.Scheme != "amqp" && u.Scheme != "amqps" {
		return "", "", "", usageError("--from must be an amqp or amqps URI") // which may hold a password
	}
	if len(u.Path) > 1 {
		vhost = u.Path[1:]
	}
	if to = c.option("to"); to == "" {
		base, err := url.Parse(c.client.base)
		if err != nil {
			return "", "", "", err
		}
		at := url.URL{Scheme: "amqp", Host: base.Hostname() + ":5672", User: url.UserPassword(c.client.user, c.client.password)}
		if base.Scheme == "https" {
			at.Scheme, at.Host = "amqps", base.Hostname()+":5671"
		}
		to = at.String()
	}
	if t, err := url.Parse(to); err != nil || t.Host == "" || t.Scheme != "amqp" && t.Scheme != "amqps" {
		return "", "", "", usageError("--to must be an amqp or amqps URI")
	}
	return from, to, vhost, nil
}

// pickQueues returns which queues are meant by the options; only is the one vhost that may be meant,
// empty: any.
func pickQueues(c *call, only string) (func(vhost, queue string) bool, error) {
	vhosts, err := pattern.Compile(c.option("vhost-pattern"))
	if err != nil {
		return nil, usageError("--vhost-pattern: %w", err)
	}
	names, err := pattern.Compile(c.option("queue-pattern"))
	if err != nil {
		return nil, usageError("--queue-pattern: %w", err)
	}
	return func(vhost, queue string) bool {
		return (only == "" || vhost == only) && vhosts.Match(vhost) && names.Match(queue)
	}, nil
}

// listedQueue is a queue in a file of definitions, as far as it matters here.
type listedQueue struct {
	VHost      string         `json:"vhost"`
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

func (q *listedQueue) kind() string {
	if kind, ok := q.Arguments["x-queue-type"].(string); ok {
		return kind
	}
	return cmp.Or(q.Type, "classic")
}

// migratedQueues takes the definitions, if there are any, and returns the queues to be moved, and
// what is left out with the reason.
func migratedQueues(c *call, pick func(vhost, queue string) bool) (queues []migrate.Queue, skipped []api.Skipped, err error) {
	listed, skipped, err := takenDefinitions(c)
	if err != nil {
		return nil, nil, err
	}
	var here []api.Queue
	if err := c.get("/api/queues", &here); err != nil {
		return nil, nil, err
	}
	if !c.given("definitions") {
		for _, q := range here {
			listed = append(listed, listedQueue{VHost: q.VHost, Name: q.Name, AutoDelete: q.AutoDelete})
		}
	}
	for _, q := range listed {
		reason := ""
		switch {
		case !pick(q.VHost, q.Name):
			continue
		case q.kind() != "classic" && q.kind() != "quorum":
			reason = "its messages are not moved: it is a queue of type " + q.kind()
		case q.AutoDelete:
			reason = "its messages are not moved: the queue would be deleted there as soon as nobody consumes from it"
		}
		if reason != "" {
			skipped = append(skipped, api.Skipped{Section: "messages", VHost: q.VHost, Name: q.Name, Reason: reason})
			continue
		}
		queues = append(queues, migrate.Queue{VHost: q.VHost, Name: q.Name, TTL: lifetimeOf(here, q.VHost, q.Name)})
	}
	return queues, skipped, nil
}

// takenDefinitions has the node take the file of definitions, and returns the queues in it.
func takenDefinitions(c *call) (queues []listedQueue, skipped []api.Skipped, err error) {
	if !c.given("definitions") {
		return nil, nil, nil
	}
	raw, err := readDefinitions(c, c.option("definitions"))
	if err != nil {
		return nil, nil, err
	}
	var file struct {
		Queues []listedQueue `json:"queues"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, nil, &exitError{exitData, fmt.Errorf("the definitions could not be parsed: %w", err)}
	}
	var report api.Imported
	if _, err = c.client.ask(c, http.MethodPost, partly, raw, &report); err != nil {
		return nil, nil, err
	}
	c.notes(report.Notes)
	return file.Queues, report.Skipped, nil
}

// lifetimeOf returns the TTL that a queue here gives its messages, in milliseconds; negative: none.
func lifetimeOf(here []api.Queue, vhost, name string) int64 {
	i := slices.IndexFunc(here, func(q api.Queue) bool { return q.VHost == vhost && q.Name == name })
	if i < 0 {
		return -1
	}
	least := int64(-1)
	for _, value := range []any{here[i].Arguments["x-message-ttl"], here[i].EffectiveDefinition["message-ttl"]} {
		if ttl, err := strconv.ParseInt(fmt.Sprint(wholeNumber(value)), 10, 64); err == nil && (least < 0 || ttl < least) {
			least = ttl
		}
	}
	return least
}

// wholeNumber writes a number of JSON without an exponent.
func wholeNumber(v any) any {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return v
}

// byVHost splits queues by their vhosts.
func byVHost(queues []migrate.Queue) (all [][]migrate.Queue) {
	slices.SortStableFunc(queues, func(a, b migrate.Queue) int { return cmp.Compare(a.VHost, b.VHost) })
	for i, q := range queues {
		if i == 0 || q.VHost != queues[i-1].VHost {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], q)
	}
	return all
}

var migratedColumns = columnsOf[migrate.Outcome]("vhost name result moved left redelivered marked ttl_kept ttl_restarted")

// migration is the report as JSON.
type migration struct {
	Queues  []migrate.Outcome `json:"queues"`
	Skipped []api.Skipped     `json:"skipped"`
}

// migrationReport shows what has been moved and what has not, and turns that into the exit code.
func migrationReport(c *call, outcomes []migrate.Outcome, skipped []api.Skipped, broken error) error {
	left := len(skipped)
	for _, o := range outcomes {
		if o.Result != migrate.Moved || o.Left > 0 {
			left++
		}
	}
	var err error
	if c.options.formatter == "json" {
		err = c.json(migration{outcomes, skipped})
	} else {
		if err = list(c, "Queues ...", migratedColumns, nil, outcomes); err == nil && len(skipped) > 0 {
			err = list(c, "What was not imported ...", skippedColumns, nil, skipped)
		}
	}
	switch {
	case err != nil:
		return err
	case errors.Is(broken, migrate.ErrBroken):
		return &exitError{exitTemporary, broken}
	case broken != nil:
		return broken
	case slices.ContainsFunc(skipped, func(s api.Skipped) bool { return s.Section != "messages" }):
		return &exitError{exitData, fmt.Errorf("%d definitions or queues were not imported or not moved completely", left)}
	case left > 0:
		return &exitError{exitFailed, fmt.Errorf("%d definitions or queues were not imported or not moved completely", left)}
	}
	return nil
}
