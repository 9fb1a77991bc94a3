package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Work that goes on stands still for no time, whatever else does.
func TestMark(t *testing.T) {
	var m Mark
	var got []string
	for i, step := range []struct {
		waits    bool
		progress uint64
	}{{true, 1}, {true, 1}, {true, 2}, {true, 2}, {true, 2}, {false, 2}, {true, 2}, {true, 2}} {
		got = append(got, fmt.Sprint(int(m.Update(step.waits, step.progress, time.Duration(i)))))
	}
	if want := strings.Fields("0 1 0 1 2 0 0 1"); !slices.Equal(got, want) {
		t.Errorf("it stands still for %q, want %q", got, want)
	}
}
