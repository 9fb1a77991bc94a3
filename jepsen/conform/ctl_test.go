package conform

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/quorate/quorate/jepsen/cluster"
)

// tool builds quoratectl once, beside the server.
var tool = sync.OnceValues(func() (string, error) {
	return cluster.BuildTool(context.Background(), filepath.Dir(server))
})

// ctl runs quoratectl against a node, counted from 0, and returns what it prints
// and its exit code.
func (t *T) ctl(node int, words ...string) (out string, code int) {
	t.Helper()
	program, err := tool()
	t.must(err)
	cmd := exec.CommandContext(t.ctx, program, append([]string{"-q", "--node", "http://" + t.Nodes[node].HTTP}, words...)...)
	printed, err := cmd.CombinedOutput()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		code = e.ExitCode()
	} else {
		t.must(err)
	}
	return strings.TrimSpace(string(printed)), code
}

// mustCtl is ctl for a call that must succeed.
func (t *T) mustCtl(node int, words ...string) (out string) {
	t.Helper()
	out, code := t.ctl(node, words...)
	if code != 0 {
		t.Fatalf("%v: exit code %d\n%s", words, code, out)
	}
	return out
}
