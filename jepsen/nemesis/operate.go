package nemesis

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// policyStorms are what PolicyStorm sets in turn. No message of a test lives so long, and no
// queue is so full, that one of them changes what becomes of it.
var policyStorms = []map[string]any{
	{"message-ttl": time.Hour.Milliseconds()},
	{"max-length": 10_000_000},
	{"message-ttl": 2 * time.Hour.Milliseconds(), "max-length": 20_000_000},
	{"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "max-length-bytes": 10 << 40},
	{"delivery-limit": 1_000_000, "consumer-timeout": time.Hour.Milliseconds()},
}

// stormEvery is the time from one change of a policy to the next, or from one delete to the
// next.
const stormEvery = 25 * time.Millisecond

// PolicyStorm sets, changes and clears policies of all queues whose names match a pattern,
// many times a second, through each node in turn.
func PolicyStorm(pattern string, lasts time.Duration) Fault {
	return Fault{Name: "policy storm", Kind: Policies, Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		defer h.Fault(Policies, 0)()
		for end, i := time.Now().Add(lasts), 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
			p := cluster.Policy{Name: "storm", Operator: i%2 == 1, Pattern: pattern, ApplyTo: "quorum_queues", Priority: i % 7, Definition: policyStorms[i%len(policyStorms)]}
			if p.Operator {
				p.Definition = policyStorms[i/2%2]
			}
			n := c.Nodes[i%len(c.Nodes)]
			// A node may be down or apart at the moment.
			_ = n.SetPolicy(ctx, p)
			pause(ctx, stormEvery)
			if i%5 == 4 {
				_ = n.ClearPolicy(ctx, p)
			}
		}
		for _, operator := range []bool{false, true} {
			if err := clearPolicy(ctx, c, cluster.Policy{Name: "storm", Operator: operator}); err != nil {
				return err
			}
		}
		return awaitAll(ctx, c)
	}}
}

// clearPolicy removes a policy, if there is one, through any node.
func clearPolicy(ctx context.Context, c *cluster.Cluster, p cluster.Policy) error {
	return await.Until(ctx, 50*time.Millisecond, "policies to be cleared", func() (done bool, err error) {
		for _, n := range c.Nodes {
			if done, err = deleteAt(ctx, n, p.Path()); done {
				break
			}
		}
		return done, err
	})
}

// Redeclared declares, fills, deletes and declares queues again, through each node in turn,
// beside all others.
func Redeclared(lasts time.Duration) Fault {
	return Fault{Name: "delete and redeclare", Kind: Redeclare, Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		defer h.Fault(Redeclare, 0)()
		ended := make(chan error, len(c.Nodes))
		until, cancel := context.WithTimeout(ctx, lasts)
		defer cancel()
		for i := range c.Nodes {
			go func() { ended <- redeclare(until, c, fmt.Sprint("redeclared-", i%2), i) }()
		}
		for range c.Nodes {
			if err := <-ended; err != nil {
				return err
			}
		}
		for _, name := range []string{"redeclared-0", "redeclared-1"} {
			if err := deleteQueue(ctx, c, name); err != nil {
				return err
			}
		}
		return awaitAll(ctx, c)
	}}
}

// redeclare goes on until the context ends. What fails is tried again: nodes may be down,
// and others delete the same queue.
func redeclare(ctx context.Context, c *cluster.Cluster, name string, first int) error {
	for i := first; ctx.Err() == nil; i++ {
		if conn, err := client.Connect(ctx, c.Nodes[i%len(c.Nodes)].URI()); err == nil {
			if ch, err := conn.Channel(); err == nil {
				for err == nil && ctx.Err() == nil {
					err = redeclareOnce(ctx, ch, name)
				}
			}
			_ = conn.CloseDeadline(time.Now().Add(time.Second))
		}
		pause(ctx, stormEvery)
	}
	return nil
}

func redeclareOnce(ctx context.Context, ch *amqp.Channel, name string) error {
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		return err
	}
	for range 10 {
		if err := ch.PublishWithContext(ctx, "", name, false, false, amqp.Publishing{Body: []byte(name)}); err != nil {
			return err
		}
	}
	pause(ctx, stormEvery)
	_, err := ch.QueueDelete(name, false, false, false)
	return err
}

// deleteQueue deletes a queue, if there is one, through any node.
func deleteQueue(ctx context.Context, c *cluster.Cluster, name string) error {
	return await.Until(ctx, 50*time.Millisecond, "queue "+name+" to be deleted", func() (bool, error) {
		var errs []error
		for _, n := range c.Nodes {
			conn, err := client.Connect(ctx, n.URI())
			if err == nil {
				err = deleteOn(conn, name)
				_ = conn.CloseDeadline(time.Now().Add(time.Second))
			}
			if err == nil {
				return true, nil
			}
			errs = append(errs, err)
		}
		return false, errors.Join(errs...)
	})
}

func deleteOn(conn *amqp.Connection, name string) error {
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDelete(name, false, false, false)
	}
	return err
}

// deleteAt deletes something through a node, and reports whether it is gone.
func deleteAt(ctx context.Context, n *cluster.Node, path string) (gone bool, err error) {
	status, body, err := n.Do(ctx, http.MethodDelete, path, nil)
	if err != nil {
		return false, err
	}
	if status/100 == 2 || status == http.StatusNotFound {
		return true, nil
	}
	return false, fmt.Errorf("node %d: DELETE %s: %d: %.200s", n.Number, path, status, body)
}

// Wiped kills a node, removes all its data and starts it again: it joins anew.
func Wiped(number func(nodes int) int) Fault {
	return lose("node wiped", Wipe, number, func(n *cluster.Node) error { return n.LoseData() })
}

// LostParts kills a node, removes some of the folders of its data and starts it again.
func LostParts(number func(nodes int) int, folders ...string) Fault {
	return lose("lost: "+strings.Join(folders, ", "), WipePart, number, func(n *cluster.Node) (err error) {
		for _, folder := range folders {
			path := filepath.Join(n.DataDir(), folder)
			_, missing := os.Stat(path)
			err = errors.Join(err, missing, os.RemoveAll(path))
		}
		return err
	})
}

// lose kills a node that no other one needs, removes data and starts it again. It ends when
// the node has what it lacked.
func lose(name, kind string, number func(nodes int) int, remove func(n *cluster.Node) error) Fault {
	return Fault{Name: name, Kind: kind, alone: theData, Run: toOne(kind, takeOfWhole(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Kill(ctx); err != nil {
			return err
		}
		if err := remove(n); err != nil {
			return err
		}
		if err := restart(ctx, n); err != nil {
			return err
		}
		return c.AwaitWhole(ctx)
	})}
}

// Forgotten stops a node, removes it from the cluster and starts it again without its data:
// it joins as a new one.
func Forgotten(number func(nodes int) int) Fault {
	return Fault{Name: "node forgotten", Kind: Forget, alone: theData, Run: toOne(Forget, takeOfWhole(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Shutdown(ctx); err != nil {
			return err
		}
		if err := c.Forget(ctx, n); err != nil {
			return err
		}
		if err := n.LoseData(); err != nil {
			return err
		}
		if err := restart(ctx, n); err != nil {
			return err
		}
		return c.Regrow(ctx, n)
	})}
}

// ChangedMembers removes a replica of a queue, the leader's or another one, and after a
// while adds one on the same node.
func ChangedMembers(queue string, number func(nodes int) int, lasts time.Duration) Fault {
	return Fault{Name: "members of " + queue, Kind: Members, alone: theData, Run: toOne(Members, takeOfWhole(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		path := "/api/queues/quorum/%2F/" + url.PathEscape(queue) + "/replicas/"
		change := func(method, what string) error {
			return await.Until(ctx, 100*time.Millisecond, what+" a replica", func() (bool, error) {
				err := c.Nodes[n.Number%len(c.Nodes)].Call(ctx, method, path+what, map[string]string{"node": n.Name()}, nil)
				return err == nil, err
			})
		}
		if err := change(http.MethodDelete, "delete"); err != nil {
			return err
		}
		pause(ctx, lasts)
		if err := change(http.MethodPost, "add"); err != nil {
			return err
		}
		return c.AwaitWhole(ctx)
	})}
}
