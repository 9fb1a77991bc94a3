package cluster

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails if anything that a node has started is still running.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := leftovers(); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines left behind:\n"+left)
			code = 1
		}
	}
	os.Exit(code)
}

// leftovers returns the stacks of goroutines that stand in this project or in
// raft, once they had time to end.
func leftovers() string {
	var left []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = left[:0]
		for _, s := range strings.Split(string(stacks), "\n\n")[1:] {
			if strings.Contains(s, "quorate/quorate/") || strings.Contains(s, "hashicorp/raft.") {
				left = append(left, s)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}
