package limit

import (
	"fmt"
	"math"
	"os"
	"syscall"
)

// Descriptors says how many file descriptors each part of a node may hold.
type Descriptors struct {
	Clients int // sockets of AMQP listeners together
	HTTP    int
	Metrics int
	Links   int // from other nodes
	Tables  int // files of the queue store
}

const (
	// minFiles is how many descriptors a node needs to serve anybody.
	minFiles = 128
	// maxFiles is assumed when the system sets no limit, or a huge one.
	maxFiles = 1 << 20
	// others is how many descriptors logs, table files being written, outgoing
	// links and the Go runtime need.
	others = 48
)

// Files returns how many descriptors this process may have.
func Files() (int, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	return int(min(l.Cur, math.MaxInt32)), nil
}

// OpenFiles counts the process's open descriptors; 0: not known.
func OpenFiles() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

// Divide divides descriptors among the parts of a node. Listeners leave the stores
// what these need.
func Divide(files int) (Descriptors, error) {
	if files < minFiles {
		return Descriptors{}, fmt.Errorf("the limit of open files is %d, but a node needs at least %d", files, minFiles)
	}
	files = min(files, maxFiles)
	between := func(low, n, high int) int { return max(low, min(n, high)) }
	s := Descriptors{
		Tables:  between(16, files/5, 1000),
		Links:   between(8, files/10, 256),
		HTTP:    between(8, files/10, 4096),
		Metrics: between(4, files/20, 64),
	}
	s.Clients = files - others - s.Tables - s.Links - s.HTTP - s.Metrics
	return s, nil
}

// Smaller returns the smaller of a setting and a share; a setting of 0 is unset.
func Smaller(setting, share int) int {
	if setting == 0 {
		return share
	}
	return min(setting, share)
}
