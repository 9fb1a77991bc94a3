package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// WrongClocks are the arguments of "quorate dev" that SetClock needs.
var WrongClocks = []string{"--unsafe-test-options", "--set", "unsafe.test_clock_file=clock"}

// Clock is a node's report about its clock.
type Clock struct {
	OffsetMS int64 `json:"offset_ms"`
	Skewed   bool  `json:"skewed"`
	Agreed   bool  `json:"agreed"`
}

// Clock asks a node about its clock.
func (n *Node) Clock(ctx context.Context) (c Clock, err error) {
	return c, n.Call(ctx, http.MethodGet, "/api/quorate/clock", nil, &c)
}

// SetClock sets a node's wall clock wrong, now or for its next start, and waits until
// the node, if it runs, has detected it.
func (n *Node) SetClock(ctx context.Context, ahead time.Duration) error {
	path := filepath.Join(n.dir, "data", fmt.Sprintf("n%d", n.Number), "clock")
	next := path + ".next"
	if err := os.WriteFile(next, fmt.Append(nil, ahead.Milliseconds()), 0o644); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	if !n.Alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, httpTimeout)
	defer cancel()
	return await.Until(ctx, poll, fmt.Sprintf("node %d to be %v ahead", n.Number, ahead), func() (bool, error) {
		c, err := n.Clock(ctx)
		off := time.Duration(c.OffsetMS)*time.Millisecond - ahead
		return err == nil && off.Abs() < time.Second, err
	})
}
