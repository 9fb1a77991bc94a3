package replica

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

// A program that is too old for what the leader has committed ends. What is not committed is refused,
// and may yet be replaced; and so is what is no entry.
func TestTooOldForTheLeader(t *testing.T) {
	for _, test := range []struct {
		what string
		err  error
		ends bool // if it is committed
	}{
		{"an entry of a later version", fmt.Errorf("refused: %w", &LaterVersion{2, 1}), true},
		{"no entry", errors.New("garbage"), false},
	} {
		exits := make(chan int, 2)
		c := &entryCheck{newest: 1, admits: func(*raft.Log, uint32) error { return test.err }, fail: func(code int, _ string) { exits <- code }}
		for _, committed := range []bool{false, true, true} {
			if c.Entry(&raft.Log{Index: 1}, committed) == nil {
				t.Errorf("%s, committed %v: taken", test.what, committed)
			}
			ends := true
			c.tooOld.Do(func() { ends = false })
			if !committed || !test.ends {
				if c.tooOld = (sync.Once{}); ends {
					t.Errorf("%s, committed %v: the node ends", test.what, committed)
				}
			} else if !ends {
				t.Fatalf("%s: the node goes on", test.what)
			}
		}
		if test.ends {
			if code := <-exits; code != CodeTooOld {
				t.Errorf("%s: exit code %d", test.what, code)
			}
		}
	}
}
