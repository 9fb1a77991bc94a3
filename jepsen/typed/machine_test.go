package typed

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// machine is where the commands of a page are typed: see testdata/machine.sh.
type machine struct {
	*testing.T
	in    io.WriteCloser // of its shell
	shell *tty
	spare []*tty // terminals for commands that do not return
	used  int
}

// terminals is how many commands of a page may not return.
const terminals = 3

// status is what the shell writes behind the output of a command, and when it ends.
var status = regexp.MustCompile("\x1e(\\d+)\x1e")

// mustMachine starts a machine. Programs is the folder of those that are installed in it, if any.
func mustMachine(t *testing.T, programs string) *machine {
	t.Helper()
	root, err := cluster.Root()
	if err == nil {
		err = cluster.Depends(root, append([]string{"Makefile", "deploy", "docs", "jepsen/typed/testdata"}, cluster.Sources...)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	same, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	folders := strings.Fields(string(same))
	args := append([]string{"--mount", "--net", "--pid", "--fork", "--kill-child", "/bin/sh", filepath.Join(root, "jepsen", "typed", "testdata", "machine.sh"), t.TempDir(), root, programs}, folders...)
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = []string{
		"HOME=/home/ann", "LANG=C.UTF-8", "TERM=xterm", "GOTOOLCHAIN=local", "GOPROXY=off", "GOFLAGS=-p=2",
		"GOCACHE=" + folders[0], "GOMODCACHE=" + folders[1],
		"PATH=/usr/local/typed:" + filepath.Join(folders[2], "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
	m := &machine{T: t}
	if m.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var slaves []*os.File
	for range terminals + 1 {
		at, slave := mustTTY(t)
		m.spare, slaves = append(m.spare, at), append(slaves, slave)
	}
	m.shell, m.spare = m.spare[0], m.spare[1:]
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = slaves[0], slaves[0], slaves[1:]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and so everything in it
		_ = cmd.Wait()
	})
	for _, s := range slaves {
		s.Close()
	}
	m.write("trap 'printf \"\\036%d\\036\\n\" $?' EXIT; set -e -o pipefail")
	if out, ok := m.do("true", time.Minute); !ok {
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() == 77 || strings.Contains(out, "unshare failed") {
			t.Skipf("this machine cannot be made another one: %s", out)
		}
		t.Fatal(out)
	}
	return m
}

// write types a line. Whether the shell is there to read it, its terminal says.
func (m *machine) write(line string) { _, _ = io.WriteString(m.in, line+"\n") }

// do types commands into the shell and returns what they write, and whether all succeed. If one
// does not, the shell has ended.
func (m *machine) do(script string, limit time.Duration) (out string, ok bool) {
	m.Helper()
	m.shell.clear()
	m.write("eval " + quoted(script) + " </dev/null; printf '\\036%d\\036\\n' 0")
	ctx, cancel := context.WithTimeout(m.Context(), limit)
	defer cancel()
	var found []int
	err := await.Until(ctx, 2*time.Millisecond, "the end of a command", func() (bool, error) {
		ended := m.shell.ended()
		out = m.shell.text()
		found = status.FindStringSubmatchIndex(out)
		return found != nil || ended, nil
	})
	if found == nil {
		return fmt.Sprintf("%s\n(without an end: %v)", shown(out), err), false
	}
	return shown(out[:found[0]]), out[found[2]:found[3]] == "0"
}

// begin types a command that does not return into another terminal.
func (m *machine) begin(script string) *tty {
	m.Helper()
	if m.used == len(m.spare) {
		m.Fatalf("more than %d commands do not return", terminals)
	}
	at := m.spare[m.used]
	m.used++
	m.write(fmt.Sprintf("(eval %s) </dev/null >&%d 2>&1 &", quoted(script), 2+m.used))
	return at
}

// quoted makes one word of a text.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// tty is a terminal that remembers what is written to it.
type tty struct {
	mu    sync.Mutex
	all   bytes.Buffer
	isEnd bool
}

// mustTTY opens a terminal; slave is what programs write to.
func mustTTY(t *testing.T) (at *tty, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 200})
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	at = &tty{}
	go func() {
		buffer := make([]byte, 32<<10)
		for {
			n, err := master.Read(buffer)
			at.mu.Lock()
			at.all.Write(buffer[:n])
			at.isEnd = err != nil
			at.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return at, slave
}

func (t *tty) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.Reset()
}

func (t *tty) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.String()
}

// ended reports whether nothing can be written to it any more.
func (t *tty) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isEnd
}

// colour is what a terminal does not show as text.
var colour = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// shown is what a terminal shows of a text: the last that was written to each line.
func shown(text string) string {
	lines := strings.Split(colour.ReplaceAllString(text, ""), "\n")
	for i, line := range lines {
		line = strings.TrimRight(line, "\r")
		lines[i] = strings.TrimRight(line[strings.LastIndexByte(line, '\r')+1:], " ")
	}
	return strings.Join(lines, "\n")
}
