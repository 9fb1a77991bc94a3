package nemesis

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

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
