package cluster

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/backup/archive"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// peekOne shows the one ready message of a queue.
func (c *nodes) peekOne(node, name string) (expireAt fsm.Time, acquired uint32) {
	c.t.Helper()
	q, ok := c.all[node].View().Queue("/", name)
	if !ok {
		c.t.Fatalf("no queue %s", name)
	}
	list, _, err := c.all[node].queues.Peek(deadline(c.t), q, queue.Ready, 0, 10)
	if err != nil || len(list) != 1 {
		c.t.Fatalf("%d messages in %s, %v", len(list), name, err)
	}
	return list[0].ExpireAt, list[0].Acquired
}

// TestBackup makes a backup while messages are published, and brings it back to
// another cluster, in runs of which the first breaks off: every message that was
// confirmed before is there once.
func TestBackup(t *testing.T) {
	from := mustCluster(t)
	cl := from.mustClient("n1")
	cl.mustDeclare("q")
	cl.mustDeclare("timed")
	cl.publishTTL("timed", "t", 3_600_000)
	const held, before = 3, 200
	for i := range before {
		cl.publish("q", strconv.Itoa(i))
	}
	cl.publish("q", strings.Repeat("x", 5<<19)) // more than a piece
	cl.confirmed()
	other := from.mustClient("n2")
	other.mustConsume("q", 1, held)
	other.await("deliveries", func() bool { return len(other.inbox) == held })

	var raw bytes.Buffer
	made := make(chan error, 1)
	go func() { made <- from.all["n3"].Management().Backups.Backup(context.Background(), &raw, 8<<20) }()
	last, done := before, false
	for ; !done; last++ {
		cl.publish("q", strconv.Itoa(last))
		cl.confirmed()
		select {
		case err := <-made:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	deadlineWas, _ := from.peekOne("n1", "timed")
	from.closeAll()
	clear(from.all)

	v, err := archive.Verify(bytes.NewReader(raw.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	var excerpt bytes.Buffer
	if err := v.Excerpt(bytes.NewReader(raw.Bytes()), &excerpt, func(archive.Section) bool { return true }); err != nil {
		t.Fatal(err)
	}
	to := mustCluster(t)
	if _, err := to.all["n2"].Management().Backups.Restore(deadline(t), io.LimitReader(bytes.NewReader(excerpt.Bytes()), int64(excerpt.Len())/2)); !isRefusal(err, fsm.Precondition) {
		t.Fatalf("half a backup: %v", err)
	}
	all, _ := v.Messages()
	for _, node := range []string{"n3", "n1"} {
		r, err := to.all[node].Management().Backups.Restore(deadline(t), bytes.NewReader(excerpt.Bytes()))
		if err != nil || r.Refused != 0 || r.Messages+r.Had != all || node == "n1" && r.Messages != 0 {
			t.Fatalf("restore of %d messages through %s: %+v, %v", all, node, r, err)
		}
	}
	if at, _ := to.peekOne("n1", "timed"); at != deadlineWas {
		t.Errorf("a message expires at %d, and expired at %d", at, deadlineWas)
	}
	got := to.mustClient("n1")
	got.mustConsume("q", 1, 0)
	got.await("all messages", func() bool { return len(got.inbox) >= int(all)-1 })
	seen := map[string]int{}
	for _, b := range got.bodies() {
		seen[b]++
	}
	for i := range before {
		if seen[strconv.Itoa(i)] != 1 {
			t.Errorf("message %d is there %d times", i, seen[strconv.Itoa(i)])
		}
	}
	for b, n := range seen {
		if n != 1 {
			t.Errorf("message %.10q is there %d times", b, n)
		}
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	for i, m := range got.inbox[:held] {
		if m.Acquired == 0 || string(m.Payload.Body()) != strconv.Itoa(i) {
			t.Errorf("message %d, which was handed out, comes as %q, handed out %d times", i, m.Payload.Body(), m.Acquired)
		}
	}
}
