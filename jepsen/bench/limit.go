package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/quorate/quorate/jepsen/report"
)

// limitFile is the size of the files that the limit's machines write to. They are written over, so that a sync has
// nothing to note about the file.
const limitFile = 16 << 20

// limitPage is how much of them is written at a time before.
const limitPage = 4 << 10

// limitVerb measures what no broker with replicas can be faster than: one write and sync on two machines, beside one round trip
// between them, for a client that has one message under way. Each machine is a process of one thread with
// blocking system calls and nothing else.
func limitVerb(f flags) func(context.Context) error {
	n, size, file := f.number("messages", 5000, 1, unbounded, "`messages` to write"), f.size(1024), f.json()
	dir := f.String("dir", "", "`folder` for the files; empty: a temporary one")
	as := f.String("as", "", "be one `machine`: leader or follower; the others are started by themselves")
	to := f.String("to", "", "`address` of the follower")
	return func(ctx context.Context) error {
		if *as != "" {
			return limitMachine(*as, *to, *dir, *size)
		}
		return inFolder(*dir, func(dir string) error {
			b := &bench{ctx: ctx, target: &target{}}
			return b.publishAfter(try(func() { b.keep(limit{b, dir, *n, *size}.run()) }), *file)
		})
	}
}

// limit is a client of two machines, whose files are in a folder.
type limit struct {
	*bench
	dir            string
	messages, size int
}

func (b limit) run() report.Result {
	ctx, end := context.WithCancel(b.ctx)
	defer end()
	to := ""
	for _, as := range []string{"follower", "leader"} {
		machine := exec.CommandContext(ctx, get(os.Executable()), "limit", "-as", as, "-to", to, "-dir", b.dir, "-size", fmt.Sprint(b.size))
		machine.Stderr = os.Stderr
		out := get(machine.StdoutPipe())
		must(machine.Start())
		defer machine.Wait()
		defer end()
		to = strings.TrimSpace(get(bufio.NewReader(out).ReadString('\n')))
		b.pids = append(b.pids, machine.Process.Pid)
	}
	r := report.Result{Name: fmt.Sprintf("limit of window 1: two writes and syncs beside a round trip, %d bytes", b.size)}
	leader := get(net.Dial("tcp", to))
	defer leader.Close()
	var taken samples
	message, answer := make([]byte, b.size), make([]byte, 1)
	b.cost(&r, func() int {
		for i := range b.messages {
			began := clock()
			get(leader.Write(message))
			get(io.ReadFull(leader, answer))
			if taken.add(clock() - began); b.ctx.Err() != nil {
				must(b.ctx.Err())
			}
			message[0] = byte(i)
		}
		return b.messages
	})
	r.Times = taken.quantiles()
	return r
}

// limitMachine writes what it is sent to a file, and answers when that is synced; a leader, when its follower has, too.
func limitMachine(as, follower, dir string, size int) error {
	runtime.LockOSThread()
	file, err := os.OpenFile(filepath.Join(dir, as), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	for range limitFile / limitPage {
		if _, err := file.Write(make([]byte, limitPage)); err != nil {
			return err
		}
	}
	if err := file.Sync(); err != nil {
		return err
	}
	var next *os.File // of a leader
	if as == "leader" {
		conn, err := net.Dial("tcp", follower)
		if err != nil {
			return err
		}
		if next, err = blocking(conn); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	client, err := blocking(conn)
	if err != nil {
		return err
	}
	message, answer := make([]byte, size), []byte{0}
	for at := 0; ; at = (at + size) % (limitFile - size) {
		if _, err := io.ReadFull(client, message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if next != nil {
			_, err = next.Write(message)
		}
		if err == nil {
			_, err = file.WriteAt(message, int64(at))
		}
		if err == nil {
			err = syscall.Fdatasync(int(file.Fd()))
		}
		if err == nil && next != nil {
			_, err = io.ReadFull(next, answer)
		}
		if err == nil {
			_, err = client.Write(answer)
		}
		if err != nil {
			return err
		}
	}
}

// blocking returns a socket that is read and written by the thread that waits for it.
func blocking(conn net.Conn) (*os.File, error) {
	f, err := conn.(*net.TCPConn).File()
	if err == nil {
		f.Fd() // which makes it so
	}
	return f, err
}
