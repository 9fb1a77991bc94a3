package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
)

// DiskBytes returns the disk space that the data of all nodes uses.
func (c *Cluster) DiskBytes() (int64, error) { return DiskBytes(filepath.Join(c.dir, "data")) }

// DiskBytes returns the disk space that the files below a folder use.
func DiskBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted after it was listed
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
			total += st.Blocks * 512
		}
		return nil
	})
	return total, err
}

var (
	rssLine  = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)
	peakLine = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)
)

// ErrNoRSS means that the system does not report a process's memory.
var ErrNoRSS = errors.New("no VmRSS")

// RSSBytes returns the resident memory of the node's process.
func (n *Node) RSSBytes() (int64, error) { return RSSBytes(n.PID) }

// PeakRSSBytes returns the peak resident memory of the node's process.
func (n *Node) PeakRSSBytes() (int64, error) { return statusBytes(n.PID, peakLine) }

// RSSBytes returns the resident memory of a process.
func RSSBytes(pid int) (int64, error) { return statusBytes(pid, rssLine) }

// statusBytes reads a size from a process's status.
func statusBytes(pid int, line *regexp.Regexp) (int64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	m := line.FindSubmatch(status)
	if m == nil {
		return 0, ErrNoRSS
	}
	kb, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kb << 10, err
}
