package ceiling

import (
	"fmt"
	"math"
	"syscall"
)

// Shares are the file descriptors that each part of a node may hold.
type Shares struct {
	Clients int // sockets of AMQP listeners together
	HTTP    int
	Metrics int
	Links   int // from other nodes
	Tables  int // files of the queue store
}

const (
	// minFiles is how many descriptors a node needs to serve anybody.
	minFiles = 128
	// maxFiles is what no limit, or a huge one, counts as.
	maxFiles = 1 << 20
	// others are descriptors of logs, of what is being written, of links to other
	// nodes, and of the Go runtime.
	others = 48
)

// Files is how many descriptors this process may have.
func Files() (int, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	return int(min(l.Cur, math.MaxInt32)), nil
}

// Share divides descriptors among the parts of a node. What is not given to
// listeners is kept for the stores.
func Share(files int) (Shares, error) {
	if files < minFiles {
		return Shares{}, fmt.Errorf("the limit of open files is %d, a node needs at least %d", files, minFiles)
	}
	files = min(files, maxFiles)
	between := func(low, n, high int) int { return max(low, min(n, high)) }
	s := Shares{
		Tables:  between(16, files/5, 1000),
		Links:   between(8, files/10, 256),
		HTTP:    between(8, files/10, 4096),
		Metrics: between(4, files/20, 64),
	}
	s.Clients = files - others - s.Tables - s.Links - s.HTTP - s.Metrics
	return s, nil
}

// Of is the smaller of what a setting asks for (0: nothing) and a share.
func Of(setting, share int) int {
	if setting == 0 {
		return share
	}
	return min(setting, share)
}
