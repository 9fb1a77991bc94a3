//go:build testoptions

package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
)

// testSettings are the settings for tests: they break what the server promises.
type testSettings struct {
	clockFile string
	newest    int // the fsm_version that the program says it supports; 0: the one that it does
}

var testRows = []setting{
	{"unsafe.test_clock_file", "", "for tests, needs --unsafe-test-options: a file, relative to data_dir, with the milliseconds that this node's wall clock is to be ahead, and a rate; read every 50 ms", text(func(s *settings) *string { return &s.test.clockFile })},
	{"unsafe.test_fsm_version", "0", "for tests, needs --unsafe-test-options: the newest fsm_version that this program says it supports, 0 … 65535, though it behaves as in the one that it does; 0: that one", number(0, 65535, func(s *settings) *int { return &s.test.newest })},
}

// testFlags adds the flag without which these settings are refused.
func testFlags(flags *flag.FlagSet) *bool {
	return flags.Bool("unsafe-test-options", false, "allow settings that break what the server promises")
}

func (t testSettings) check(allowed bool) error {
	if t.clockFile != "" && !allowed {
		return errors.New("setting unsafe.test_clock_file: refused without --unsafe-test-options")
	}
	if t.newest != 0 && !allowed {
		return errors.New("setting unsafe.test_fsm_version: refused without --unsafe-test-options")
	}
	return nil
}

// versions are the versions of the replicated state that the program says it supports.
func (t testSettings) versions() fsm.Versions {
	if t.newest == 0 {
		return fsm.Supported
	}
	return fsm.Versions{Oldest: fsm.OldestVersion, Newest: uint32(t.newest)}
}

// wallClock is the node's wall clock; stop ends its goroutine.
func wallClock(s *settings, logger *slog.Logger) (wall func() time.Time, stop func(), err error) {
	if s.test.clockFile == "" {
		return time.Now, func() {}, nil
	}
	path := s.test.clockFile
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dataDir, path)
	}
	c, err := newTestClock(path, time.Now)
	if err != nil {
		return nil, nil, fmt.Errorf("setting unsafe.test_clock_file: %w", err)
	}
	logger.Warn("wall clock is set by a file", "file", path)
	var running sync.WaitGroup
	end := make(chan struct{})
	running.Go(func() { c.run(end, logger) })
	return c.wall, func() {
		close(end)
		running.Wait()
	}, nil
}

// testClockInterval is how often the file of a test clock is read.
const testClockInterval = 50 * time.Millisecond

// testClock is a wall clock that a test makes wrong by a file. The file holds how many milliseconds
// the clock is ahead, negative for behind, and optionally how many seconds it advances per second,
// counted from when the file was first read with this content. Without the file the clock is right.
type testClock struct {
	path string
	now  func() time.Time
	set  atomic.Pointer[clockSetting]
}

type clockSetting struct {
	text  string
	since time.Time
	ahead time.Duration
	rate  float64
}

func newTestClock(path string, now func() time.Time) (*testClock, error) {
	c := &testClock{path: path, now: now}
	c.set.Store(&clockSetting{since: now(), rate: 1})
	return c, c.read()
}

// run reads the file repeatedly until stop is closed. Invalid content changes nothing.
func (c *testClock) run(stop <-chan struct{}, logger *slog.Logger) {
	pace := time.NewTicker(testClockInterval)
	defer pace.Stop()
	for {
		select {
		case <-stop:
			return
		case <-pace.C:
		}
		if err := c.read(); err != nil {
			logger.Debug("test clock not read", "error", err)
		}
	}
}

func (c *testClock) read() error {
	text, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(text) == c.set.Load().text {
		return nil
	}
	s, err := parseClock(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	s.since = c.now()
	c.set.Store(s)
	return nil
}

func parseClock(text string) (*clockSetting, error) {
	s := &clockSetting{text: text, rate: 1}
	words := strings.Fields(text)
	if len(words) > 2 {
		return nil, fmt.Errorf("%q is not MILLISECONDS [RATE]", text)
	}
	if len(words) > 0 {
		ms, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil || ms < -maxTestOffset || ms > maxTestOffset {
			return nil, fmt.Errorf("%q is not a number of milliseconds up to %d", words[0], int64(maxTestOffset))
		}
		s.ahead = time.Duration(ms) * time.Millisecond
	}
	if len(words) > 1 {
		rate, err := strconv.ParseFloat(words[1], 64)
		if err != nil || !(rate >= 0 && rate <= 100) {
			return nil, fmt.Errorf("%q is not a rate from 0 to 100", words[1])
		}
		s.rate = rate
	}
	return s, nil
}

// maxTestOffset is a hundred years.
const maxTestOffset = 100 * 366 * 86_400_000

// wall returns the time that the clock shows.
func (c *testClock) wall() time.Time {
	s, now := c.set.Load(), c.now()
	drift := time.Duration(float64(now.Sub(s.since)) * (s.rate - 1))
	return now.Add(s.ahead + drift)
}
