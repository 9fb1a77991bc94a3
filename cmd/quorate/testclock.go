package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// testClockPace is how often the file of a test clock is read.
const testClockPace = 50 * time.Millisecond

// testClock is a wall clock that a test sets wrong by a file. The file holds
// how many milliseconds it is ahead, negative for behind, and if wanted how
// many seconds it shows in a second, counted from when the file was first read
// with this content. Without the file it is right.
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

// run reads the file again and again until stop is closed. Content that cannot
// be understood changes nothing.
func (c *testClock) run(stop <-chan struct{}, logger *slog.Logger) {
	pace := time.NewTicker(testClockPace)
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
			return nil, fmt.Errorf("%q is no number of milliseconds up to %d", words[0], int64(maxTestOffset))
		}
		s.ahead = time.Duration(ms) * time.Millisecond
	}
	if len(words) > 1 {
		rate, err := strconv.ParseFloat(words[1], 64)
		if err != nil || !(rate >= 0 && rate <= 100) {
			return nil, fmt.Errorf("%q is no rate from 0 to 100", words[1])
		}
		s.rate = rate
	}
	return s, nil
}

// maxTestOffset is a hundred years.
const maxTestOffset = 100 * 366 * 86_400_000

// wall is what the clock shows.
func (c *testClock) wall() time.Time {
	s, now := c.set.Load(), c.now()
	drift := time.Duration(float64(now.Sub(s.since)) * (s.rate - 1))
	return now.Add(s.ahead + drift)
}
