package jepsen

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/quorate/quorate/jepsen/cluster"
)

// The programs that the README and the pages quote do what they say.
func (r *run) checkExamples() {
	r.Helper()
	root, err := cluster.Root()
	r.must(err)
	for _, c := range []struct{ name, want string }{
		{"hello", "got \"hello\"\n"},
		{"expiry", "\"lives 500 ms\": expired in queue offers\n\"lives 2000 ms\": expired in queue offers\n"},
		{"timeout", "forgetful got \"job 1\"\nforgetful is cancelled\ncareful got \"job 1\", redelivered: true\n"},
		{"locks", "got \"job 1\", held: true\ndone, again: true\n"},
		{"deadletters", "\"no invoice\" was rejected in invoices, 1 time\n"},
		{"delays", "ann is cancelled\n\"call bob\", early: false\n"},
		{"retries", "\"pay 7\", failures so far: 0\n\"pay 7\", failures so far: 1\n\"pay 7\", failures so far: 2\n\"pay 7\": delivery_limit\n"},
		{"sessions", "order 7 placed\norder 7 paid\norder 8 placed\norder 8 cancelled\n"},
		{"pause", "paused\n\"refund 7\", early: false\n"},
		{"lastwill", "began \"job 1\"\n\"job 1\": queue_deleted\n\"job 2\": queue_deleted\n"},
		{"unique", "confirmed: true\nconfirmed: true\nthere: true\nconfirmed: true\nthere: false\nconfirmed: true\nthere: true\n"},
		{"prefetch", "greedy got \"frame 1\"\ngreedy got \"frame 2\"\nother got \"frame 3\"\n"},
		{"dispatch", "slow got \"image 1\"\nquick got \"image 2\"\nquick got \"image 3\"\nquick got \"image 4\"\nquick got \"image 5\"\n"},
		{"ages", "3 to do, the oldest within a minute: true\nmail: 2\nthumbnail: 1\n"},
		{"times", "\"call bob\" would be too late\n\"call ann\", early: false\n"},
		{"redrive", "\"to Atlantis\", redriven: 1\n"},
		{"drift", "parcels has 5000\nworker 2 declares x-max-length 5000\n"},
		{"amqp10/hello", "got \"hello\"\n"},
		{"amqp10/expiry", "\"lives 500 ms\": expired in queue offers\n\"lives 2000 ms\": expired in queue offers\n"},
		{"amqp10/timeout", "forgetful got \"job 1\"\nit is released\ncareful got \"job 1\", first acquirer: false\n"},
		{"amqp10/locks", "got \"job 1\"\nlock.renew: true\nmessage.settle: true\nlock.renew: false\n"},
		{"amqp10/deadletters", "\"no invoice\" was rejected in invoices: app:unreadable, no amount\n"},
		{"amqp10/delays", "ann is cancelled\n\"call bob\", early: false\n"},
		{"amqp10/retries", "\"pay 7\", failures so far: 0\n\"pay 7\", failures so far: 1\n\"pay 7\", failures so far: 2\n\"pay 7\": delivery_limit\n"},
		{"amqp10/sessions", "order 7 placed\norder 7 paid\norder 8 placed\norder 8 cancelled\n"},
	} {
		code, err := os.ReadFile(filepath.Join(root, "docs", "examples", c.name, "main.go"))
		r.must(err)
		here := strings.NewReplacer("127.0.0.1:5672", r.Nodes[0].AMQP, "127.0.0.1:15672", r.Nodes[0].HTTP).Replace(string(code))
		if here == string(code) {
			r.Fatalf("example %s names no broker on the default port", c.name)
		}
		file := filepath.Join(r.TempDir(), filepath.Base(c.name)+".go")
		r.must(os.WriteFile(file, []byte(here), 0o644))
		cmd := exec.CommandContext(r.ctx, "go", "run", file)
		cmd.Dir = root // its go.mod says which client library
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			r.Errorf("example %s: %v; printed\n%swant\n%s", c.name, err, out, c.want)
		}
	}
}
