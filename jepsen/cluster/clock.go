package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// clockFile is where a node that SetClock can set reads how wrong its clock is.
const clockFile = "clock"

// WrongClocks are the arguments of "quorate dev" that SetClock needs.
var WrongClocks = []string{"--unsafe-test-options", "--set", "unsafe.test_clock_file=" + clockFile}

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
	if err := n.writeClock(fmt.Sprint(ahead.Milliseconds())); err != nil || !n.Alive() {
		return err
	}
	return n.AwaitOffset(ctx, ahead-clockNoise, ahead+clockNoise)
}

// clockNoise is how far from its offset a node may believe its clock to be.
const clockNoise = 300 * time.Millisecond

// SetDrift makes a node's wall clock right, and advance so many seconds in each second from
// now on, or from its next start. It does not wait.
func (n *Node) SetDrift(rate float64) error { return n.writeClock(fmt.Sprint("0 ", rate)) }

// writeClock replaces the file, which is no data: no loss of power brings back what it was before.
func (n *Node) writeClock(text string) error {
	path := filepath.Join(n.DataDir(), clockFile)
	next := path + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), syncPath(next), os.Rename(next, path)); err != nil {
		return err
	}
	return syncPath(n.DataDir())
}

// syncPath makes the disk keep a file or folder.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// AwaitOffset waits until a node believes that its clock is ahead by an amount in a range.
func (n *Node) AwaitOffset(ctx context.Context, least, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, httpTimeout)
	defer cancel()
	return await.Until(ctx, poll, fmt.Sprintf("node %d to be %v to %v ahead", n.Number, least, most), func() (bool, error) {
		c, err := n.Clock(ctx)
		off := time.Duration(c.OffsetMS) * time.Millisecond
		return err == nil && least < off && off < most, err
	})
}
