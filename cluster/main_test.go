package cluster

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// sideBySide is how many tests run at a time if the command does not say: most
// of what they do is wait.
const sideBySide = "16"

// TestMain fails if anything that a node has started is still running.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", sideBySide); err != nil { // before the command's flags are read
		panic(err)
	}
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
	for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
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
