// Command testrun runs `go test -json` with the arguments that it is given, and says what a person
// wants to know of it: a line for each package when it is done; of a failed test the end of what it
// wrote; why each skipped test was skipped; which have failed; and one last line with the sums. What the tests of a
// package write is kept in a file of its own.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

func main() {
	dir := flag.String("logs", "", "folder for a file per package with all that its tests write, which is emptied first; empty: none")
	slowest := flag.Int("slowest", 0, "how many of the slowest tests to list at the end")
	flag.Parse()
	code, err := run(os.Stdout, *dir, *slowest, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	os.Exit(code)
}

// run runs the tests and returns the code to exit with.
func run(out io.Writer, dir string, slowest int, args []string) (int, error) {
	logs, err := openLogs(dir)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	s := newSuite(out, logs)
	if err := s.read(events); err != nil {
		return 0, err
	}
	ended := cmd.Wait()
	s.close(time.Since(began), slowest)
	if err := logs.close(); err != nil {
		return 0, err
	}
	if ended != nil || s.failed > 0 { // it has said why
		return 1, nil
	}
	return 0, nil
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build-output
	FailedBuild                   string // of fail: the package that did not build
	Elapsed                       float64
}

// read takes events until they end. A line that is none is printed.
func (s *suite) read(events io.Reader) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(s.out, lines.Text())
			continue
		}
		if err := s.take(e); err != nil {
			return err
		}
	}
	return lines.Err()
}
