package nemesis

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// hasDisks is the Available of faults that break disks.
func hasDisks(c *cluster.Cluster) error { return c.NoDisks() }

// writesOnSlowDisk is how often a slow disk writes in a second.
const writesOnSlowDisk = 20

// onDisk is a fault of one node's disk. Whatever the node does meanwhile, it is started
// again afterwards if it has ended.
func onDisk(name, kind string, number func(nodes int) int, do, undo func(ctx context.Context, n *cluster.Node, d *cluster.Disk) error) Fault {
	return Fault{Name: name, Kind: kind, Available: hasDisks, Run: toOne(kind, takeOne(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		d := c.Disks[n.Number]
		if err := errors.Join(do(ctx, n, d), undo(ctx, n, d)); err != nil {
			return err
		}
		return revive(ctx, n)
	})}
}

// FullDisk fills the disk of a node for a while.
func FullDisk(number func(nodes int) int, lasts time.Duration) Fault {
	return onDisk("disk full", DiskFull, number,
		func(ctx context.Context, _ *cluster.Node, d *cluster.Disk) error {
			err := d.Fill()
			pause(ctx, lasts)
			return err
		},
		func(_ context.Context, _ *cluster.Node, d *cluster.Disk) error { return d.Empty() })
}

// HungDisk makes the disk of a node hang for a while.
func HungDisk(number func(nodes int) int, lasts time.Duration) Fault {
	return onDisk("disk hung", DiskHung, number,
		func(ctx context.Context, _ *cluster.Node, d *cluster.Disk) error {
			err := d.Hang()
			pause(ctx, lasts)
			return err
		},
		func(_ context.Context, _ *cluster.Node, d *cluster.Disk) error { return d.Go() })
}

// SlowDisk makes the disk of a node slow for a while.
func SlowDisk(number func(nodes int) int, lasts time.Duration) Fault {
	f := onDisk("disk slow", DiskSlow, number,
		func(ctx context.Context, n *cluster.Node, d *cluster.Disk) error {
			err := d.Slow(n.PID, writesOnSlowDisk)
			pause(ctx, lasts)
			return err
		},
		func(_ context.Context, _ *cluster.Node, d *cluster.Disk) error { return d.Hurry() })
	f.Available = func(c *cluster.Cluster) error { return errors.Join(c.NoDisks(), cluster.NoSlowing()) }
	return f
}

// ReadOnlyDisk makes the filesystem of a node refuse all writes. The node is given a while
// to end itself; then it is killed, and the filesystem is repaired.
func ReadOnlyDisk(number func(nodes int) int, lasts time.Duration) Fault {
	f := onDisk("disk read-only", DiskRead, number,
		func(ctx context.Context, n *cluster.Node, d *cluster.Disk) error {
			err := d.MakeReadOnly()
			for end := time.Now().Add(lasts); n.Alive() && time.Now().Before(end); {
				pause(ctx, 20*time.Millisecond)
			}
			return err
		},
		func(ctx context.Context, n *cluster.Node, d *cluster.Disk) error {
			if n.Alive() {
				if err := n.Kill(ctx); err != nil {
					return err
				}
			}
			return d.Repair()
		})
	f.Available = (*cluster.Cluster).NoErrors
	return f
}

// FlippedBit kills a node, flips a bit of its data and starts it again, as often as it ends
// by itself then. What it has not found is flipped back in the end, so that it is not met
// when another node has lost something.
func FlippedBit(draw *rand.Rand, lasts time.Duration) Fault {
	return Fault{Name: "bit flip", Kind: BitFlip, alone: theData, Run: toOne(BitFlip, takeOfWhole(draw.IntN), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Kill(ctx); err != nil {
			return err
		}
		flip, err := flipOne(draw, n)
		if err != nil {
			return err
		}
		if err := revive(ctx, n); err != nil {
			return fmt.Errorf("bit %d of %s: %w", flip.bit, flip.path, err)
		}
		pause(ctx, lasts)
		if n.Alive() {
			if err := n.Kill(ctx); err != nil {
				return err
			}
		}
		if err := flip.back(); err != nil {
			return err
		}
		if err := revive(ctx, n); err != nil {
			return fmt.Errorf("bit %d of %s: %w", flip.bit, flip.path, err)
		}
		return c.AwaitWhole(ctx)
	})}
}

// flipped is a bit of a file that was flipped, with what is around it.
type flipped struct {
	path   string
	bit    int64
	around [sha256.Size]byte
}

// flipOne flips any bit of any file of a node that has stopped.
func flipOne(draw *rand.Rand, n *cluster.Node) (f flipped, err error) {
	files, err := n.DataFiles()
	if err != nil {
		return f, err
	}
	if len(files) == 0 {
		return f, fmt.Errorf("node %d has no files", n.Number)
	}
	f.path = files[draw.IntN(len(files))]
	info, err := os.Stat(f.path)
	if err != nil {
		return f, err
	}
	f.bit = draw.Int64N(8 * info.Size())
	if err := cluster.FlipBit(f.path, f.bit); err != nil {
		return f, err
	}
	f.around, err = f.sum()
	return f, err
}

// sum identifies what is around the bit.
func (f flipped) sum() (sum [sha256.Size]byte, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	around := make([]byte, 512)
	n, err := file.ReadAt(around, f.bit/8/512*512)
	if n > 0 {
		err = nil
	}
	return sha256.Sum256(around[:n]), err
}

// back flips the bit back if nothing has been written there since.
func (f flipped) back() error {
	if now, err := f.sum(); err != nil || now != f.around {
		return nil // the file was replaced
	}
	return cluster.FlipBit(f.path, f.bit)
}
