package cluster

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAnnounced(t *testing.T) {
	good := []string{
		"some log line",
		`node 1 command: /bin/quorate server --data-dir '/tmp/a b/n1'`,
		"node 1 ready amqp=127.0.0.1:6000 http=127.0.0.1:16000 pid=41",
		"node 2 command: /bin/quorate server --node-name n2",
		"node 2 ready amqp=127.0.0.1:6101 http=127.0.0.1:16001 servicebus=127.0.0.1:6001 management=127.0.0.1:5629 pid=42",
		"cluster ready",
	}
	cases := []struct {
		name  string
		lines []string
		want  string // part of the error; empty: none
	}{
		{"all there", good, ""},
		{"ends early", good[:5], "ended before the cluster was ready"},
		{"a node is missing", append(good[:3:3], "cluster ready"), "1 of 2 nodes"},
		{"a command is missing", append([]string{good[2]}, good[3:]...), "no command announced for node 1"},
	}
	for _, c := range cases {
		lines := make(chan string, len(c.lines))
		for _, l := range c.lines {
			lines <- l
		}
		close(lines)
		cl := &Cluster{dir: t.TempDir()}
		err := cl.announced(t.Context(), lines, 2)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			n := cl.Nodes[0]
			if n.Number != 1 || n.PID != 41 || n.URI() != "amqp://guest:guest@127.0.0.1:6000/" ||
				n.Command != `/bin/quorate server --data-dir '/tmp/a b/n1'` || n.HTTP != "127.0.0.1:16000" {
				t.Errorf("%s: %+v", c.name, n)
			}
			if n = cl.Nodes[1]; n.PID != 42 || n.AMQP != "127.0.0.1:6101" || n.Bus != "127.0.0.1:6001" || n.Manage != "127.0.0.1:5629" {
				t.Errorf("%s: %+v", c.name, n)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := (&Cluster{}).announced(ctx, make(chan string), 2); err == nil {
		t.Error("a silent program counts as ready")
	}
}

// A node that is restarted by its command is a separate process, which a signal ends.
func TestRestartAndKill(t *testing.T) {
	n := &Node{Number: 1, Command: "sleep 60", dir: t.TempDir()}
	if err := n.Restart(); err != nil {
		t.Fatal(err)
	}
	if !n.Alive() {
		t.Fatal("not alive after its start")
	}
	if rss, err := n.RSSBytes(); err != nil || rss <= 0 {
		t.Errorf("memory %d, %v", rss, err)
	}
	if err := n.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.Alive() {
		t.Error("alive after SIGKILL")
	}
	if err := n.Signal(syscall.SIGTERM); err == nil {
		t.Error("a signal reached a process that has gone")
	}
}

// A zombie counts as gone, because its parent may take time to notice.
func TestZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("true")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	if _, err := out.Read(make([]byte, 1)); err == nil {
		t.Fatal("true says something")
	}
	for end := time.Now().Add(time.Minute); alive(cmd.Process.Pid); {
		if time.Now().After(end) {
			t.Fatal("alive for ever")
		}
	}
	if !alive(os.Getpid()) {
		t.Error("this process is not alive")
	}
}

// A block that is looked at while others are in use shares no port with them.
func TestPortBlocksAreApart(t *testing.T) {
	of := map[int]int{}
	for base := portsFrom; base+blockSize <= portsTo; base += blockSize {
		ports := []int{base + guardOffset}
		for _, offset := range portOffsets {
			for k := range 19 {
				ports = append(ports, base+offset+k)
			}
		}
		for _, port := range ports {
			if other, ok := of[port]; ok || port >= othersFrom && port < othersTo {
				t.Fatalf("port %d of block %d is one of %d", port, base, other)
			}
			of[port] = base
		}
	}
}

func TestPortBlocksAreExclusive(t *testing.T) {
	base, guard, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	if listen(base+guardOffset) != nil {
		t.Error("the block is not guarded")
	}
	l := listen(base + 10001)
	if l == nil {
		t.Fatal("a port of the block is taken")
	}
	if blockFree(base, 3) {
		t.Error("a block with a taken port counts as free")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
}
