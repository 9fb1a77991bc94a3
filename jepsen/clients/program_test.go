package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// librarySteps are what the program of every library says it has done, in order.
var librarySteps = []string{"declare", "confirms", "prefetch", "requeue", "expiry", "cancel", "silence", "reconnect"}

// program is a run of a library's program. It prints "ok STEP" after each
// step, and a word for what is to be done to it or to the cluster; then it
// reads a line.
type program struct {
	ctx     context.Context
	cluster *cluster.Cluster
	steps   []string
	ready   func()                   // for the kill of the node
	killed  <-chan struct{}          // it is done
	lead    func(queue string) error // makes the node that is killed the leader of a queue; nil: never
	stall   func() error             // stops the relay; nil: there is none

	ended chan struct{}
	err   error
}

// report waits for the program's end.
func (p *program) report(t *testing.T) {
	<-p.ended
	if errors.As(p.err, new(missing)) {
		t.Skip(p.err)
	}
	if p.err != nil {
		t.Error(p.err)
	}
}

// run runs the program to its end, with the addresses of all nodes and the
// beginning of all names.
func (p *program) run(cmd *exec.Cmd, prefix string) error {
	var addresses []string
	for _, n := range p.cluster.Nodes {
		addresses = append(addresses, n.AMQP)
	}
	cmd.Args = append(cmd.Args, strings.Join(addresses, ","), prefix)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var taken []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if step, ok := strings.CutPrefix(lines.Text(), "ok "); ok {
			taken = append(taken, step)
		} else if err = p.answer(lines.Text(), prefix, cmd, in); err != nil {
			_ = cmd.Process.Kill() // Wait says what became of it
		}
	}
	if err = errors.Join(err, cmd.Wait()); err == nil && slices.Equal(taken, p.steps) {
		return nil
	}
	return fmt.Errorf("after %v: %w\n%s", taken, err, complaints.String())
}

// answer does what the program asks for and says so.
func (p *program) answer(what, prefix string, cmd *exec.Cmd, in io.Writer) error {
	what, of, _ := strings.Cut(what, " ")
	switch what {
	case "lead":
		if err := p.lead(of); err != nil {
			return err
		}
	case "stall":
		if err := p.stall(); err != nil {
			return err
		}
	case "freeze":
		if err := p.freeze(cmd, prefix+".q"); err != nil {
			return err
		}
	case "kill":
		p.ready()
		select {
		case <-p.killed:
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	default:
		return fmt.Errorf("unknown: %q", what)
	}
	_, err := io.WriteString(in, "\n")
	return err
}

// freeze stops the process until the message that it holds is ready again.
func (p *program) freeze(cmd *exec.Cmd, queue string) error {
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	err := await.Until(ctx, 50*time.Millisecond, "the message of a silent client", func() (bool, error) {
		var q struct {
			Ready   int `json:"messages_ready"`
			Unacked int `json:"messages_unacknowledged"`
		}
		_, body, err := p.cluster.Nodes[0].Do(ctx, http.MethodGet, "/api/queues/%2F/"+queue, nil)
		if err != nil {
			return false, err
		}
		if err == nil {
			err = json.Unmarshal(body, &q)
		}
		return q.Unacked == 0 && q.Ready == 1, err
	})
	if contErr := cmd.Process.Signal(syscall.SIGCONT); err == nil {
		err = contErr
	}
	return err
}
